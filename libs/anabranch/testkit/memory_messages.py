"""The messages that the server in memory answers with, and the names of batches that it gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError

from anabranch.merge import MutationType
from anabranch.ranges import KeyRange, RangeSums
from anabranch.v1 import batch_pb2, change_pb2, snapshot_pb2
from anabranch.values import Cell, Column, Table
from anabranch.values.messages import column_writer

_EFFECTS = {
    MutationType.INSERT: change_pb2.EFFECT_TYPE_INSERT,
    MutationType.UPDATE: change_pb2.EFFECT_TYPE_UPDATE,
    MutationType.DELETE: change_pb2.EFFECT_TYPE_DELETE,
    None: change_pb2.EFFECT_TYPE_NONE,
}


class AnswerStream(Iterator[Any]):
    """The answers of a call, as gRPC gives them."""

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items

    def __next__(self) -> Any:
        return next(self._items)

    def cancel(self) -> None:
        """Do nothing: no call is in progress."""


def name_of(payload: bytes) -> str:
    """The id of a batch, "" where its payload can't be read."""
    try:
        return batch_pb2.DbMutationBatch.FromString(payload).id
    except DecodeError:
        return ""


def range_sums(sums: RangeSums, of: KeyRange) -> list[snapshot_pb2.RangeSum]:
    """The sums of the parts of a range."""
    return [
        snapshot_pb2.RangeSum(
            range=snapshot_pb2.KeyRange(bits=part.bits, prefix=part.prefix),
            count=found.rows,
            hash=found.hash.to_bytes(16, "big"),
        )
        for part, found in sums.parts(of).items()
    ]


def arrow_ipc(table: Table, rows: Sequence[Sequence[Cell]], audiences: Sequence[Sequence[str]] | None = None) -> bytes:
    """Rows as a stream of Arrow with one batch; with each row's audiences where the table is restricted."""
    types = {
        "text": pa.string(),
        "numeric": pa.string(),
        "bigint": pa.int64(),
        "double precision": pa.float64(),
        "boolean": pa.bool_(),
        "bytea": pa.binary(),
    }

    def array(i: int, column: Column) -> Any:
        return pa.array([row[i] for row in rows], types[column.postgres_type])

    columns = [array(i, c) for i, c in enumerate(table.columns)]
    names = list(table.column_names)
    if audiences is not None:
        columns.append(pa.array(audiences, pa.list_(pa.string())))
        names.append("_DB_audience")
    batch = pa.record_batch(columns, names=names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def table_message(table: Table, restricted: bool = False) -> snapshot_pb2.Table:
    """A table as Describe tells it."""
    columns = [
        snapshot_pb2.Column(
            name=c.name,
            kind=int(c.kind),  # type: ignore[arg-type]
            element_kind=int(c.element_kind or 0),  # type: ignore[arg-type]
            postgres_type=c.postgres_type,
            policy=c.policy,
            sql_name=c.renamed,
            initial=column_writer(c)(c.initial[0]) if c.initial else None,
        )
        for c in table.columns
    ]
    return snapshot_pb2.Table(
        name=table.name,
        key_columns=table.key_columns,
        columns=columns,
        restricted=restricted,
        sql_name=table.renamed,
    )


def effect_bytes(columns: Mapping[str, Column], effect: Any) -> bytes:
    """An effect of the log on the wire. ``columns``: all that its table has had, by identity."""
    names = ["id", *(c for c in effect.values if c != "id")]
    values: Mapping[str, Cell] = {**effect.values, "id": effect.key}
    return change_pb2.Effect(
        table=effect.table,
        type=_EFFECTS[effect.type],
        columns=names,
        values=[column_writer(columns[c])(values[c]) for c in names],
    ).SerializeToString()
