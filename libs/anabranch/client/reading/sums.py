"""Table sums: kept with every change of a base, compared with the server's wherever positions are equal, and now and
then with the rows themselves.

Two faults are possible. The rows read may differ from the server's: then the kept sum, which is computed from the rows
read, is not the server's, and the first comparison shows it. Or the stored rows may differ from the rows read (a disk,
another program that writes to the file): then the kept sum is still the server's, and only reading the rows shows it
(``verify``). Either way ``_db_tables.disagrees`` holds the position from which the table is known to differ, until sums
agree again.

``_db_tables.verified``: when the rows were last found to be those of the kept sum, in milliseconds of the device's
clock; 0 where they never were since a pull took the server's word for its sum, 1 where that is not known.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

from anabranch.client.events import State
from anabranch.client.file import audience_sums
from anabranch.client.file.believed import UNREADABLE
from anabranch.client.file.device_file import DeviceFile, Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.file.standing import KeptTable, one_table
from anabranch.client.reading import audience_checks
from anabranch.client.reading.audience_checks import Sum, is_zero
from anabranch.errors import AnabranchError
from anabranch.v1 import position_pb2
from anabranch.values import Cell
from anabranch.values.canonical import SUM_MODULUS, table_sum

VERIFIED_FOR_MS = 24 * 3600 * 1000
"""Milliseconds for which the rows of a table are not read again, unless the app asks for it."""
_ROWS_AT_ONCE = 5_000


def compare(tx: Tx, sums: Iterable[position_pb2.TableSum], position: int) -> None:
    """Compare kept sums with the server's at ``position`` (milliseconds), which the device must have reached. A table
    that has not caught up with a pull of several moments, or that is set aside, can't be compared yet. Those of a
    restricted table are of one audience each."""
    for theirs in sums:
        table = tx.tables.get(theirs.table)
        if table is None or position < table.changed_ms:
            # Before that change its rows had other columns there.
            continue
        if table.restricted or theirs.audience:
            audience_checks.compare(tx, theirs, position)
            continue
        kept = _kept(tx, theirs.table)
        if kept is None or kept.stage != "live" or kept.last_ms > position:
            continue
        count, disagrees = kept.rows, kept.disagrees
        agrees = count == theirs.count and kept.hash == theirs.hash
        if agrees is bool(disagrees):
            since = 0 if agrees else max(position, 1)
            tx.conn.execute("UPDATE _db_tables SET disagrees = ? WHERE name = ?", (since, theirs.table))
            if tx.standing is not None and theirs.table in tx.standing.tables:
                tx.standing.tables[theirs.table] = kept._replace(disagrees=since)
            detail = f"{count} rows here, {theirs.count} there" if not agrees else ""
            tx.events.append(State("sums_agree" if agrees else "sums_disagree", detail, table.sql_name, position))


def _kept(tx: Tx, name: str) -> KeptTable | None:
    """The stage and sum of a table, as this transaction has them by now."""
    found = None if tx.standing is None else tx.standing.tables.get(name)
    return one_table(tx.conn, name) if found is None else found


def disagreements(conn: sqlite3.Connection) -> dict[str, int]:
    """The tables that are known to differ from the server's, by identity, with the position since which they do."""
    return dict(conn.execute("SELECT name, disagrees FROM _db_tables WHERE disagrees ORDER BY name").fetchall())


def base_rows(conn: sqlite3.Connection, table: DeviceTable) -> Generator[tuple[Cell, ...], None, None]:
    """The base rows of a table, as the transaction of ``conn`` sees them, which stays open until the generator is
    closed.

    Raises:
        one of UNREADABLE: a stored value does not fit its column.
    """
    load = table.codec.load
    kept = dict(conn.execute("SELECT key, row FROM _db_base WHERE tbl = ?", (table.name,)))
    with closing(conn.execute(f"SELECT {table.columns_sql} FROM {table.quoted}")) as cursor:
        while rows := cursor.fetchmany(_ROWS_AT_ONCE):
            for stored in rows:
                if not kept or table.key_text(table.key_of(stored)) not in kept:
                    yield load(stored)
    for data in kept.values():
        if data is not None:
            yield table.from_bytes(data)


def of_rows(conn: sqlite3.Connection, table: DeviceTable) -> tuple[int, bytes]:
    """Count and hash sum (16 bytes) over the base rows themselves: every row is read and encoded."""
    with closing(base_rows(conn, table)) as rows:
        count, total = table_sum(table.encoder, rows)
    return count, total.to_bytes(16, "big")


def kept(conn: sqlite3.Connection) -> dict[str, tuple[int, bytes]]:
    """The kept sums of tables that have been pulled, by identity: count and hash."""
    rows = conn.execute("SELECT name, count, hash FROM _db_tables WHERE stage != 'new'")
    return {name: (count, digest) for name, count, digest in rows}


@contextmanager
def one_moment(conn: sqlite3.Connection) -> Iterator[None]:
    """Let all reads inside the block see the file as it was at the first of them."""
    conn.execute("BEGIN")
    try:
        yield
    finally:
        conn.execute("COMMIT")


