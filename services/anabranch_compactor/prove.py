"""Proof: the written files are read again, their typed cells are encoded anew, and hashes are added up.

Nothing that the decoding has made is taken over: what is compared are sums over files and sums that Postgres keeps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.columnar.file_columns import OWN
from anabranch.columnar.lake import file_system
from anabranch.columnar.manifest import File
from anabranch.columnar.proof import Sum
from anabranch.errors import ServerError
from anabranch.runtime.telemetry import span
from anabranch.store.lake.compactions import CONFLICT_FIELDS, conflict_bytes
from anabranch.values.messages import column_writer
from anabranch.values.parquet import file_codecs
from anabranch_compactor.base_rows import cells_of
from anabranch_compactor.decode import Batches
from anabranch_compactor.decode import cells_of as python_cells
from anabranch_compactor.encode import NAME_SEPARATOR, ColumnEncoder, effect_sum, hash_sum, row_sum
from anabranch_compactor.files.written import Written
from anabranch_compactor.run import Run
from anabranch_compactor.shape import KINDS, Shape
from anabranch_compactor.spark.packing import key_hashes
from anabranch_compactor.spark.tracing import traced
from anabranch_compactor.units import BASE, CHANGES, CONFLICTS, Unit

ROWS_AT_ONCE, BYTES_AT_ONCE = 65_536, 32 * 1024 * 1024
_LATEST = 2**63 - 1
_NOTHING = Sum()
_NONE, _BETWEEN = pa.scalar(b"\x00", pa.binary()), pa.scalar(b"\x1f", pa.binary())
_TASKS_PER_CORE = 8


class ProofError(ServerError):
    """The written files are not what the log, or the table sum, says. Nothing is published."""


@dataclass(frozen=True, slots=True)
class FileSum:
    """The sum of a file, and the first and last position of its rows. ``live``: the sum of a base's rows that are
    not deleted. ``astray``: rows of a base that are not of the file's bucket. ``content``: whole rows,
    where asked for."""

    sum: Sum = _NOTHING
    first_position: int = _LATEST
    last_position: int = -1
    live: Sum = _NOTHING
    astray: int = 0
    content: Sum = _NOTHING

    def __add__(self, other: FileSum) -> FileSum:
        return FileSum(
            self.sum + other.sum,
            min(self.first_position, other.first_position),
            max(self.last_position, other.last_position),
            self.live + other.live,
            self.astray + other.astray,
            self.content + other.content,
        )


@dataclass(frozen=True, slots=True)
class Proven:
    """A file and its sums."""

    written: Written
    found: FileSum

    @property
    def file(self) -> File:
        """As a manifest has it."""
        one, found = self.written, self.found
        total = f"{found.sum.total:032x}"
        return File(
            one.path,
            found.sum.count,
            one.bytes,
            total,
            found.first_position,
            found.last_position,
            one.bucket,
            one.delta,
        )


def prove(run: Run, units: Sequence[Unit], files: Sequence[Written], *, content: bool = False) -> list[Proven]:
    """Read files again, by tasks of Spark's, and add up what is in them. ``content``: the sums of whole rows, too."""
    if not files:
        return []
    folder = run.folder

    def add(batches: Batches) -> Batches:
        filesystem, path = file_system(folder)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                one, unit = files[number], units[files[number].unit]
                with pq.ParquetFile(f"{path}/{one.path}", filesystem=filesystem) as file:
                    found = file_sum(one.what, unit.shape, file, one.bucket, unit.buckets)
                    if content:
                        found += FileSum(content=content_sum(one.what, unit.shape, file))
                yield pa.RecordBatch.from_pylist([_to_row(number, found)])

    tasks = min(len(files), _TASKS_PER_CORE * run.spark.sparkContext.defaultParallelism)
    with span("prove"):
        rows = run.spark.range(0, len(files), 1, tasks).mapInArrow(traced("prove task", add), _SCHEMA).collect()
    sums = {row["number"]: _sum_of(row.asDict()) for row in rows}
    return [Proven(file, sums[number]) for number, file in enumerate(files)]


_SCHEMA = (
    "number long, count long, total binary, first long, last long, live long, live_total binary, astray long, "
    "content binary"
)


def _to_row(number: int, found: FileSum) -> dict[str, object]:
    return {
        "number": number,
        "count": found.sum.count,
        "total": found.sum.to_bytes(),
        "first": found.first_position,
        "last": found.last_position,
        "live": found.live.count,
        "live_total": found.live.to_bytes(),
        "astray": found.astray,
        "content": found.content.to_bytes(),
    }


def _sum_of(row: Mapping[str, Any]) -> FileSum:
    total, live = int.from_bytes(row["total"], "big"), int.from_bytes(row["live_total"], "big")
    content = Sum(row["count"], int.from_bytes(row["content"], "big"))
    return FileSum(Sum(row["count"], total), row["first"], row["last"], Sum(row["live"], live), row["astray"], content)


def file_sum(what: str, shape: Shape, file: pq.ParquetFile, bucket: int = 0, buckets: int = 1) -> FileSum:
    """The sums of a file of changes, conflicts or a base (``what``)."""
    reading, total = _READING[what], FileSum()
    there = set(file.schema_arrow.names)
    own = [f"{OWN}.{name}" for name in (*reading.own, "exact")]
    columns = [*(name for name in shape.names if name in there), *own]
    for batch in _batches(file, columns):
        struct = batch.column(OWN)
        ours = dict(zip([field.name for field in struct.type], struct.flatten(), strict=True))
        cells = cells_of(shape, batch, range(shape.width))
        bounds = pc.min_max(ours["position"])
        total += FileSum(Sum(), bounds["min"].as_py(), bounds["max"].as_py())
        total += reading.add(shape, cells, ours, Bucketed(bucket, buckets))
    return total


