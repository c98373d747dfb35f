"""Deals a run's writes into parts: all of one kind for one table is a unit, and each part of it is one task's work.

All units of a run are written by one Spark job, so that a table more costs a few tasks and no job of its own. The hash
of a row's key says its part, and its bucket where the table has a base. Numbers of parts and of buckets are powers of
two, so that a part has either whole buckets or rows of one bucket alone.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.columnar.file_columns import BASE, CHANGES, CONFLICTS
from anabranch.columnar.manifest import Base, TableFiles
from anabranch_compactor.files.parquet_files import FILE_BYTES
from anabranch_compactor.plan import FormerPlan, Plan, TablePlan
from anabranch_compactor.shape import Shape
from anabranch_compactor.spark.packing import Route

PART_ROWS, PART_BYTES = 750_000, 256 * 1024 * 1024
"""The most rows of a part (changes, and rows as they were before), and about the most memory that they take: a task
holds them."""
SMALL_ROWS = 50_000
"""Rows that are not worth another task."""
_UNPACKED = 4
"""About how often more a row takes in memory than in a file."""
_CELL_BYTES = 24
"""Bytes that each column of a row takes beside its content: a number, and the places of its values before and after."""


@dataclass(frozen=True, slots=True)
class Unit:
    """``what``: CHANGES, CONFLICTS, or BASE (a table's first one). ``first``: the number of its first part among all
    parts of the run. ``buckets``: those of the table's base; 0 where there is none to write a part of. ``before``: the
    base whose rows the changes touch. ``with_delta``: whether what they leave goes on with it, as nothing does of a
    registration that has ended."""

    what: str
    shape: Shape
    first: int
    parts: int
    buckets: int = 0
    before: Base | None = None
    with_delta: bool = True

    @property
    def route(self) -> Route:
        """The way of rows to its parts."""
        shape = self.shape if self.what == BASE else self.shape.history
        return Route(shape.table, self.first, self.parts)


def units_of(plan: Plan, cores: int) -> list[Unit]:
    """The units that a run has to write."""
    units: list[Unit] = []
    first = 0
    for name, table in plan.tables.items():
        for what, parts, buckets, before in _units(table, plan.files_of(name), cores):
            units.append(Unit(what, table.shape, first, parts, buckets, before))
            first += parts
    for former in plan.former:
        for what, parts, base in _former_units(former, plan.base_of(former), cores):
            buckets = 0 if base is None else len(base.buckets)
            units.append(Unit(what, former.shape, first, parts, buckets, base, with_delta=False))
            first += parts
    return units


def _former_units(former: FormerPlan, base: Base | None, cores: int) -> Iterator[tuple[str, int, Base | None]]:
    width = former.shape.width * _CELL_BYTES
    for what, log in ((CHANGES, former.log), (CONFLICTS, former.conflicts)):
        if log is not None:
            # As many rows may come from the base, and each about as long.
            count, size = log.effects.count * 2, log.bytes * 2
            yield what, parts_of(count, size + count * width, cores), base if what == CHANGES else None


def _units(table: TablePlan, known: TableFiles, cores: int) -> Iterator[tuple[str, int, int, Base | None]]:
    width = table.shape.width * _CELL_BYTES
    if table.log is not None:
        base = known.base
        before, before_bytes = rows_before(table.log.effects.count, known)
        count = table.log.effects.count + before
        parts = parts_of(count, table.log.bytes + before_bytes + count * width, cores)
        yield CHANGES, parts, 0 if base is None else len(base.buckets), base
    if table.conflicts is not None:
        count = table.conflicts.effects.count
        yield CONFLICTS, parts_of(count, table.conflicts.bytes + count * width, cores), 0, None
    if table.extent is not None:
        buckets = _power_of_two(math.ceil(table.extent.bytes / FILE_BYTES))
        count = table.table_sum.count
        yield BASE, max(buckets, parts_of(count, table.extent.bytes + count * width, cores)), buckets, None


def rows_before(changes: int, known: TableFiles) -> tuple[int, int]:
    """How many rows of the base so many changes touch at most, and about how many bytes these take: a delete is short,
    however long the row is."""
    files = () if known.base is None else known.base.files
    there = sum(file.rows for file in files)
    count = min(changes, there)
    return count, _UNPACKED * sum(file.bytes for file in files) * count // max(1, there)


def parts_of(count: int, size: int, cores: int) -> int:
    """The number of parts for rows: one task must hold a part in memory, and every core should have work."""
    enough = max(math.ceil(count / PART_ROWS), math.ceil(size / PART_BYTES), min(cores, math.ceil(count / SMALL_ROWS)))
    return _power_of_two(enough)


def _power_of_two(least: int) -> int:
    return 1 << max(0, least - 1).bit_length()


def unit_of(units: Sequence[Unit], part: int) -> int:
    """The number of the unit that a part is of."""
    return bisect_right(units, part, key=lambda unit: unit.first) - 1