def due(conn: sqlite3.Connection, now_ms: int) -> list[str]:
    """The tables whose rows should be read again. ``now_ms``: the device's clock; if set back, they are due, too."""
    rows = conn.execute(
        "SELECT name FROM _db_tables WHERE stage = 'live' AND (verified = 0 OR verified > 1 AND abs(verified - ?) > ?)",
        (now_ms, VERIFIED_FOR_MS),
    )
    return [name for (name,) in rows.fetchall()]


def has_undated(conn: sqlite3.Connection) -> bool:
    """Whether there are tables without a known time at which they were found good."""
    row = conn.execute("SELECT 1 FROM _db_tables WHERE verified = 1 AND stage = 'live'").fetchone()
    return row is not None


def date_verified(file: DeviceFile, now_ms: int) -> None:
    """Take ``now_ms`` for the time at which tables without a known time were found good."""
    if has_undated(file.reader()):
        with file.transaction() as tx:
            tx.conn.execute("UPDATE _db_tables SET verified = ? WHERE verified = 1", (now_ms,))


@dataclass(frozen=True, slots=True)
class _Drift:
    """The rows' sum less the kept one, and those of a restricted table's audiences. ``pulls``: the file's number of
    pulls when the rows were read."""

    count: int
    hash: int
    pulls: int
    by_audience: Mapping[str, Sum] = field(default_factory=dict)

    @property
    def is_none(self) -> bool:
        return self.count == self.hash == 0 and all(map(is_zero, self.by_audience.values()))


class _Stopped(AnabranchError):
    """The sum is no longer wanted."""


def verify(file: DeviceFile, name: str, now_ms: int, stopped: Callable[[], bool] = lambda: False) -> bool | None:
    """Read a table's base rows and return whether the kept sum is theirs; None if ``stopped`` came true before, or if
    the table is not one that can be read. If it is not theirs, the rows' own sum is kept from now on: it differs from
    the server's at every position, until the table is mended."""
    conn = file.reader()

    def unless_stopped(rows: Iterable[tuple[Cell, ...]]) -> Iterator[tuple[Cell, ...]]:
        for row in rows:
            if stopped():
                raise _Stopped
            yield row

    with one_moment(conn):
        state = conn.execute(
            "SELECT t.count, t.hash, s.pulls FROM _db_tables t, _db_state s WHERE t.name = ? AND t.stage = 'live'",
            (name,),
        ).fetchone()
        # As of the same moment: a schema change may alter it at any other.
        table = file.tables().get(name)
        if state is None or table is None:
            return None
        count, digest, pulls = state
        try:
            by_audience: Mapping[str, Sum] = {}
            with closing(base_rows(conn, table)) as rows:
                if table.restricted:
                    found = audience_checks.totals(conn, table, unless_stopped(rows))
                    read, total = found.count, found.total % SUM_MODULUS
                    by_audience = audience_checks.drift(conn, name, found.by_audience)
                else:
                    read, total = table_sum(table.encoder, unless_stopped(rows))
            drift = _Drift(read - count, total - int.from_bytes(digest, "big"), pulls, by_audience)
            why = f"{read} rows are here, and not those that were sent"
        except _Stopped:
            return None
        except UNREADABLE as error:
            # Rows that can't be read have no sum: take one that the server's can't be.
            unknown = audience_checks.drift(conn, name, None) if table.restricted else {}
            drift, why = _Drift(-count - 1, 1, pulls, unknown), f"a row can't be read: {error}"
    return _verified(file, table, drift, why, now_ms)


def _verified(file: DeviceFile, table: DeviceTable, drift: _Drift, why: str, now_ms: int) -> bool | None:
    good, name = drift.is_none, table.name
    with file.transaction() as tx:
        if tx.state.pulls != drift.pulls:
            return None  # A pull has come between; another check follows.
        now = tx.tables.get(name)
        if now is None or now.table.columns != table.table.columns:
            return None  # It was given up, or altered, meanwhile.
        found = tx.conn.execute(
            "SELECT count, hash, disagrees FROM _db_tables WHERE name = ? AND stage != 'new'", (name,)
        ).fetchone()
        if found is None:
            return None  # It was given up meanwhile.
        tx.conn.execute("UPDATE _db_tables SET verified = ? WHERE name = ?", (now_ms, name))
        if not good:
            # Changes by the log meanwhile have moved both sums alike.
            count, digest, before = found
            keep(tx, name, count + drift.count, int.from_bytes(digest, "big") + drift.hash)
            if tx.tables[name].restricted:
                audience_checks.drifted(tx, name, drift.by_audience, why)
            elif not before:
                position = tx.state.cursor_ms
                tx.conn.execute("UPDATE _db_tables SET disagrees = ? WHERE name = ?", (max(position, 1), name))
                tx.events.append(State("sums_disagree", why, tx.tables.told(name), position))
    file.listeners.deliver()
    return good


def keep(tx: Tx, name: str, count: int, total: int) -> None:
    """Keep ``count`` and ``total`` as the sum of a table's base rows."""
    digest = audience_sums.as_bytes(total)
    tx.conn.execute("UPDATE _db_tables SET count = ?, hash = ? WHERE name = ?", (count, digest, name))
