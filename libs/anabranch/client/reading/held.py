"""The audiences whose rows the file holds: told by the server, changed by the log, dropped where they are lost.

States of an audience: *not held*; *owed* in some tables (it was gained, and a table lacks its sum: see
``audience_sums``); *complete* (every live restricted table has all of its rows).

==================  =====================================================  ============================================
from                what happens                                           to
==================  =====================================================  ============================================
not held            a group, or a page's beginning, tells that it is the   owed in every live restricted table;
                    reader's                                               ``gains_due`` is set
owed                its rows were pulled into the table (``gains``), or    complete, once that is so of every table
                    the whole table was
owed, complete      a group, a page's beginning, or the app's choice       not held: rows that the file holds through no
                    takes it away                                          other one are removed in the same transaction
==================  =====================================================  ============================================

While an audience is owed, the log brings new rows of it, and changes of those that are here; changes of others find no
row, and are left for the pull, which is of a later moment.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping

from anabranch.client.file import audience_sums, choice, guards, row_audiences
from anabranch.client.file.believed import UNREADABLE
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.file.sets import change_in
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.overlay.rebase import Patch
from anabranch.client.queue import settle
from anabranch.client.reading import audience_checks
from anabranch.client.reading.effects import Folded
from anabranch.client.schema.make import drop_pull, report_gone
from anabranch.v1 import verdict_pb2
from anabranch.values import key_cells
from anabranch.wire.audiences import digest

_NO_SUM = bytes(16)


def held(conn: sqlite3.Connection) -> frozenset[str]:
    """The audiences that the file holds, complete or owed."""
    return frozenset(audience for (audience,) in conn.execute("SELECT audience FROM _db_held"))


def owed(conn: sqlite3.Connection, tables: Iterable[DeviceTable]) -> dict[str, list[str]]:
    """The audiences, in order, whose rows are still to be pulled, by table. One that is not live is pulled whole."""
    live = {name for (name,) in conn.execute("SELECT name FROM _db_tables WHERE stage = 'live'")}
    all_held = held(conn)
    found = {}
    for table in tables:
        if table.restricted and table.name in live:
            lacking = all_held - audience_sums.complete(conn, table.name)
            if lacking:
                found[table.name] = sorted(lacking)
    return found


def told(tx: Tx, audiences: Collection[str]) -> None:
    """Take these for the audiences held: a pull of whole tables has brought the rows of all of them."""
    tx.conn.execute("DELETE FROM _db_held")
    tx.conn.executemany("INSERT INTO _db_held (audience) VALUES (?)", [(one,) for one in sorted(audiences)])
    tx.set(held_digest=digest(audiences))


def become(tx: Tx, audiences: frozenset[str], pendings: Pendings) -> None:
    """Hold exactly these audiences from now on: where the file stands, the server says that they are the reader's."""
    before = held(tx.conn)
    change(tx, audiences - before, before - audiences, pendings, tx.state.cursor_ms)
    tx.set(held_digest=digest(audiences))


def change(tx: Tx, gained: Collection[str], lost: Collection[str], pendings: Pendings, position: int) -> None:
    """Drop what is lost at a position (milliseconds), rows included, and note what is to be pulled."""
    before = held(tx.conn)
    left = before - frozenset(lost)
    gone = before - left
    if gone:
        change_in(tx.conn, "DELETE FROM _db_held WHERE audience IN {in}", gone)
        audience_sums.forget(tx.conn, gone)
        dropped: dict[str, set[str]] = {}
        for table in tx.tables.values():
            if table.restricted:
                _end_pulls(tx, table, gone)
                dropped[table.name] = _drop_rows(tx, table, gone, left, pendings, position)
                audience_checks.note(tx, table.name, "", position)
        if any(dropped.values()):
            choice.forget_rows(tx, lambda mutation: not _is_in(dropped, tx.tables, mutation))
    new = frozenset(gained) - left
    tx.conn.executemany("INSERT INTO _db_held (audience) VALUES (?)", [(one,) for one in sorted(new)])
    if gone or new:
        tx.set(held_digest=digest(left | new))
    if new:
        tx.set(gains_due=1)


def _end_pulls(tx: Tx, table: DeviceTable, gone: Collection[str]) -> None:
    """End pulls under way that may have brought rows of lost audiences; they begin anew."""
    stage, under_way, gain = tx.conn.execute(
        "SELECT stage, pull_first_ms IS NOT NULL, gain FROM _db_tables WHERE name = ?", (table.name,)
    ).fetchone()
    if under_way:
        drop_pull(tx, table)
    elif stage == "live" and gain and not frozenset(gone).isdisjoint(json.loads(gain)):
        tx.conn.execute("UPDATE _db_tables SET gain = '', gain_resume = x'' WHERE name = ?", (table.name,))


def _drop_rows(
    tx: Tx, table: DeviceTable, gone: frozenset[str], left: frozenset[str], pendings: Pendings, position: int
) -> set[str]:
    """Remove the rows of a table that were held through lost audiences alone, as if the log had deleted them. Return
    their key texts."""
    dropped: set[str] = set()
    for keys in row_audiences.seen_through(tx.conn, table.name, gone, left):
        dropped.update(keys)
        try:
            patches: dict[str, Patch] = {
                key: (tuple(key_cells(table.table, key)), None, None, position, None) for key in keys
            }
        except (ValueError, TypeError):
            patches = {}
        settle.show(tx, Folded(patches={table.name: patches}), {}, pendings, "remote", {})
        if row_audiences.has_any(tx.conn, table.name, keys):
            # The table could not be changed row by row; not even then a row stays.
            _empty(tx, table)
    return dropped


def _is_in(
    dropped: Mapping[str, Collection[str]], tables: Mapping[str, DeviceTable], mutation: verdict_pb2.MutationVerdict
) -> bool:
    """Whether the row of a verdict is one of those that were dropped, or can't be told from them."""
    keys, table = dropped.get(mutation.table), tables.get(mutation.table)
    if not keys or table is None:
        return False
    try:
        key = [table.readers[i](v) for i, v in zip(table.table.key_index, mutation.key, strict=True)]
        return table.key_text(key) in keys
    except UNREADABLE:
        return True


def _empty(tx: Tx, table: DeviceTable) -> None:
    """Remove all rows of a table, which is pulled again."""
    report_gone(tx, table)
    with tx.writing(table, guards.MANY):
        tx.conn.execute(f"DELETE FROM {table.quoted}")
    tx.conn.execute("DELETE FROM _db_base WHERE tbl = ?", (table.name,))
    row_audiences.clear(tx.conn, table.name)
    audience_sums.clear(tx.conn, table.name)
    tx.conn.execute("UPDATE _db_tables SET count = 0, hash = ? WHERE name = ?", (_NO_SUM, table.name))
    settle.set_aside(tx, table.name, "rows that are no longer this device's could not be removed one by one")
