"""``ListConflicts``: the request read, the page asked for, the answer written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database
from anabranch.store.log.conflicts import ConflictPlace, Listed, Lost, WantedConflicts, identified, of_one_key
from anabranch.store.log.seal import open_content, seal_content
from anabranch.v1 import batch_pb2, change_pb2, errors_pb2, resolver_pb2
from anabranch.values import Table, key_cells, key_text
from anabranch.values.messages import column_reader, column_writer

MOST_ITEMS = 1_000
USUAL_ITEMS = 200
MAX_PAGE_BYTES = 3_000_000
"""Of values and keys on a page, which so stays below the 4 MiB that a gRPC channel takes by default."""
_ID_CHARACTERS = 26


def read_request(
    database: Database, tables: Sequence[Table], request: resolver_pb2.ListConflictsRequest
) -> tuple[WantedConflicts, ConflictPlace | None, int]:
    """Read the filter on ``tables`` (``listed_tables``), the place to go on from, and the most conflicts on the page.

    Raises:
        CallError: INVALID_REQUEST, UNKNOWN_TABLE, INVALID_TOKEN.
    """
    if request.page_size < 0 or request.from_ms < 0 or request.until_ms < 0:
        raise _invalid("page_size, from_ms and until_ms are not negative")
    if request.node_id and (len(request.node_id) > _ID_CHARACTERS or "\0" in request.node_id):
        raise _invalid("node_id is no node's")
    chosen = tables
    key = None
    if request.table:
        chosen = identified(tables, request.table)
        if not chosen:
            raise CallError(errors_pb2.REASON_UNKNOWN_TABLE, f'there is no synced table "{request.table[:80]}"')
        if request.key:
            key, chosen = _key(chosen[0], request), of_one_key(chosen)
    elif request.key:
        raise _invalid("key needs table")
    wanted = WantedConflicts(
        database.id, [table.id for table in chosen], key, request.node_id, request.from_ms, request.until_ms or None
    )
    place = _from_token(database, request) if request.page_token else None
    return wanted, place, min(request.page_size or USUAL_ITEMS, MOST_ITEMS)


def _key(table: Table, request: resolver_pb2.ListConflictsRequest) -> str:
    columns = [table.by_name[name] for name in table.key_columns]
    if len(request.key) != len(columns):
        raise _invalid(f"key has {len(request.key)} values; the table's has {len(columns)}")
    try:
        text = key_text([column_reader(column)(value) for column, value in zip(columns, request.key, strict=True)])
    except (ValueError, RecursionError) as error:
        raise _invalid(f"key: {error}") from None
    if "\0" in text:
        raise _invalid("key holds text with a NUL character")
    return text


def answer(
    database: Database, tables: Iterable[Table], request: resolver_pb2.ListConflictsRequest, listed: Listed
) -> resolver_pb2.ListConflictsResponse:
    """The response, without the server's state."""
    by_id = {table.id: table for table in tables}
    response = resolver_pb2.ListConflictsResponse(
        conflicts=[_conflict(by_id[lost.table_id], lost) for lost in listed.lost]
    )
    if listed.incomplete:
        response.conflicts[0].losing_value_incomplete = True
    if listed.after is not None:
        content = json.dumps(listed.after, separators=(",", ":")).encode()
        response.next_page_token = seal_content(database.seal_key, _purpose(database, request), content)
    return response


def _conflict(table: Table, lost: Lost) -> resolver_pb2.Conflict:
    columns = [table.by_name[name] for name in table.key_columns]
    key = [column_writer(c)(cell) for c, cell in zip(columns, key_cells(table, lost.key), strict=True)]
    return resolver_pb2.Conflict(
        position=lost.position,
        table=table.name,
        key=key,
        column=lost.column,
        losing_value=lost.value,
        losing_batch_id=lost.losing_batch,
        losing_node=batch_pb2.Node(id=lost.losing_node, name=lost.losing_node_name),
        winning_batch_id=lost.winning_batch,
        winning_node=batch_pb2.Node(id=lost.winning_node, name=lost.winning_node_name),
        cause=change_pb2.LossCause.ValueType(lost.cause),
    )


def _purpose(database: Database, request: resolver_pb2.ListConflictsRequest) -> str:
    """A token holds for this database in this epoch, and for these filters."""
    filters = resolver_pb2.ListConflictsRequest()
    filters.CopyFrom(request)
    filters.ClearField("page_token")
    filters.ClearField("page_size")
    digest = blake2b(filters.SerializeToString(deterministic=True), digest_size=16).hexdigest()
    return f"conflicts\0{database.epoch}\0{digest}"


def _from_token(database: Database, request: resolver_pb2.ListConflictsRequest) -> ConflictPlace:
    content = open_content(database.seal_key, _purpose(database, request), request.page_token)
    if content is None:
        text = "page_token is not one that was given for this database and these filters: start again"
        raise CallError(errors_pb2.REASON_INVALID_TOKEN, text)
    found: list[Any] = json.loads(content)
    return ConflictPlace(*found)


def _invalid(message: str) -> CallError:
    return CallError(errors_pb2.REASON_INVALID_REQUEST, message)