def _batches(file: pq.ParquetFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """A file's rows, so many at a time as fit in memory; none of two row groups together."""
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group)
        size = min(ROWS_AT_ONCE, max(1, BYTES_AT_ONCE * about.num_rows // max(1, about.total_byte_size)))
        yield from file.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)


@dataclass(frozen=True, slots=True)
class Bucketed:
    """The bucket of a file, and how many there are."""

    bucket: int
    buckets: int


def _effects(shape: Shape, cells: pa.RecordBatch, own: Mapping[str, pa.Array], _: Bucketed) -> FileSum:
    kind = pc.add(pc.index_in(own["type"], pa.array(KINDS.values())).cast(pa.int16()), min(KINDS))
    rows = cells.append_column("kind", kind)
    rows = rows.append_column("changed", pc.binary_join(own["changed"], NAME_SEPARATOR))
    return FileSum(effect_sum(ColumnEncoder(shape.table), rows))


def _rows(shape: Shape, cells: pa.RecordBatch, own: Mapping[str, pa.Array], of: Bucketed) -> FileSum:
    encoder = ColumnEncoder(shape.table)
    astray = np.count_nonzero(key_hashes(encoder.keys(cells)) % of.buckets != of.bucket) if of.buckets > 1 else 0
    live = row_sum(encoder, cells.filter(pc.invert(own["deleted"])))
    gone = row_sum(encoder, cells.filter(own["deleted"])) if pc.any(own["deleted"]).as_py() else Sum()
    return FileSum(live + gone, live=live, astray=int(astray))


def _losers(shape: Shape, cells: pa.RecordBatch, own: Mapping[str, pa.Array], _: Bucketed) -> FileSum:
    table = shape.table
    columns = python_cells(table, file_codecs(table.columns), cells)
    writers = [column_writer(column) for column in table.columns]
    fields = [own[name].to_pylist() for name in CONFLICT_FIELDS]
    untyped, names = own["untyped"].to_pylist(), own["column"].to_pylist()
    total = 0
    for row, raw in enumerate(untyped):
        if raw is None:
            place = table.index[names[row]]
            raw = writers[place](columns[place][row]).SerializeToString()
        data = conflict_bytes([values[row] for values in fields], raw)
        total += int.from_bytes(hashlib.sha256(data).digest()[:16], "big")
    return FileSum(Sum() + Sum(len(untyped), total))


@dataclass(frozen=True, slots=True)
class _Reading:
    """The fields that are read of our struct, beside exact texts, and the function that adds rows up."""

    own: tuple[str, ...]
    add: Callable[[Shape, pa.RecordBatch, Mapping[str, pa.Array], Bucketed], FileSum]


_READING = {
    CHANGES: _Reading(("position", "type", "changed"), _effects),
    CONFLICTS: _Reading((*CONFLICT_FIELDS, "untyped"), _losers),
    BASE: _Reading(("position", "deleted"), _rows),
}


def content_sum(what: str, shape: Shape, file: pq.ParquetFile) -> Sum:
    """The sum of hashes of whole rows, our struct and all: equal where files have the same rows in any order."""
    schema, total = shape.schemas[what], Sum()
    for batch in _batches(file, file.schema_arrow.names):
        leaves = [text for field in schema for text in _texts(field, _field(batch, field.name))]
        present = [pc.fill_null(one, _NONE) for one in leaves]
        total += hash_sum(pc.binary_join_element_wise(*present, _BETWEEN))
    return total


def _field(batch: pa.RecordBatch, name: str) -> pa.Array | None:
    return batch.column(name) if name in batch.schema.names else None


def _texts(field: pa.Field, values: pa.Array | None) -> Iterator[pa.Array | pa.Scalar]:
    """A column's values as bytes, leaf by leaf. A column that is younger than its file is NULL."""
    kind = field.type
    if pa.types.is_struct(kind):
        parts = {} if values is None else dict(zip([f.name for f in values.type], values.flatten(), strict=True))
        for inner in kind:
            yield from _texts(inner, parts.get(inner.name))
    elif values is None or values.null_count == len(values):
        yield _NONE
    elif pa.types.is_map(kind) or pa.types.is_list(kind):
        # Few: names of changed columns, and texts of what columns can't hold.
        yield pa.array([None if one is None else repr(one).encode() for one in values.to_pylist()], pa.binary())
    else:
        same = values if values.type == kind else values.cast(kind)
        yield (same if pa.types.is_binary(kind) else same.cast(pa.string()).cast(pa.binary()))


def total_of(proven: Iterable[Proven]) -> Sum:
    """All files together."""
    total = Sum()
    for one in proven:
        total += one.found.sum
    return total


def content_of(proven: Iterable[Proven]) -> Sum:
    """The whole rows of all files together."""
    total = Sum()
    for one in proven:
        total += one.found.content
    return total


def require_positions(what: str, files: Iterable[Proven], first: int, last: int) -> None:
    """Raises ProofError where a row has a position that is not from ``first`` to ``last``."""
    for one in files:
        found = one.found
        if found.first_position < first or found.last_position > last:
            raise ProofError(
                f"{what}: {one.written.path} has positions {found.first_position} to {found.last_position}, "
                f"not of {first} to {last}"
            )


def require(what: str, found: Sum, wanted: Sum) -> None:
    """Raises ProofError where two sums differ."""
    if found != wanted:
        raise ProofError(
            f"{what}: the files have {found.count} rows with the sum {found.total:032x}, "
            f"Postgres has {wanted.count} with {wanted.total:032x}"
        )
