"""Values that lost a conflict, read from the server, and put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.client.events import ConflictEvent
from anabranch.client.file import choice
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.device_table import DeviceTable, DeviceTables
from anabranch.client.queue.settle import COLUMN_DROPPED, cause, lost_value, shown_key
from anabranch.client.remote import RemoteDb
from anabranch.client.writes.local import BatchBuilder, WriteChecks
from anabranch.v1 import resolver_pb2, value_pb2
from anabranch.wire.plain import plain_value


@dataclass(frozen=True, slots=True)
class Conflict:
    """A decision in which a value lost. ``position`` is its time, in milliseconds since 1970. ``key`` and
    ``losing_value`` have the form in which a read gives them, or that in which they were sent where the device has no
    such column. ``cause`` is "COLUMN_DROPPED" where the value lost because its column was dropped, else empty: then
    ``winning_batch_id`` is that of the schema change. A column that is gone has its identity for a name, with
    `` (gone)`` behind it where another column is called so. ``of``: the identities of table and column, by which the
    value is put back."""

    position: int
    table: str
    key: tuple[Any, ...]
    column: str
    losing_value: Any
    losing_batch_id: str
    losing_node_id: str
    losing_node_name: str
    winning_batch_id: str
    winning_node_id: str
    winning_node_name: str
    cause: str = ""
    of: tuple[str, str] | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Filter:
    """The conflicts to list: of one table, of the row with this key in it, won or lost by one node, decided at
    ``from_ms`` or later and before ``until_ms``, in milliseconds since 1970."""

    table: str | None = None
    key: Any = None
    node_id: str | None = None
    from_ms: int = 0
    until_ms: int | None = None


def request(db_name: str, wanted: Filter, tables: DeviceTables) -> resolver_pb2.ListConflictsRequest:
    """The request for the first page. Raises ValueError where the key does not fit the table."""
    key: list[value_pb2.Value] = []
    table = tables.named(wanted.table or "")
    if wanted.key is not None:
        if table is None:
            raise ValueError(f"a key needs a synced table, not {wanted.table!r}")
        cells = WriteChecks(table).key(wanted.key)
        index = table.table.index
        key = [table.writers[index[name]](cells[name]) for name in table.table.key_columns]
    return resolver_pb2.ListConflictsRequest(
        db_name=db_name,
        table=(wanted.table or "") if table is None else table.name,
        key=key,
        node_id=wanted.node_id or "",
        from_ms=wanted.from_ms,
        until_ms=wanted.until_ms or 0,
    )


def pages(file: DeviceFile, remote: RemoteDb, first: resolver_pb2.ListConflictsRequest) -> Iterator[Conflict]:
    """The conflicts in chosen tables, the newest first; each page is read when it is needed. Raises CallFailed."""
    parts: list[bytes] = []
    token = b""
    while True:
        page = resolver_pb2.ListConflictsRequest()
        page.CopyFrom(first)
        page.page_token = token
        response = remote.list_conflicts(page)
        tables, chosen = file.tables(), file.current().choice
        for message in response.conflicts:
            if message.table not in tables and not choice.is_chosen(chosen, message.table, message.table):
                continue
            parts.append(message.losing_value)
            if not message.losing_value_incomplete:
                yield _conflict(message, b"".join(parts), tables)
                parts.clear()
        token = response.next_page_token
        if not token:
            return


def _conflict(message: resolver_pb2.Conflict, data: bytes, tables: DeviceTables) -> Conflict:
    table = tables.get(message.table)
    dropped = message.cause == COLUMN_DROPPED
    value = value_pb2.Value.FromString(data)
    return Conflict(
        position=message.position,
        table=tables.told(message.table),
        key=tuple(plain_value(v) for v in message.key) if table is None else shown_key(table, message.key),
        column=message.column if table is None else table.told(message.column, dropped=dropped),
        losing_value=plain_value(value) if table is None else lost_value(table, message.column, value),
        losing_batch_id=message.losing_batch_id,
        losing_node_id=message.losing_node.id,
        losing_node_name=message.losing_node.name,
        winning_batch_id=message.winning_batch_id,
        winning_node_id=message.winning_node.id,
        winning_node_name=message.winning_node.name,
        cause=cause(message.cause),
        of=(message.table, message.column),
    )


def restore(builder: BatchBuilder, conflicts: Sequence[Conflict | ConflictEvent]) -> None:
    """Write the values that lost again, as updates in ``builder``'s batch: by the identities of table and column,
    whatever these are called by now.

    Raises:
        ValueError: the value is not known, or its column is gone, or it does not fit the column any more.
        NotChosen, NotReady: the device does not have the table, or not yet.
        RowMissing: the row is not shown any more: insert it anew.
    """
    tables = builder.tx.tables
    for conflict in conflicts:
        if isinstance(conflict, ConflictEvent) and not conflict.value_known:
            raise ValueError("the losing value did not come along with the event: SyncedDb.conflicts has it")
        table = tables.named(conflict.table) if conflict.of is None else tables.get(conflict.of[0])
        if table is None:
            raise choice.not_there(builder.tx.state, conflict.table)
        column = conflict.column if conflict.of is None else _column_now(table, conflict.of[1], conflict.cause)
        key = dict(zip(map(table.told, table.table.key_columns), conflict.key, strict=True))
        builder.update(table.sql_name, [{**key, column: conflict.losing_value}])


def _column_now(table: DeviceTable, identity: str, why: str) -> str:
    """The name that the column of an identity has. Raises ValueError where the app has no such column any more."""
    name = table.told(identity, dropped=bool(why))
    if name not in table.writable:
        raise ValueError(f"{table.sql_name} has no column {name!r}: the value that lost has no place any more")
    return name
