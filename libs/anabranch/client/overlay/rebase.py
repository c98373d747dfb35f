"""The overlay: a row is shown as its base plus its pending changes, and this module changes either.

Invariant, held by every commit: a row that no batch in the queue touches is shown as its base, and has no entry in
``_db_base``; any other row has its base image there and shows ``merge.overlay.shown(base, pending)``. A table's sum is
kept over base images, and so are those of its audiences. Cost follows the rows touched: their pending batches are found
by index.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anabranch.client.events import Change, Origin
from anabranch.client.file import audience_sums
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.file.sets import change_in, put_rows, select_in
from anabranch.client.overlay.kept_sums import Audiences, Base, sum_up
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.queue import statements
from anabranch.client.writes.payload import RowPart
from anabranch.merge.overlay import shown
from anabranch.values import Cell

Patch = tuple[tuple[Any, ...], tuple[Cell, ...] | None, dict[int, Cell] | None, int, Audiences]
"""The new state of a row's base: its stored key; the row, all its cells; or, where that is None, changes of single
cells by their place in the row; or, where that is None, too, the row is gone; the position of the last effect in it;
and the row's audiences, in a restricted table, None where they are not known to change.

A bare tuple: a page makes thousands, and an object costs five times as much."""


def overlaid(table: DeviceTable, base: Sequence[Cell] | None, parts: Sequence[RowPart]) -> Base:
    """The shown row of cells: ``base`` with ``parts`` on it."""
    names = table.table.column_names
    before = None if base is None else dict(zip(names, base, strict=True))
    row = shown(before, [p.change for p in parts], table.policy)
    return None if row is None else tuple(row.get(n) for n in names)


def write_bases(tx: Tx, table: DeviceTable, images: Iterable[tuple[str, Base]], replace: bool) -> None:
    """Keep base images (key text, cells or None); without ``replace`` images that are already kept stay."""
    tx.conn.executemany(
        f"INSERT OR {'REPLACE' if replace else 'IGNORE'} INTO _db_base (tbl, key, row) VALUES (?, ?, ?)",
        [(table.name, key, None if row is None else table.to_bytes(row)) for key, row in images],
    )


def read_bases(conn: sqlite3.Connection, table: DeviceTable, keys: Iterable[str]) -> dict[str, Base]:
    """The base images kept for ``keys``."""
    rows = select_in(conn, "SELECT key, row FROM _db_base WHERE tbl = ? AND key IN {in}", keys, (table.name,))
    return {key: None if row is None else table.from_bytes(row) for key, row in rows}


def has_bases(tx: Tx) -> bool:
    """Whether any row may be shown otherwise than its base."""
    if tx.standing is not None and not tx.standing.queued and not tx.standing.based:
        # Without a queue nothing comes to be shown otherwise.
        return False
    return tx.conn.execute("SELECT 1 FROM _db_base LIMIT 1").fetchone() is not None


def tell(tx: Tx, table: DeviceTable, old: Sequence[Any] | None, new: Sequence[Any] | None, origin: Origin) -> None:
    """Report that a row was shown as ``old`` and is now shown as ``new``, both stored, not both None; where somebody
    listens, and the app knows a column that has changed."""
    if not tx.wants_rows:
        return
    key, name = table.key_of(new if new is not None else old or ()), table.sql_name
    if new is None:
        tx.events.append(Change(name, "delete", key, (), None, origin))
    elif old is None:
        tx.events.append(Change(name, "insert", key, table.shown_columns(), table.shown(new), origin))
    else:
        differ = [a != b for a, b in zip(old, new, strict=True)]
        columns = table.shown_columns(differ)
        if columns or not table.hidden:
            tx.events.append(Change(name, "update", key, columns, table.shown(new), origin))


def rebase(
    tx: Tx,
    table: DeviceTable,
    patches: Mapping[str, Patch],
    touched: Mapping[str, tuple[Any, ...]],
    pendings: Pendings,
    origin: Origin,
    lenient_ms: int = 0,
) -> list[str]:
    """Change bases by ``patches`` (by key text) and show again these rows and the ``touched`` ones (key text to stored
    key), whose batches have left the queue or come to it.

    Gives the key texts of rows that a patch should have changed but the base lacks. Up to ``lenient_ms`` a pull may
    have seen the row's deletion already, and rows of audiences that are still to be pulled may be lacking.

    Raises:
        sqlite3.Error: SQLite does not take a row.
    """
    keys = {**{k: p[0] for k, p in patches.items()}, **touched}
    shown_rows = table.read_by_text(tx.conn, keys)
    # Base images outlive, within a transaction, the batches that have just left the queue.
    overlay = bool(touched) or has_bases(tx)
    parts_of = pendings.load(tx, table.name, keys) if overlay else {}
    bases = read_bases(tx.conn, table, keys) if overlay else {}
    as_base = {key: row for key, row in shown_rows.items() if key not in bases} if bases else shown_rows
    loaded = dict(zip(as_base, table.codec.load_rows(list(as_base.values())), strict=True))
    now: list[Base] = []
    changed = {key: patch[4] for key, patch in patches.items()}
    old, new = list[Base](), list[Base]()
    kept: list[tuple[str, Base]] = []
    dropped = list[str]()
    lacking: list[tuple[str, frozenset[str] | None]] = []
    for key in keys:
        patch = patches.get(key)
        old_base = new_base = bases[key] if key in bases else loaded.get(key)
        if patch is not None:
            _, row, changes, position, audiences = patch
            new_base = _changed(old_base, changes) if row is None else row
            if old_base is None and row is None and changes is not None and position > lenient_ms:
                lacking.append((key, audiences))
            old.append(old_base)
            new.append(new_base)
        if parts := parts_of.get(key):
            if key not in bases or patch is not None:
                kept.append((key, new_base))
            now.append(overlaid(table, new_base, parts))
        else:
            if key in bases:
                dropped.append(key)
            now.append(new_base)
    _show_changed(tx, table, keys, shown_rows, now, origin)
    _keep(tx, table, kept, dropped)
    sum_up(tx, table, changed, old, new)
    return _missing(tx, table, lacking)


def _show_changed(
    tx: Tx,
    table: DeviceTable,
    keys: Mapping[str, tuple[Any, ...]],
    shown: Mapping[str, tuple[Any, ...]],
    now: Sequence[Base],
    origin: Origin,
) -> None:
    """Show the rows of ``now``, one for each of ``keys``, where they are not as ``shown``, and tell of them."""
    writes, deletes = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    stored = iter(table.codec.store_rows([row for row in now if row is not None]))
    for (key, stored_key), new_shown in zip(keys.items(), now, strict=True):
        old_stored, new_stored = shown.get(key), None if new_shown is None else next(stored)
        if table.codec.same(old_stored, new_stored):
            continue
        if new_stored is None:
            deletes.append(stored_key)
        else:
            writes.append(new_stored)
        tell(tx, table, old_stored, new_stored, origin)
    _show(tx, table, writes, deletes)


def _missing(tx: Tx, table: DeviceTable, lacking: Sequence[tuple[str, frozenset[str] | None]]) -> list[str]:
    """Those of the rows that the base lacks, each with its audiences, that it should have."""
    if not lacking or not table.restricted:
        return [key for key, _ in lacking]
    complete = audience_sums.complete(tx.conn, table.name)
    return [key for key, whose in lacking if not complete.isdisjoint(whose or ())]


def _changed(base: Base, changes: Mapping[int, Cell] | None) -> Base:
    """A base with single cells changed; None where there is no base, or where the row is removed."""
    if base is None or changes is None:
        return None
    cells = list(base)
    for place, cell in changes.items():
        cells[place] = cell
    return tuple(cells)


def _show(tx: Tx, table: DeviceTable, writes: list[tuple[Any, ...]], deletes: list[tuple[Any, ...]]) -> None:
    if writes or deletes:
        with tx.writing(table, len(writes) + len(deletes)):
            if len(writes) > 1:
                put_rows(tx.conn, table.upsert, len(table.readers), writes)
            elif writes:
                # The way of a live change, for which no longer statement is made.
                tx.conn.execute(table.upsert_sql, writes[0])
            tx.conn.executemany(table.delete_sql, deletes)


def _keep(tx: Tx, table: DeviceTable, kept: list[tuple[str, Base]], dropped: Sequence[str]) -> None:
    if kept:
        write_bases(tx, table, kept, replace=True)
    if dropped:
        change_in(tx.conn, "DELETE FROM _db_base WHERE tbl = ? AND key IN {in}", dropped, (table.name,))


def release(tx: Tx, batch_ids: Sequence[str], pendings: Pendings) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Take batches out of the queue; return the rows that are to be shown again, for ``rebase``."""
    touched = pendings.keys_of(tx, batch_ids)
    left = pendings.coalesced_of(tx, batch_ids)
    statements.remove(tx.conn, batch_ids)
    pendings.leave(tx, left)
    return touched
