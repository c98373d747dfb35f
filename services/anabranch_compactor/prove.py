"""Proof of a run: Spark's tasks read the written files again and add them up (``anabranch.columnar.proof``).

Nothing that the decoding has made is taken over: what is compared are sums over files and sums that Postgres keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anabranch.columnar.encode import cells_of, own_fields
from anabranch.columnar.file_columns import BASE, CHANGES
from anabranch.columnar.lake import file_system
from anabranch.columnar.manifest import File
from anabranch.columnar.proof import Prover, Sum, batches_of, hash_sum, open_file
from anabranch.errors import ServerError
from anabranch.runtime.telemetry import span
from anabranch_compactor.decode import Batches
from anabranch_compactor.files.written import Written
from anabranch_compactor.run import Run
from anabranch_compactor.shape import Shape
from anabranch_compactor.spark.packing import key_hashes
from anabranch_compactor.spark.tracing import traced
from anabranch_compactor.units import Unit

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
                with open_file(filesystem, f"{path}/{one.path}") as file:
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
    prover, total = Prover(what, (shape.history if what == CHANGES else shape).file_table), FileSum()
    for rows in prover.read(file):
        own = own_fields(rows)
        places = pc.min_max(own["position"])
        first, last = places["min"].as_py(), places["max"].as_py()
        if what != BASE:
            total += FileSum(prover.sum(rows), first, last)
            continue
        deleted = own["deleted"].fill_null(False)
        live, gone = (prover.sum(rows.filter(some)) for some in (pc.invert(deleted), deleted))
        astray = 0
        if buckets > 1:
            keys = prover.encoder.keys(cells_of(shape.file_table, rows, shape.table.key_index))
            astray = int(np.count_nonzero(key_hashes(keys) % buckets != bucket))
        total += FileSum(live + gone, first, last, live, astray)
    return total


def content_sum(what: str, shape: Shape, file: pq.ParquetFile) -> Sum:
    """The sum of hashes of whole rows, our struct and all: equal where files have the same rows in any order."""
    schema, total = (shape if what == BASE else shape.history).schemas[what], Sum()
    for batch in batches_of(file, file.schema_arrow.names):
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
