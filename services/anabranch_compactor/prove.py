"""Proof: what was written is read again from the files, its typed cells are encoded anew, and hashes are added up.

Nothing that the decoding has made is taken over: what is compared are sums over files and sums that Postgres keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame

from anabranch.columnar.file_columns import OWN
from anabranch.columnar.lake import file_system
from anabranch.columnar.manifest import File
from anabranch.columnar.proof import Sum
from anabranch.runtime.telemetry import span
from anabranch.schema import Table
from anabranch_compactor.decode import Batches
from anabranch_compactor.encode import NAME_SEPARATOR, ColumnEncoder, effect_sum, row_sum
from anabranch_compactor.shape import KINDS, Shape
from anabranch_compactor.tracing import traced

if TYPE_CHECKING:
    from anabranch_compactor.run import Run

ROWS_AT_ONCE = 65_536
_LATEST = 2**63 - 1


class ProofError(Exception):
    """What was written is not what the log, or the table sum, says. Nothing is published."""


@dataclass(frozen=True, slots=True)
class FileSum:
    """What a group of rows (a file, or a bucket) adds up to. Positions are those of its rows."""

    name: str
    sum: Sum
    first_position: int
    last_position: int


_SCHEMA = "name string, count long, total binary, first long, last long"


def _output(found: dict[str, tuple[Sum, int, int]]) -> pa.RecordBatch:
    names = list(found)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(names, pa.string()),
            pa.array([found[n][0].count for n in names], pa.int64()),
            pa.array([found[n][0].to_bytes() for n in names], pa.binary()),
            pa.array([found[n][1] for n in names], pa.int64()),
            pa.array([found[n][2] for n in names], pa.int64()),
        ],
        names=["name", "count", "total", "first", "last"],
    )


def grouped(hashing: Callable[[pa.RecordBatch], Sum]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Adds up by column ``name``; each batch's rows are split where it changes."""

    def add(batches: Batches) -> Iterator[pa.RecordBatch]:
        found: dict[str, tuple[Sum, int, int]] = {}
        for batch in batches:
            for name, part in _split(batch):
                bounds = pc.min_max(part.column("position"))
                least, most = bounds["min"].as_py(), bounds["max"].as_py()
                before = found.get(name, (Sum(), least, most))
                found[name] = (before[0] + hashing(part), min(before[1], least), max(before[2], most))
        yield _output(found)

    return add


def _split(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    runs = pc.run_end_encode(batch.column("name"))
    start = 0
    for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield name, batch.slice(start, end - start)
        start = end


def _hash_rows(table: Table) -> Callable[[pa.RecordBatch], Sum]:
    encoder = ColumnEncoder(table)
    return lambda batch: row_sum(encoder, batch)


def effect_sums(run: Run, shape: Shape, paths: Sequence[str]) -> list[FileSum]:
    """The sums of effects of files of ``changes/``, each read again by a task of its own."""
    if not paths:
        return []
    folder, root, names = run.folder, run.root, list(paths)

    def add(batches: Batches) -> Batches:
        filesystem, path = file_system(root)[0], file_system(folder)[1]
        encoder = ColumnEncoder(shape.table)
        for batch in batches:
            for number in batch.column("id").to_pylist():
                name = names[number]
                yield _output({name: file_sum(shape, encoder, pq.ParquetFile(f"{path}/{name}", filesystem=filesystem))})

    return collect(run.spark.range(0, len(names), 1, len(names)), add)


def file_sum(shape: Shape, encoder: ColumnEncoder, file: pq.ParquetFile) -> tuple[Sum, int, int]:
    """The sum of the effects of a file of ``changes/``, and its first and last position."""
    total, least, most = Sum(), _LATEST, -1
    columns = [*shape.names, *(f"{OWN}.{name}" for name in ("position", "type", "changed", "exact"))]
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
        own = dict(zip([field.name for field in batch.column(OWN).type], batch.column(OWN).flatten(), strict=True))
        bounds = pc.min_max(own["position"])
        least, most = min(least, bounds["min"].as_py()), max(most, bounds["max"].as_py())
        total += effect_sum(encoder, _as_effects(shape, batch, own))
    return total, least, most


def _as_effects(shape: Shape, batch: pa.RecordBatch, own: Mapping[str, pa.Array]) -> pa.RecordBatch:
    """``kind``, ``changed``, ``c…`` and ``x…`` of rows of ``changes/``."""
    cells = [batch.column(name).cast(c.type) for name, c in zip(shape.names, shape.file_table.columns, strict=True)]
    exact = [pc.map_lookup(own["exact"], shape.names[i], "first") for i in shape.with_text]
    kind = pc.index_in(own["type"], pa.array(KINDS.values())).cast(pa.int16())
    return pa.RecordBatch.from_arrays(
        [pc.add(kind, min(KINDS)), pc.binary_join(own["changed"], NAME_SEPARATOR), *cells, *exact],
        names=["kind", "changed", *(f"c{i}" for i in range(shape.width)), *(f"x{i}" for i in shape.with_text)],
    )


def as_files(sums: Iterable[FileSum], sizes: Mapping[str, int]) -> tuple[File, ...]:
    """Proven files by their paths and sizes."""
    return tuple(
        File(s.name, s.sum.count, sizes[s.name], f"{s.sum.total:032x}", s.first_position, s.last_position)
        for s in sorted(sums, key=lambda one: one.name)
    )


def row_sums(shape: Shape, rows: DataFrame, name: Column, position: Column) -> list[FileSum]:
    """The sums of row hashes, by ``name``."""
    table = shape.table
    chosen = rows.select(name.alias("name"), position.alias("position"), *(field.name for field in shape.cells))
    return collect(chosen, lambda batches: grouped(_hash_rows(table))(batches))


def collect(rows: DataFrame, add: Callable[[Batches], Iterator[pa.RecordBatch]]) -> list[FileSum]:
    """What ``add`` (see ``grouped``) makes of rows, by name."""
    found: dict[str, FileSum] = {}
    with span("prove"):
        parts = rows.mapInArrow(traced("prove task", add), _SCHEMA).collect()
    for row in parts:
        one = FileSum(row["name"], Sum(row["count"], int.from_bytes(row["total"], "big")), row["first"], row["last"])
        before = found.get(one.name)
        if before is not None:
            least, most = min(before.first_position, one.first_position), max(before.last_position, one.last_position)
            one = FileSum(one.name, before.sum + one.sum, least, most)
        found[one.name] = one
    return list(found.values())


def total_of(sums: list[FileSum]) -> Sum:
    """All of them together."""
    total = Sum()
    for one in sums:
        total += one.sum
    return total


def require(what: str, found: Sum, wanted: Sum) -> None:
    """Raises ProofError where two sums differ."""
    if found != wanted:
        raise ProofError(
            f"{what}: the files have {found.count} rows with the sum {found.total:032x}, "
            f"Postgres has {wanted.count} with {wanted.total:032x}"
        )
