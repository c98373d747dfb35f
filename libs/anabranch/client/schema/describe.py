"""Make tables of the file from the server's Describe."""

from __future__ import annotations

from collections.abc import Callable

from anabranch.client.errors import CallFailed
from anabranch.client.events import State
from anabranch.client.file import choice as choosing
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, device_table, quote
from anabranch.client.schema.make import (
    create,
    drop_pull,
    find_pending,
    forget_queued,
    give_up,
    make_anew,
    serialized,
)
from anabranch.v1 import snapshot_pb2
from anabranch.values import Kind
from anabranch.values.sqlite import declared_type

_KINDS = frozenset(map(int, Kind))
_Held = tuple[str, str, int, int]


def apply_description(tx: Tx, response: snapshot_pb2.DescribeResponse) -> None:
    """Make the tables that are new, change those that have changed, drop those that are no longer synced; rows that are
    no longer shown because of it are reported as changes. A new table, and one that has changed, waits to be pulled.
    Tables that the device has not chosen are passed over."""
    choice = tx.state.choice
    known: dict[str, bytes] = dict(tx.conn.execute("SELECT name, value FROM _db_tables").fetchall())
    changed = False
    created: dict[str, DeviceTable] = {}
    for message in response.tables:
        name = message.name
        if name not in known and not choosing.is_chosen(choice, name, message.sql_name or name):
            continue
        if unreadable := [c.name for c in message.columns if not _is_known(c)]:
            # It stays among ``known``: the rows of before, which would not be kept up to date, are dropped below.
            reason = f"this release of the client does not know the type of: {', '.join(unreadable)}; a newer one does"
            tx.events.append(State("set_aside", reason, message.sql_name or name))
            continue
        value = serialized(message)
        old = known.pop(name, None)
        if old is None:
            table = create(tx, message)
            if table is not None:
                created[name] = table
        elif _columns(old) != _columns(value):
            changed = True
            _change(tx, snapshot_pb2.Table.FromString(old), message)
        elif old != value:
            tx.conn.execute("UPDATE _db_tables SET value = ? WHERE name = ?", (value, name))
            changed |= snapshot_pb2.Table.FromString(old).columns != message.columns
    if created:
        changed = True
        find_pending(tx, created)
    for name in known:
        changed = True
        give_up(tx, tx.tables[name])
        forget_queued(tx, name)
    if choice is not None:
        there = {name for message in response.tables for name in (message.name, message.sql_name)}
        for name in sorted(choice - there):
            tx.events.append(State("not_synced", "the server has no synced table of that name", name))
    tx.set(
        schema_version=response.state.schema_version,
        limits=response.limits.SerializeToString(),
        policy=response.policy.SerializeToString(),
        describe_due=0,
        **({"tables_version": tx.state.tables_version + 1} if changed else {}),
    )


def ask(
    tx: Tx, name: str, describe: Callable[[snapshot_pb2.DescribeRequest], snapshot_pb2.DescribeResponse]
) -> DeviceTable | None:
    """Ask the server for its present description of a table and keep it if its columns are still those of the file;
    None if they are not, or if the server can't be asked. The reader notices all other changes."""
    try:
        response = describe(snapshot_pb2.DescribeRequest(db_name=tx.state.db_name, node_state=tx.state.reader_state))
    except CallFailed:
        return None
    message = next((table for table in response.tables if table.name == name), None)
    (old,) = tx.conn.execute("SELECT value FROM _db_tables WHERE name = ?", (name,)).fetchone()
    if message is None or _columns(old) != _columns(value := message.SerializeToString(deterministic=True)):
        return None
    if value != old:
        tx.conn.execute("UPDATE _db_tables SET value = ? WHERE name = ?", (value, name))
        tx.set(tables_version=tx.state.tables_version + 1)
    return device_table(message)


def _is_known(column: snapshot_pb2.Column) -> bool:
    """Whether this release can hold the column's values: a newer server may have kinds that it has not."""
    return column.kind in _KINDS and (not column.element_kind or column.element_kind in _KINDS)


def _columns(value: bytes) -> tuple[list[_Held], list[str], bool, str]:
    """The parts that decide how a table is held: names, kinds, key and whether it is restricted, not policies and
    defaults."""
    message = snapshot_pb2.Table.FromString(value)
    columns = [_held(c) for c in message.columns]
    return columns, list(message.key_columns), message.restricted, message.sql_name


def _held(column: snapshot_pb2.Column) -> _Held:
    return column.name, column.sql_name, column.kind, column.element_kind


def _change(tx: Tx, before_it: snapshot_pb2.Table, message: snapshot_pb2.Table) -> None:
    """Added columns stay empty until the table is pulled again; for any other change the table is created anew: so also
    where it was not restricted before, as some of the rows may be for others alone."""
    old, new = device_table(before_it), device_table(message)
    drop_pull(tx, old)
    before, after = old.table.columns, new.table.columns
    kinds = [_held(c) for c in message.columns[: len(before)]]
    (stage,) = tx.conn.execute("SELECT stage FROM _db_tables WHERE name = ?", (new.name,)).fetchone()
    added_only = kinds == [_held(c) for c in before_it.columns] and old.sql_name == new.sql_name
    added_only &= before_it.restricted == message.restricted
    if stage != "new" and added_only and old.table.key_columns == new.table.key_columns:
        for column in after[len(before) :]:
            declared = f"{quote(column.sql_name)} {declared_type(column.kind)}".rstrip()
            tx.conn.execute(f"ALTER TABLE {new.quoted} ADD COLUMN {declared}")
    else:
        make_anew(tx, old, new)
    tx.conn.execute(
        "UPDATE _db_tables SET value = ?, stage = CASE stage WHEN 'new' THEN 'new' ELSE 'aside' END, "
        "reason = 'its columns have changed' WHERE name = ?",
        (serialized(message), new.name),
    )
    tx.events.append(State("set_aside", "its columns have changed", new.sql_name))
