"""Batches as devices make them, built before anything is timed: the first half inserts rows, the second updates two
columns of the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
COLUMNS = ("id", "title", "done", "position", "score", "changed")
UPDATED = ("id", "title", "done")
_CHANGED_US = 1_700_000_000_000_000


@dataclass(frozen=True, slots=True)
class Made:
    """One batch: its id and payload, and what it does, in cells, for the baseline."""

    id: str
    payload: bytes
    insert: bool
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True)
class Client:
    """A node and everything that it has queued."""

    node_id: str
    batches: tuple[Made, ...]


def clients(number: int, changes: int, rows_per_batch: int, now_ms: int) -> list[Client]:
    """``number`` nodes with ``changes`` row changes among them. Ids are of the time before ``now_ms``."""
    per_client = max(2, changes // number // rows_per_batch)
    return [_client(i, per_client, rows_per_batch, now_ms) for i in range(number)]


def _client(number: int, batches: int, rows_per_batch: int, now_ms: int) -> Client:
    node_id = str(ULID.from_timestamp(now_ms / 1000))
    ids = _ids(now_ms - 60_000, number)
    inserts = batches // 2
    made = [_insert(next(ids), node_id, _rows(ids, rows_per_batch, i)) for i in range(inserts)]
    updates = [
        _update(next(ids), node_id, tuple((row[0], f"{row[1]} (done)", True) for row in made[i % inserts].rows))
        for i in range(batches - inserts)
    ]
    return Client(node_id, (*made, *updates))


def _ids(start_ms: int, number: int) -> Iterator[str]:
    """ULIDs of one millisecond, one after the other; each client has numbers of its own."""
    first = (start_ms << 80) | (number << 60)
    step = 0
    while True:
        step += 1
        yield str(ULID.from_int(first + step))


def _rows(ids: Iterator[str], count: int, at: int) -> tuple[tuple[object, ...], ...]:
    return tuple(
        (next(ids), f"title {at} of the day", False, at * 100 + i, i / 7, _CHANGED_US + at) for i in range(count)
    )


def _batch(batch_id: str, node_id: str) -> batch_pb2.DbMutationBatch:
    node = batch_pb2.Node(id=node_id, name="bench")
    return batch_pb2.DbMutationBatch(id=batch_id, db_name=DATABASE, node=node, schema_version=1)


def _value(cell: object) -> value_pb2.Value:
    if isinstance(cell, bool):
        return value_pb2.Value(bool_value=cell)
    if isinstance(cell, int):
        return value_pb2.Value(timestamp_us=cell) if cell >= _CHANGED_US else value_pb2.Value(int64_value=cell)
    if isinstance(cell, float):
        return value_pb2.Value(double_value=cell)
    return value_pb2.Value(string_value=str(cell))


def _insert(batch_id: str, node_id: str, rows: tuple[tuple[object, ...], ...]) -> Made:
    batch = _batch(batch_id, node_id)
    mutation = batch.mutations.add(table=TABLE, type=batch_pb2.MUTATION_TYPE_INSERT, columns=COLUMNS)
    for row in rows:
        mutation.rows.add(values=[_value(cell) for cell in row])
    return Made(batch_id, batch.SerializeToString(), True, rows)


def _update(batch_id: str, node_id: str, rows: tuple[tuple[object, ...], ...]) -> Made:
    batch = _batch(batch_id, node_id)
    mutation = batch.mutations.add(table=TABLE, type=batch_pb2.MUTATION_TYPE_UPDATE, columns=UPDATED)
    mutation.undo.columns.extend(UPDATED[1:])
    for row in rows:
        mutation.rows.add(values=[_value(cell) for cell in row])
        before = str(row[1]).removesuffix(" (done)")
        mutation.undo.rows.add(values=[_value(before), _value(False)])
    return Made(batch_id, batch.SerializeToString(), False, rows)
