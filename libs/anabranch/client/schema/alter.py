"""A table of the file becomes another one: by columns that come, go and are renamed, without a pull; or, where it can't
become it so, made anew and pulled.

What has to be right afterwards, in the same transaction:

* **rows**: a column that came has its initial value in every row; what is gone is gone (``altering``);
* **base images** of rows that the queue touches: they hold whole rows, and are converted one by one;
* **shown rows** of these: the pending changes on top of the base are shown anew, as values for columns that are gone
  are no longer shown. Batches themselves are never changed;
* **sums**: initial values are in no sum. Where a column went whose values were, the rows are read and summed up once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from itertools import islice
from typing import Any

from anabranch.client.events import State
from anabranch.client.file import audience_sums
from anabranch.client.file.believed import UNREADABLE
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, device_table, quote
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.queue import settle
from anabranch.client.reading import audience_checks, sums
from anabranch.client.reading.effects import Folded
from anabranch.client.schema import altering
from anabranch.client.schema.held import Held, hold
from anabranch.client.schema.make import (
    REFUSALS,
    drop_pull,
    find_pending,
    forget_queued,
    give_up,
    is_refusal,
    make_anew,
)
from anabranch.client.schema.names import with_a_name
from anabranch.client.schema.own_objects import tell_not_kept
from anabranch.client.schema.views import columns_of, without_estimate
from anabranch.v1 import snapshot_pb2
from anabranch.values import Cell, Column, Kind, key_cells
from anabranch.values.canonical import table_sum
from anabranch.values.sqlite import storer

_AT_ONCE = 5_000
_PULLED = "its columns have changed"


def become(
    tx: Tx, before: Held, view: snapshot_pb2.Table, today: snapshot_pb2.Table, pendings: Pendings
) -> DeviceTable | None:
    """Alter the table to ``view``, which must not be told apart from it (``views``), and keep both descriptions. Its
    pull under way, if there is one, begins anew. None where SQLite can't hold it so: it is given up, which is told."""
    old = device_table(before.view)
    view, new = with_a_name(tx, old, view)
    same_rows = list(columns_of(before.view).items()) == list(columns_of(view).items())
    if same_rows and altering.is_same(old, new):
        return _relabel(tx, before, new, view, today, pendings)
    drop_pull(tx, old)
    recount = before.stage == "live" and not same_rows and _sums_change(tx, old, new)
    pendings.forget_if_undone(tx)
    not_kept = _unless_refused(tx, old, new, lambda: altering.alter_table(tx, old, new))
    if not_kept is None:
        return None
    hold(tx, view, today)
    tell_not_kept(tx, not_kept, new.sql_name)
    if not same_rows:
        _convert_bases(tx, old, new)
    tx.tables_changed()
    if recount:
        _recount(tx, new)
    if not same_rows or old.policy != new.policy:
        show_queued(tx, new, pendings)
    return new


def _unless_refused(tx: Tx, old: DeviceTable, new: DeviceTable, do: Callable[[], list[str]]) -> list[str] | None:
    """The result of ``do``, which puts a table in the place of another. None where SQLite can't hold it: then the one
    before is given up, which is told."""
    try:
        return do()
    except REFUSALS as error:
        if not is_refusal(error):
            raise
        give_up(tx, old)
        forget_queued(tx, old.name)
        tx.tables_changed()
        tx.events.append(State("set_aside", f"SQLite can't hold it: {error}", new.sql_name))
        return None


def pull_anew(tx: Tx, before: Held, view: snapshot_pb2.Table, today: snapshot_pb2.Table) -> DeviceTable | None:
    """Put an empty table in the place of one that can't become it, to be pulled. None where SQLite can't hold it: the
    one before is given up, which is told."""
    old = device_table(before.view)
    view, new = with_a_name(tx, old, view)
    drop_pull(tx, old)
    if _unless_refused(tx, old, new, lambda: _make_anew(tx, old, new)) is None:
        return None
    hold(tx, view, today)
    tx.tables_changed()
    # The rows that the queue touches are noted by their keys, which may be others by now.
    forget_queued(tx, new.name)
    find_pending(tx, {new.name: new})
    set_aside_changed(tx, new)
    return new


def _make_anew(tx: Tx, old: DeviceTable, new: DeviceTable) -> list[str]:
    """As ``alter_table`` does: all of it, or nothing; and nothing of the app's that was not kept is told."""
    with tx.savepoint():
        make_anew(tx, old, new)
    return []


def set_aside_changed(tx: Tx, table: DeviceTable) -> None:
    """Note that a table is to be pulled because it is another one than it was."""
    tx.conn.execute(
        "UPDATE _db_tables SET stage = CASE stage WHEN 'new' THEN 'new' ELSE 'aside' END, reason = ? WHERE name = ?",
        (_PULLED, table.name),
    )
    tx.events.append(State("set_aside", _PULLED, table.sql_name))


