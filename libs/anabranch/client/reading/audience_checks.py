"""Sums of restricted tables by audience: compared with the server's, and with the rows themselves (see ``sums``)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from anabranch.client.events import State
from anabranch.client.file import audience_sums, row_audiences
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.file.row_audiences import NOBODYS
from anabranch.client.overlay.rebase import read_bases
from anabranch.v1 import position_pb2
from anabranch.values import Cell, key_cells

_ROWS_AT_ONCE = 5_000
Sum = tuple[int, int]
"""A number of rows, and the sum of their hashes, which is not yet reduced."""


@dataclass
class Totals:
    """The sum of rows, and of those of each audience."""

    count: int = 0
    total: int = 0
    by_audience: dict[str, Sum] = field(default_factory=dict)


def totals(conn: sqlite3.Connection, table: DeviceTable, rows: Iterable[Sequence[Cell]]) -> Totals:
    """The sums of base rows of a restricted table, as the transaction of ``conn`` sees their audiences.

    Raises:
        one of UNREADABLE: what is stored can't be read.
    """
    found, hash_of = Totals(), table.encoder.hash
    rows = iter(rows)
    while chunk := list(islice(rows, _ROWS_AT_ONCE)):
        keys = [table.key_text(table.key_of(row)) for row in chunk]
        whose = row_audiences.read(conn, table.name, keys)
        for key, row in zip(keys, chunk, strict=True):
            digest = hash_of(row)
            found.count, found.total = found.count + 1, found.total + digest
            for audience in whose.get(key, NOBODYS):
                count, total = found.by_audience.get(audience, (0, 0))
                found.by_audience[audience] = (count + 1, total + digest)
    return found


def sums_of(tx: Tx, table: DeviceTable, audiences: frozenset[str]) -> dict[str, Sum]:
    """The sums of the base rows of these audiences: no other row is read.

    Raises:
        one of UNREADABLE: what is stored can't be read.
    """
    found: dict[str, Sum] = {}
    for keys in row_audiences.keys_of(tx.conn, table.name, audiences):
        stored = table.read_by_text(tx.conn, {key: tuple(key_cells(table.table, key)) for key in keys})
        bases = read_bases(tx.conn, table, keys)
        rows = [base for base in bases.values() if base is not None]
        rows += [table.codec.load(row) for key, row in stored.items() if key not in bases]
        for audience, (count, total) in totals(tx.conn, table, rows).by_audience.items():
            before, so_far = found.get(audience, (0, 0))
            found[audience] = (before + count, so_far + total)
    return {audience: found.get(audience, (0, 0)) for audience in audiences}


def compare(tx: Tx, theirs: position_pb2.TableSum, position: int) -> None:
    """Compare the rows of one audience with the server's at ``position`` (milliseconds). A table disagrees as long as
    one of its audiences does."""
    name, audience = theirs.table, theirs.audience
    row = tx.conn.execute(
        """SELECT s.count, s.hash, s.disagrees FROM _db_audience_sums s CROSS JOIN _db_tables t ON t.name = s.tbl
           WHERE s.tbl = ? AND s.audience = ? AND t.stage = 'live' AND t.last_ms <= ?""",
        (name, audience, position),
    ).fetchone()
    if row is None:
        return
    count, digest, disagrees = row
    agrees = count == theirs.count and digest == theirs.hash
    if agrees is bool(disagrees):
        tx.conn.execute(
            "UPDATE _db_audience_sums SET disagrees = ? WHERE tbl = ? AND audience = ?",
            (0 if agrees else max(position, 1), name, audience),
        )
        note(tx, name, f"{count} rows of {audience} here, {theirs.count} there", position)


def note(tx: Tx, name: str, why: str, position: int) -> None:
    """Let a restricted table disagree since the earliest position at which one of its audiences does, and tell where it
    begins to, because of ``why``, or no longer does."""
    found = tx.conn.execute("SELECT disagrees FROM _db_tables WHERE name = ?", (name,)).fetchone()
    (since,) = tx.conn.execute(
        "SELECT coalesce(min(disagrees), 0) FROM _db_audience_sums WHERE tbl = ? AND disagrees", (name,)
    ).fetchone()
    if found is None or found[0] == since:
        return
    tx.forget_standing(name)
    tx.conn.execute("UPDATE _db_tables SET disagrees = ? WHERE name = ?", (since, name))
    if bool(since) is not bool(found[0]):
        detail = why if since else ""
        kind = "sums_disagree" if since else "sums_agree"
        tx.events.append(State(kind, detail, tx.tables.told(name), position))


def drift(conn: sqlite3.Connection, name: str, rows: Mapping[str, Sum] | None) -> dict[str, Sum]:
    """The sums of a table's rows less the kept ones, of each complete audience; where the rows can't be read (None), of
    each one that the server's can't be."""
    kept = audience_sums.all_of(conn, name)
    if rows is None:
        return dict.fromkeys(kept, (-1, 1))
    found = {audience: rows.get(audience, (0, 0)) for audience in kept}
    return {
        audience: (count - kept[audience][0], total - int.from_bytes(kept[audience][1], "big"))
        for audience, (count, total) in found.items()
    }


def drifted(tx: Tx, name: str, by_audience: Mapping[str, Sum], why: str) -> None:
    """Keep the sums that the rows themselves have, which differ from those kept so far: the table disagrees until it is
    mended. Where no audience's do, it is a row that none of them accounts for: then all disagree."""
    changes = {audience: change for audience, change in by_audience.items() if not is_zero(change)}
    if not changes:
        changes = dict.fromkeys(by_audience, (0, 1))
    audience_sums.add(tx.conn, name, changes)
    since = max(tx.state.cursor_ms, 1)
    tx.conn.executemany(
        "UPDATE _db_audience_sums SET disagrees = ? WHERE tbl = ? AND audience = ? AND NOT disagrees",
        [(since, name, audience) for audience in changes],
    )
    note(tx, name, why, tx.state.cursor_ms)


def is_zero(change: Sum) -> bool:
    """Whether a change of a sum is none, as sums are reduced."""
    return change[0] == 0 and audience_sums.reduced(change[1]) == 0
