"""The names that tables get in a file, where other tables, or something of the app's, have them."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from anabranch.client.events import State
from anabranch.client.file import guards, layout
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, device_table, quote
from anabranch.client.schema.held import Held, hold
from anabranch.client.schema.make import refused_name
from anabranch.v1 import snapshot_pb2

_MOVED = f"{layout.PREFIX}moved"


def with_a_name(tx: Tx, old: DeviceTable, view: snapshot_pb2.Table) -> tuple[snapshot_pb2.Table, DeviceTable]:
    """The view, and the table that it describes: under the name that it has, where another table, view or index in the
    file has its new one already, which is told."""
    new = device_table(view)
    if _folded(old.sql_name) == _folded(new.sql_name):
        return view, new
    reason = refused_name(new.sql_name) or in_the_way(tx.conn, new.sql_name)
    if not reason:
        return view, new
    tx.events.append(not_renamed(old.sql_name, new.sql_name, reason))
    kept = under_name(view, old.sql_name)
    return kept, device_table(kept)


def not_renamed(old: str, new: str, reason: str) -> State:
    """The state to tell of a table that keeps a name."""
    return State("not_renamed", f"its new name is {new}: {reason}", old)


def under_name(view: snapshot_pb2.Table, sql_name: str) -> snapshot_pb2.Table:
    """A view under another name."""
    kept = snapshot_pb2.Table()
    kept.CopyFrom(view)
    kept.sql_name = "" if sql_name == view.name else sql_name
    return kept


def in_the_way(conn: sqlite3.Connection, sql_name: str) -> str:
    """Why a table can't get a name for what the file has; "" where it can."""
    taken = _taken(conn).get(_folded(sql_name))
    return "" if taken is None else f"the file has a {taken} of that name"


def _taken(conn: sqlite3.Connection) -> dict[str, str]:
    """The names in the file that no table can get, folded, with what has them."""
    rows = conn.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view', 'index')")
    return {_folded(name): kind for name, kind in rows.fetchall()}


def _folded(name: str) -> str:
    """A name in the form in which SQLite compares it: only letters of ASCII have cases there."""
    return name.encode().lower().decode()


@dataclass(frozen=True)
class Names:
    """The names that tables get. ``moving``: those that get other names than they have, by identity; ``refused``: those
    that can't get theirs, with the reason."""

    moving: Collection[str]
    refused: Mapping[str, str]


def names_of(
    conn: sqlite3.Connection, held: Mapping[str, Held], wanted: Mapping[str, str], gone: Collection[str] = ()
) -> Names:
    """The names that the tables of a change get, of those that they are to have (``wanted``, by identity). ``gone``:
    names of tables that go by it."""
    moving, refused = dict[str, str](), dict[str, str]()
    for name, new in wanted.items():
        if name not in held or _folded(held[name].sql_name) != _folded(new):
            if reason := refused_name(new):
                refused[name] = reason
            else:
                moving[name] = _folded(new)
    if not moving:
        return Names((), refused)
    taken = _taken(conn)
    for sql_name in (*gone, *(held[name].sql_name for name in moving if name in held)):
        taken.pop(_folded(sql_name), None)
    # One that stays is in the way of the one that was to have its name.
    while staying := [name for name, new in moving.items() if new in taken]:
        for name in staying:
            refused[name] = f"the file has a {taken[moving.pop(name)]} of that name"
        taken |= {_folded(held[name].sql_name): "table" for name in staying if name in held}
    return Names([name for name in moving if name in held], refused)


def make_room(tx: Tx, held: dict[str, Held], wanted: Mapping[str, str]) -> None:
    """Take from tables of the file the names that others are to have by the same change: until they get their own ones,
    they have names of ours, and are ``held`` so. ``wanted``: the names of all that the change is about, by identity.
    One that can't get its new name, as the app has something of that name, keeps what it has."""
    for name in names_of(tx.conn, held, wanted).moving:
        others = {_folded(sql_name) for other, sql_name in wanted.items() if other != name}
        if _folded(held[name].sql_name) in others:
            held[name] = _moved(tx, held[name])


def _moved(tx: Tx, one: Held) -> Held:
    """Give a table a name of ours, for a part of the transaction."""
    table = tx.tables[one.name]
    moved = snapshot_pb2.Table()
    moved.CopyFrom(one.view)
    moved.sql_name = f"{_MOVED}:{one.name}"
    guards.take(tx.conn, table.sql_name)
    # Views and triggers of the app's go on with the names.
    tx.conn.execute("PRAGMA legacy_alter_table = ON")
    try:
        tx.conn.execute(f"ALTER TABLE {table.quoted} RENAME TO {quote(moved.sql_name)}")
    finally:
        tx.conn.execute("PRAGMA legacy_alter_table = OFF")
    hold(tx, moved, one.today)
    tx.tables_changed()
    return replace(one, view=moved)