def _relabel(
    tx: Tx,
    before: Held,
    new: DeviceTable,
    view: snapshot_pb2.Table,
    today: snapshot_pb2.Table,
    pendings: Pendings,
) -> DeviceTable:
    """Keep other descriptions of a table whose rows and names stay."""
    old = device_table(before.view)
    if not hold(tx, view, today) or without_estimate(view) == without_estimate(before.view):
        return tx.tables[new.name]
    pendings.forget_if_undone(tx)
    tx.tables_changed()
    if old.policy != new.policy:
        show_queued(tx, new, pendings)
    return new


def _sums_change(tx: Tx, old: DeviceTable, new: DeviceTable) -> bool:
    """Whether rows that are here have a part in their sum that ``new`` does not have."""
    gone = [column for column in old.table.columns if column.name not in new.table.index]
    return any(not _is_initial(tx.conn, old, column) for column in gone)


def _is_initial(conn: sqlite3.Connection, table: DeviceTable, column: Column) -> bool:
    """Whether every row has a column's initial value, so that no sum has one; False where that is not clear at once."""
    if not column.initial:
        return False
    initial, store = column.initial[0], storer(column)
    if initial is not None and column.kind is Kind.DOUBLE:
        return False  # SQLite takes the two zeros for one.
    stored: Any = initial if store is None or initial is None else store(initial)
    other = f"{quote(column.sql_name)} COLLATE BINARY IS NOT ?"
    if conn.execute(f"SELECT 1 FROM {table.quoted} WHERE {other} LIMIT 1", (stored,)).fetchone() is not None:
        return False
    try:
        return all(
            base[table.table.index[column.name]] == initial for _, base in _bases(conn, table) if base is not None
        )
    except UNREADABLE:
        return False


def _bases(conn: sqlite3.Connection, table: DeviceTable) -> Iterator[tuple[str, tuple[Cell, ...] | None]]:
    rows = conn.execute("SELECT key, row FROM _db_base WHERE tbl = ? ORDER BY key", (table.name,)).fetchall()
    for key, data in rows:
        yield key, None if data is None else table.from_bytes(data)


def _convert_bases(tx: Tx, old: DeviceTable, new: DeviceTable) -> None:
    """Give the base images the columns of ``new``."""
    places = [old.table.index.get(name) for name in new.table.column_names]

    def converted(base: tuple[Cell, ...]) -> list[Cell]:
        return [blank if place is None else base[place] for place, blank in zip(places, new.blank, strict=True)]

    try:
        images = [
            (new.to_bytes(converted(base)), new.name, key) for key, base in _bases(tx.conn, old) if base is not None
        ]
    except UNREADABLE as error:
        settle.set_aside(tx, new.name, f"a row of it can't be read: {error!r}")
        return
    tx.conn.executemany("UPDATE _db_base SET row = ? WHERE tbl = ? AND key = ?", images)


def _recount(tx: Tx, table: DeviceTable) -> None:
    """Keep the sums that the base rows themselves have."""
    try:
        with closing(sums.base_rows(tx.conn, table)) as rows:
            if table.restricted:
                found = audience_checks.totals(tx.conn, table, rows)
                count, total = found.count, found.total
                audience_sums.recounted(tx.conn, table.name, found.by_audience)
            else:
                count, total = table_sum(table.encoder, rows)
    except UNREADABLE as error:
        settle.set_aside(tx, table.name, f"a row of it can't be read: {error!r}")
        return
    sums.keep(tx, table.name, count, total)


def show_queued(tx: Tx, table: DeviceTable, pendings: Pendings) -> None:
    """Show the rows of a live table anew that the queue touches. The pull of any other shows them."""
    (stage,) = tx.conn.execute("SELECT stage FROM _db_tables WHERE name = ?", (table.name,)).fetchone()
    if stage != "live":
        return
    found = tx.conn.execute("SELECT DISTINCT key FROM _db_pending_rows WHERE tbl = ?", (table.name,)).fetchall()
    keys = iter([key for (key,) in found])
    while some := list(islice(keys, _AT_ONCE)):
        touched = dict(_with_cells(table, some))
        settle.show(tx, Folded(), {table.name: touched}, pendings, "remote", {})


def _with_cells(table: DeviceTable, keys: Iterable[str]) -> Iterator[tuple[str, tuple[Cell, ...]]]:
    """Key texts with the keys that they stand for. One of a key that the table does not have any more, which an
    earlier release may have left, stands for no row."""
    for key in keys:
        with suppress(*UNREADABLE):
            yield key, tuple(key_cells(table.table, key))
