"""A schema change of the log: the file's tables become what it says, in the transaction that applies its group.

A table is diffed by identities against what the file has. What becomes of one:

=====================================  ============================================================================
of the change                          of the file
=====================================  ============================================================================
changed, with its rows                 altered in place (``alter``); a table that was described at this position, or
                                       at a later one, is that already
came with it (``created``)             made, empty and live: its rows follow in the same group. Not where the device
                                       has chosen other tables, nor for an app that is tied to an earlier version
can't go on (``pulled``, another key)  made anew, empty, and pulled
dropped                                given up; what the queue holds for it stays, and is the server's to judge
not in the file, and did not come      left to Describe, which is asked after every schema change: it was registered
with it                                by hand, and has rows already
=====================================  ============================================================================

An app that is tied to a schema version keeps its names through later changes (``views``).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from anabranch.client.events import Schema, State
from anabranch.client.file import audience_sums, choice
from anabranch.client.file.audience_sums import NO_ROWS
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTables
from anabranch.client.file.state import FileState
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.overlay.rebase import write_bases
from anabranch.client.queue import settle
from anabranch.client.schema.alter import become, pull_anew, show_queued
from anabranch.client.schema.held import Held, all_held
from anabranch.client.schema.kinds import unreadable
from anabranch.client.schema.make import create, find_pending, forget_queued, give_up
from anabranch.client.schema.names import make_room
from anabranch.client.schema.own_objects import drop_broken_triggers
from anabranch.client.schema.views import carried_on, is_told_apart, view_of
from anabranch.v1 import snapshot_pb2


@dataclass
class FollowedChange:
    """The result of a schema change, by identities: tables whose sums of before mean nothing any more (``changed``),
    and those of them that wait to be pulled, or are gone (``aside``), or have come and are live (``came``)."""

    changed: set[str] = field(default_factory=set)
    aside: set[str] = field(default_factory=set)
    came: set[str] = field(default_factory=set)


def follow(tx: Tx, data: bytes, position: int, audiences: Collection[str], pendings: Pendings) -> FollowedChange:
    """Alter the file by the schema change with which a group begins, a serialized SchemaChange. ``audiences``: those
    that the file holds."""
    followed = FollowedChange()
    try:
        change = snapshot_pb2.SchemaChange.FromString(data)
    except DecodeError as error:
        for name in tx.tables:
            settle.set_aside(tx, name, f"a change of the server's schema can't be read: {error}")
        tx.set(describe_due=1)
        followed.changed = followed.aside = set(tx.tables)
        return followed
    pendings.forget_if_undone(tx)
    held = {name: one for name, one in all_held(tx.conn).items() if one.today.changed_position < position}
    told_before = dict(tx.tables)
    for name in change.dropped:
        if held.pop(name, None) is not None:
            _drop(tx, name, followed)
    if not _keeps_names(tx.state, change.version):
        make_room(tx, held, {message.name: message.sql_name or message.name for message in change.tables})
    for message in change.tables:
        state = unreadable(message)
        if message.name in held:
            _change(tx, change, message, held[message.name], position, pendings, followed, state)
        elif message.name not in tx.tables and _comes(tx.state, change, message):
            _come(tx, message, position, audiences, pendings, followed, state)
    _end(tx, change.version, position)
    names = [told_before[n].sql_name for n in change.dropped if n in followed.changed and n in told_before]
    names += [tx.tables.told(message.name) for message in change.tables if message.name in followed.changed]
    if names:
        tx.events.append(Schema(change.version, tuple(names), "after"))
    return followed


def about_to_follow(current: FileState, tables: DeviceTables, data: bytes, position: int) -> Schema | None:
    """The event for a schema change that is about to be applied to ``tables``; None where it changes none of them."""
    try:
        change = snapshot_pb2.SchemaChange.FromString(data)
    except DecodeError:
        return Schema(0, tuple(tables.by_sql_name), "before")
    there = [name for name in (*change.dropped, *(message.name for message in change.tables)) if name in tables]
    names = [tables.told(name) for name in there if tables[name].changed_ms < position]
    names += [m.sql_name or m.name for m in change.tables if m.name not in tables and _comes(current, change, m)]
    return Schema(change.version, tuple(names), "before") if names else None


def _comes(current: FileState, change: snapshot_pb2.SchemaChange, message: snapshot_pb2.Table) -> bool:
    """Whether a table that the file does not have came with the change, and is one that the app is to have."""
    if message.name not in change.created or _keeps_names(current, change.version):
        return False
    return choice.is_chosen(current.choice, message.name, message.sql_name or message.name)


def _end(tx: Tx, version: int, position: int) -> None:
    drop_broken_triggers(tx)
    tx.set(ddl_version=max(tx.state.ddl_version, version), describe_at=max(tx.state.describe_at, position, 1))


def _keeps_names(current: FileState, version: int) -> bool:
    """Whether a change to ``version`` is one that the app does not know of."""
    return 0 < current.app_version < version


def _drop(tx: Tx, name: str, followed: FollowedChange) -> None:
    give_up(tx, tx.tables[name])
    forget_queued(tx, name)
    tx.tables_changed()
    followed.changed.add(name)
    followed.aside.add(name)


def _change(
    tx: Tx,
    change: snapshot_pb2.SchemaChange,
    message: snapshot_pb2.Table,
    before: Held,
    position: int,
    pendings: Pendings,
    followed: FollowedChange,
    state: State | None,
) -> None:
    name = message.name
    followed.changed.add(name)
    if state is not None:
        # Rows that would not be kept up to date are not shown.
        _drop(tx, name, followed)
        tx.events.append(state)
        return
    today = carried_on(before.today, message, position)
    view = view_of(today, before.naming if _keeps_names(tx.state, change.version) else None)
    if name in change.pulled or is_told_apart(before.today, today):
        pull_anew(tx, before, view, today)
        followed.aside.add(name)
    elif become(tx, before, view, today, pendings) is None:
        followed.aside.add(name)


def _come(
    tx: Tx,
    message: snapshot_pb2.Table,
    position: int,
    audiences: Collection[str],
    pendings: Pendings,
    followed: FollowedChange,
    state: State | None,
) -> None:
    """Make a table that came with the change."""
    name = message.name
    if state is not None:
        tx.events.append(state)
        return
    today = carried_on(snapshot_pb2.Table(restricted=message.restricted), message, position)
    table = create(tx, today)
    if table is None:
        return
    followed.changed.add(name)
    followed.came.add(name)
    # As after a pull of the moment before: the group's effects are what it has.
    tx.conn.execute(
        "UPDATE _db_tables SET stage = 'live', first_ms = ?, last_ms = ? WHERE name = ?",
        (position - 1, position - 1, name),
    )
    tx.tables_changed()
    if table.restricted:
        audience_sums.keep(tx.conn, name, dict.fromkeys(audiences, NO_ROWS))
    find_pending(tx, {name: table})
    keys = [key for (key,) in tx.conn.execute("SELECT DISTINCT key FROM _db_pending_rows WHERE tbl = ?", (name,))]
    write_bases(tx, table, [(key, None) for key in keys], replace=False)
    show_queued(tx, table, pendings)
