"""The rows of tables that get their first base, pulled as of the run's moment, page by page, and packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from anabranch.store.cells.binary_cells import Row
from anabranch.store.lake.log_files import read_rows
from anabranch_compactor.decode import Batches, as_batch, pulled, without
from anabranch_compactor.run import Run
from anabranch_compactor.spark.log_source import SCHEMA
from anabranch_compactor.spark.packing import Route, pack
from anabranch_compactor.spark.tracing import traced
from anabranch_compactor.units import Unit

PAGES_PER_READ = 8_192
"""Pages of a table that one task pulls."""
_BATCH_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pull:
    """Pages of a table to pull, from ``first`` up to ``end``, as of an exported snapshot; those of ``taken_back`` (by
    key text) as they are there (None: not at all). ``adds``: whether it gives those, too."""

    url: str
    snapshot: str
    schema_name: str
    route: Route
    first: int
    end: int
    taken_back: Mapping[str, Row | None]
    adds: bool


def pulled_rows(run: Run, units: Sequence[Unit]) -> DataFrame:
    """Packages of the rows of all tables that get a base."""
    pulls = [one for unit in units for one in _pulls(run, unit)]
    work = traced("pull task", lambda batches: pull_tasks(pulls, batches))
    return run.spark.range(0, len(pulls), 1, len(pulls)).mapInArrow(work, SCHEMA)


def _pulls(run: Run, unit: Unit) -> Iterator[Pull]:
    plan, table = run.plan, run.plan.tables[unit.shape.table.name]
    assert table.extent is not None
    reads = max(1, -(-table.extent.pages // PAGES_PER_READ))
    for number in range(reads):
        first = number * PAGES_PER_READ
        # The last one reads to the end, wherever that is by now.
        end = first + PAGES_PER_READ if number < reads - 1 else 2**32 - 1
        schema_name = plan.database.schema_name
        yield Pull(run.url, plan.snapshot, schema_name, unit.route, first, end, table.taken_back, number == 0)


def pull_tasks(pulls: Sequence[Pull], batches: Batches) -> Batches:
    """The pulls whose numbers are given."""
    for batch in batches:
        for number in batch.column("id").to_pylist():
            yield from pack((pulls[number].route, rows) for rows in _rows(pulls[number]))


def _rows(what: Pull) -> Iterator[pa.RecordBatch]:
    table = what.route.table
    rows = read_rows(what.url, what.snapshot, what.schema_name, table, what.first, what.end, _BATCH_BYTES)
    for found in pulled(table, rows):
        yield without(table, found, what.taken_back) if what.taken_back else found
    added = [row for row in what.taken_back.values() if row is not None] if what.adds else []
    if added:
        yield as_batch(table, added)
