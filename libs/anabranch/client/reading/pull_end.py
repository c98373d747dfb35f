"""The end of a pull: one transaction puts its tables in place."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from anabranch.client.errors import CallFailed
from anabranch.client.file import audience_sums, guards, row_audiences, state
from anabranch.client.file.audience_sums import NO_ROWS
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, quote
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.overlay.rebase import overlaid, tell, write_bases
from anabranch.client.queue import settle
from anabranch.client.reading import audience_checks, held, seen, sums
from anabranch.client.reading.differences import count_base, differences
from anabranch.client.reading.pull_parts import GivenUpError
from anabranch.client.reading.rewind import RECOVERING
from anabranch.errors import AnabranchError
from anabranch.v1 import position_pb2, snapshot_pb2


class NotWholeError(AnabranchError):
    """The rows that a pull brought do not have the sum that the server sent."""

    def __init__(self, table: DeviceTable, count: int) -> None:
        super().__init__(f"the pull of {table.sql_name} did not bring its {count} rows, or is older than the cursor")
        self.table = table.name


def finish(tx: Tx, pendings: Pendings, names: Sequence[str], whole: bool, confirmed: state.Seen) -> None:
    """Put the pulled tables ``names`` in place. ``whole``: they are all of the database; ``confirmed``: the greatest
    position seen, which the server has, too.

    Raises:
        GivenUpError: a table is no longer among those of the file.
        NotWholeError: the rows of a table are not those that the server sent.
        CallFailed: a table is not complete, or another epoch has begun.
        sqlite3.IntegrityError: a constraint of the app's own does not take the rows.
    """
    newest: position_pb2.Position | None = None
    if not tx.tables.keys() >= set(names):
        raise GivenUpError
    _hold(tx, names, whole)
    for name in names:
        table = tx.tables[name]
        staged, first, last, epoch, token, count, digest, done = tx.conn.execute(
            """SELECT pull_table, pull_first_ms, pull_last_ms, pull_epoch, pull_token, pull_count, pull_hash,
               pull_done FROM _db_tables WHERE name = ?""",
            (name,),
        ).fetchone()
        if not done:
            raise CallFailed("ABORTED", "", f"the pull ended before {table.sql_name} was complete", again=True)
        if not whole and first < tx.state.cursor_ms:
            raise NotWholeError(table, count)
        if newest is None or last > newest.server_timestamp_ms:
            newest = position_pb2.Position(epoch=epoch, server_timestamp_ms=last, token=token)
        if staged is not None:
            _replace(tx, pendings, table, staged, first)
        told = _told(tx, name)
        # Else the sum is of the rows here, and equals the server's once the table has caught up.
        summed = first == last and not told.without_sums and first >= table.changed_ms
        if table.restricted:
            count, digest = _sum_up_restricted(tx, table, told, summed)
        elif not summed or len(digest) != 16:
            count, digest = sums.of_rows(tx.conn, table)
        elif count != count_base(tx, table):
            raise NotWholeError(table, count)
        tx.conn.execute(
            """UPDATE _db_tables SET stage = 'live', reason = '', first_ms = ?, last_ms = ?, count = ?, hash = ?,
               verified = ?, disagrees = 0, pull_table = NULL, pull_done = 0, pull_first_ms = NULL,
               pull_last_ms = NULL, pull_resume = x'', pull_told = x'', gain = '', gain_resume = x'' WHERE name = ?""",
            (first, last, count, digest, int(not summed), name),
        )
    if whole and newest is not None:
        (cursor,) = tx.conn.execute("SELECT min(first_ms) FROM _db_tables WHERE stage = 'live'").fetchone()
        new_history(tx, newest, confirmed, cursor)
    elif newest is not None and tx.state.greatest_seen == confirmed:
        seen.saw(tx, newest)
    tx.set(pulls=tx.state.pulls + 1)
    if held.owed(tx.conn, tx.tables.values()):
        tx.set(gains_due=1)
    tx.conn.execute(
        "UPDATE _db_mutations_queue_dead SET still_shown = 0 "
        "WHERE NOT EXISTS (SELECT 1 FROM _db_tables WHERE stage = 'aside')"
    )
    settle.pulled(tx, pendings)


def _told(tx: Tx, name: str) -> snapshot_pb2.PullResponse:
    (data,) = tx.conn.execute("SELECT pull_told FROM _db_tables WHERE name = ?", (name,)).fetchone()
    return snapshot_pb2.PullResponse.FromString(data)


def _hold(tx: Tx, names: Sequence[str], whole: bool) -> None:
    """Hold the audiences that were told at the earliest moment, from which on the log tells of changes. Where some are
    held already, and not all is pulled, the log does so from the cursor."""
    restricted = [name for name in names if tx.tables[name].restricted]
    if not restricted or not (whole or not tx.state.held_digest):
        return
    moments = dict(tx.conn.execute("SELECT name, pull_last_ms FROM _db_tables WHERE pull_last_ms IS NOT NULL"))
    earliest = min(restricted, key=lambda name: moments.get(name, 0))
    held.told(tx, frozenset(_told(tx, earliest).audiences.values))


def _sum_up_restricted(tx: Tx, table: DeviceTable, told: snapshot_pb2.PullResponse, summed: bool) -> tuple[int, bytes]:
    """Keep the sums of the audiences of a table that has its pulled rows; return that of the table: the server's where
    it has ``told`` them of just these rows (``summed``), else the rows' own.

    Raises:
        NotWholeError: an audience has not as many rows as the server has sent.
    """
    complete = held.held(tx.conn).intersection(told.audiences.values)
    audience_sums.clear(tx.conn, table.name)
    rows, by_audience = row_audiences.counts(tx.conn, table.name)
    if rows != count_base(tx, table):
        raise NotWholeError(table, rows)
    theirs = {s.audience: (s.count, int.from_bytes(s.hash, "big")) for s in told.sums}
    if summed:
        for audience in told.audiences.values:
            if by_audience[audience] != theirs.get(audience, NO_ROWS)[0]:
                raise NotWholeError(table, theirs.get(audience, NO_ROWS)[0])
        if rows == sum(count for count, _ in theirs.values()):
            # Each row is of one audience: no row need be read to sum them up.
            audience_sums.keep(tx.conn, table.name, {one: theirs.get(one, NO_ROWS) for one in complete})
            return rows, audience_sums.as_bytes(sum(total for _, total in theirs.values()))
    with closing(sums.base_rows(tx.conn, table)) as base:
        found = audience_checks.totals(tx.conn, table, base)
    kept = theirs if summed else found.by_audience
    audience_sums.keep(tx.conn, table.name, {one: kept.get(one, NO_ROWS) for one in complete})
    return found.count, audience_sums.as_bytes(found.total)


def new_history(tx: Tx, newest: position_pb2.Position, confirmed: state.Seen, cursor: int) -> None:
    """Set the ``cursor`` of a file whose every table was pulled. In another epoch known positions are no longer
    valid: verdicts are asked for again, and no basis lies beyond the cursor.

    Raises:
        CallFailed: another epoch has begun, and the file has seen more of the one before than the server was asked
            for.
    """
    current = tx.state
    unchanged = current.greatest_seen == confirmed
    moved = current.greatest_epoch not in ("", newest.epoch)
    if moved and not unchanged:
        raise CallFailed("ABORTED", "", "a new epoch has begun during the pull", again=True)
    if moved or current.snapshot_due == RECOVERING:
        tx.conn.execute("UPDATE _db_mutations_queue SET server_timestamp_ms = NULL, verdict = NULL, seen = 0")
        tx.conn.execute("UPDATE _db_mutations_queue SET basis = ? WHERE basis > ?", (cursor, cursor))
        seen.begin_anew(tx, newest)
    # Where the cursor goes back, to a base that was published earlier, the log shows them once more.
    tx.conn.execute("UPDATE _db_mutations_queue SET seen = 0 WHERE server_timestamp_ms > ?", (cursor,))
    tx.set(cursor_ms=cursor, snapshot_due=0)
    if unchanged:
        # The next call presents the position that was seen meanwhile.
        seen.saw(tx, newest)


def _replace(tx: Tx, pendings: Pendings, table: DeviceTable, staged: str, first_ms: int) -> None:
    """Replace a table's rows by the pulled ones, which include all groups up to ``first_ms``; rows that pending
    batches touch show them on top."""
    conn = tx.conn
    pending = _pending_keys(tx, pendings, table.name)
    before = table.read_by_text(conn, pending)
    if tx.wants_rows:
        differences(tx, table, staged, set(pending))
    pulled = table.read_by_text(conn, pending, staged)
    with tx.writing(table, guards.MANY):
        conn.execute(f"DELETE FROM {table.quoted}")
        conn.execute(
            f"INSERT INTO {table.quoted} ({table.columns_sql}) SELECT {table.columns_sql} FROM {quote(staged)}"
        )
    conn.execute(f"DROP TABLE {quote(staged)}")
    if table.restricted:
        row_audiences.move(conn, staged, table.name)
    conn.execute("DELETE FROM _db_base WHERE tbl = ?", (table.name,))
    parts_of = pendings.load(tx, table.name, pending, first_ms)
    load, store = table.codec.load, table.codec.store
    bases = {text: load(pulled[text]) if text in pulled else None for text in pending}
    write_bases(tx, table, bases.items(), replace=True)
    writes, deletes = [], []
    for text, key in pending.items():
        shown = overlaid(table, bases[text], parts_of.get(text, ()))
        stored = None if shown is None else store(shown)
        if stored is None:
            deletes.append(key)
        else:
            writes.append(stored)
        old = before.get(text)
        if not table.codec.same(old, stored):
            tell(tx, table, old, stored, "snapshot")
    with tx.writing(table, len(writes) + len(deletes)):
        conn.executemany(table.upsert_sql, writes)
        conn.executemany(table.delete_sql, deletes)


def _pending_keys(tx: Tx, pendings: Pendings, table: str) -> dict[str, tuple[Any, ...]]:
    rows = tx.conn.execute("SELECT DISTINCT batch FROM _db_pending_rows WHERE tbl = ?", (table,))
    return pendings.keys_of(tx, [b for (b,) in rows]).get(table, {})
