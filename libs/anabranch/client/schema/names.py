"""The names that tables get in a file, where other tables, or something of the app's, have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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
    reason = refused_name(new.sql_name)
    if not reason:
        taken = _taken(tx).get(_folded(new.sql_name))
        reason = "" if taken is None else f"the file has a {taken} of that name"
    if not reason:
        return view, new
    tx.events.append(State("not_renamed", f"its new name is {new.sql_name}: {reason}", old.sql_name))
    kept = snapshot_pb2.Table()
    kept.CopyFrom(view)
    kept.sql_name = "" if old.sql_name == old.name else old.sql_name
    return kept, device_table(kept)


def _taken(tx: Tx) -> dict[str, str]:
    """The names in the file that no table can get, folded, with what has them."""
    rows = tx.conn.execute("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view', 'index')")
    return {_folded(name): kind for name, kind in rows.fetchall()}


def _folded(name: str) -> str:
    """A name in the form in which SQLite compares it: only letters of ASCII have cases there."""
    return name.encode().lower().decode()


def make_room(tx: Tx, held: dict[str, Held], wanted: Mapping[str, str]) -> None:
    """Take from tables of the file the names that others are to have by the same change: until they get their own ones,
    they have names of ours, and are ``held`` so. ``wanted``: the names of all that the change is about, by identity.
    One that can't get its new name, as the app has something of that name, keeps what it has."""
    moving = _moving(tx, held, wanted)
    for name in moving:
        others = {_folded(sql_name) for other, sql_name in wanted.items() if other != name}
        if _folded(held[name].sql_name) in others:
            held[name] = _moved(tx, held[name])


def _moving(tx: Tx, held: Mapping[str, Held], wanted: Mapping[str, str]) -> list[str]:
    """The tables that get other names, by identity."""
    moving = dict[str, str]()
    for name, new in wanted.items():
        new = _folded(new)
        if name in held and name in tx.tables and _folded(held[name].sql_name) != new and not refused_name(new):
            moving[name] = new
    others = _taken(tx).keys() - {_folded(held[name].sql_name) for name in moving} if moving else set()
    # One that stays is in the way of the one that was to have its name.
    while staying := [name for name, new in moving.items() if new in others]:
        for name in staying:
            del moving[name]
            others.add(_folded(held[name].sql_name))
    return list(moving)


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
