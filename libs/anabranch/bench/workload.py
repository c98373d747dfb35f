"""Batches as devices make them, built before anything is timed: the first half inserts rows, the second updates two
columns of the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from google.protobuf import struct_pb2
from ulid import ULID

from anabranch.v1 import batch_pb2, value_pb2

SCHEMA = "bench"
TABLE = "todo"
DATABASE = "bench"
DEFINITION = """
create schema bench;
create table bench.todo (
    id text collate "C" primary key, title text not null, done boolean not null, position bigint not null,
    score double precision, changed timestamptz not null
);
"""
OF_TEAM = "'team:' || (position / 100) % 100"
"""An audience expression: the rows of one call are for one of a hundred teams."""
COLUMNS = ("id", "title", "done", "position", "score", "changed")
UPDATED = ("id", "title", "done")
_CHANGED_US = 1_700_000_000_000_000


Row = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """One batch: its id and payload, and what it does, in cells, for the baseline."""

    id: str
    payload: bytes
    insert: bool
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Client:
    """A node and everything that it has queued. ``refused``: the ids of the batches that break a constraint.
    ``basis``: the position that the node had applied when it made the batches."""

    node_id: str
    batches: tuple[Made, ...]
    refused: frozenset[str] = frozenset()
    basis: int = 0


def clients(number: int, changes: int, rows_per_batch: int, now_ms: int) -> list[Client]:
    """``number`` nodes with ``changes`` row changes among them. Ids are of the time before ``now_ms``."""
    per_client = max(2, changes // number // rows_per_batch)
    return [_client(i, per_client, rows_per_batch, now_ms) for i in range(number)]


def _client(number: int, batches: int, rows_per_batch: int, now_ms: int) -> Client:
    node_id = new_node(now_ms)
    ids = ids_from(now_ms - 60_000, number)
    inserts = batches // 2
    made = [insert_batch(next(ids), node_id, rows_of(ids, rows_per_batch, i)) for i in range(inserts)]
    updates = [
        update_batch(next(ids), node_id, tuple((row[0], f"{row[1]} (done)", True) for row in made[i % inserts].rows))
        for i in range(batches - inserts)
    ]
    return Client(node_id, (*made, *updates))


def new_node(now_ms: int) -> str:
    """The id of a node that is made at ``now_ms``."""
    return str(ULID.from_timestamp(now_ms / 1000))


def ids_from(start_ms: int, number: int) -> Iterator[str]:
    """ULIDs of one millisecond, one after the other; each client has numbers of its own."""
    first = (start_ms << 80) | (number << 60)
    step = 0
    while True:
        step += 1
        yield str(ULID.from_int(first + step))


def rows_of(ids: Iterator[str], count: int, at: int) -> tuple[Row, ...]:
    """``count`` new rows of the table, as cells in the order of COLUMNS."""
    return tuple(
        (next(ids), f"title {at} of the day", False, at * 100 + i, i / 7, _CHANGED_US + at) for i in range(count)
    )


def _batch(batch_id: str, node_id: str) -> batch_pb2.DbMutationBatch:
    node = batch_pb2.Node(id=node_id, name="bench")
    return batch_pb2.DbMutationBatch(id=batch_id, db_name=DATABASE, node=node, schema_version=1)


def _value(cell: object) -> value_pb2.Value:
    if cell is None:
        return value_pb2.Value(null_value=struct_pb2.NULL_VALUE)
    if isinstance(cell, bool):
        return value_pb2.Value(bool_value=cell)
    if isinstance(cell, int):
        return value_pb2.Value(timestamp_us=cell) if cell >= _CHANGED_US else value_pb2.Value(int64_value=cell)
    if isinstance(cell, float):
        return value_pb2.Value(double_value=cell)
    return value_pb2.Value(string_value=str(cell))


def insert_batch(batch_id: str, node_id: str, rows: tuple[Row, ...]) -> Made:
    """A batch that inserts rows of COLUMNS."""
    return batch_of(batch_id, node_id, COLUMNS, rows, insert=True)


def batch_of(batch_id: str, node_id: str, columns: Sequence[str], rows: Sequence[Row], *, insert: bool) -> Made:
    """A batch that inserts or updates rows of ``columns``, without an undo."""
    batch = _batch(batch_id, node_id)
    kind = batch_pb2.MUTATION_TYPE_INSERT if insert else batch_pb2.MUTATION_TYPE_UPDATE
    mutation = batch.mutations.add(table=TABLE, type=kind, columns=columns)
    for row in rows:
        mutation.rows.add(values=[_value(cell) for cell in row])
    return Made(batch_id, batch.SerializeToString(), insert, tuple(rows))


def update_batch(batch_id: str, node_id: str, rows: tuple[Row, ...]) -> Made:
    """A batch that updates rows of UPDATED."""
    batch = _batch(batch_id, node_id)
    mutation = batch.mutations.add(table=TABLE, type=batch_pb2.MUTATION_TYPE_UPDATE, columns=UPDATED)
    mutation.undo.columns.extend(UPDATED[1:])
    for row in rows:
        mutation.rows.add(values=[_value(cell) for cell in row])
        before = str(row[1]).removesuffix(" (done)")
        mutation.undo.rows.add(values=[_value(before), _value(False)])
    return Made(batch_id, batch.SerializeToString(), False, rows)


def delete_batch(batch_id: str, node_id: str, keys: tuple[str, ...]) -> Made:
    """A batch that deletes rows by their keys."""
    batch = _batch(batch_id, node_id)
    mutation = batch.mutations.add(table=TABLE, type=batch_pb2.MUTATION_TYPE_DELETE, columns=COLUMNS[:1])
    for key in keys:
        mutation.rows.add(values=[_value(key)])
    return Made(batch_id, batch.SerializeToString(), False, tuple((key,) for key in keys))
