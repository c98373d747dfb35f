"""Proof: what was written is read again from the files, its typed cells are encoded anew, and hashes are added up.

Nothing that the decoding has made is taken over: what is compared are sums over files and sums that Postgres keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from anabranch.columnar.proof import Prover, Sum
from anabranch.runtime.telemetry import span
from anabranch.schema import Table
from anabranch.store.file_codecs import file_codecs
from anabranch_compactor.decode import Batches, cells_of
from anabranch_compactor.shape import KINDS, Shape
from anabranch_compactor.tracing import traced


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
                positions = part.column("position").to_pylist()
                least, most = min(positions), max(positions)
                before = found.get(name, (Sum(), least, most))
                found[name] = (before[0] + hashing(part), min(before[1], least), max(before[2], most))
        yield _output(found)

    return add


def _split(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    names = batch.column("name").to_pylist()
    start = 0
    for i in range(1, len(names) + 1):
        if i == len(names) or names[i] != names[start]:
            yield names[start], batch.slice(start, i - start)
            start = i


def _hash_effects(table: Table) -> Callable[[pa.RecordBatch], Sum]:
    codecs, prover = file_codecs(table.columns), Prover(table)
    numbers = {name: number for number, name in KINDS.items()}

    def sum_of(batch: pa.RecordBatch) -> Sum:
        types = [numbers[name] for name in batch.column("type").to_pylist()]
        return prover.effects(types, batch.column("changed").to_pylist(), cells_of(table, codecs, batch))

    return sum_of


def _hash_rows(table: Table) -> Callable[[pa.RecordBatch], Sum]:
    codecs, prover = file_codecs(table.columns), Prover(table)
    return lambda batch: prover.rows(cells_of(table, codecs, batch))


def effect_sums(shape: Shape, changes: DataFrame) -> list[FileSum]:
    """The sums of effects of rows of ``changes/`` (as ``Shape.read`` gives them), by file."""
    ours, table = F.col("ours"), shape.table
    rows = changes.select(
        F.col("file").alias("name"),
        ours["position"].alias("position"),
        ours["type"].alias("type"),
        ours["changed"].alias("changed"),
        *(field.name for field in shape.cells),
    )
    return collect(rows, lambda batches: grouped(_hash_effects(table))(batches))


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
