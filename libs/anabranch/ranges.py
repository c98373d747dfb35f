"""Key ranges of a table, and how two holders of it find the rows in which they differ.

A *range* is the set of rows whose key hash (``values.canonical``) begins with the same bits: both sides can determine
which rows are in it, whatever order their databases keep keys in. The whole table is the range of no bits; a range is
split by the next ``STEP_BITS`` bits, down to ``FINEST_BITS``, so that it has ``FAN_OUT`` parts and either side has to
hold ``2 ** FINEST_BITS`` sums, however large the table is.

A comparison begins with the parts of the whole, and splits those whose count or hash differ until they are small enough
to be read: ``next_steps``. A difference is missed only if hashes collide; equal parts cost nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from anabranch.values import Cell
from anabranch.values.canonical import SUM_MODULUS, RowEncoder

STEP_BITS = 8
FAN_OUT = 1 << STEP_BITS
FINEST_BITS = 16
FEW_ROWS = 64
"""A range with no more rows than this is read, not split."""


class KeyRange(NamedTuple):
    """Rows whose key hash begins with the ``bits`` bits of ``prefix``: 0, 8 or 16 of them."""

    bits: int
    prefix: int

    @property
    def is_valid(self) -> bool:
        """Whether there is such a range."""
        return self.bits in (0, STEP_BITS, FINEST_BITS) and 0 <= self.prefix < 1 << self.bits

    @property
    def can_be_split(self) -> bool:
        """Whether it has parts."""
        return self.bits < FINEST_BITS

    @property
    def parts(self) -> list[KeyRange]:
        """Its parts, in order."""
        first = self.prefix << STEP_BITS
        return [KeyRange(self.bits + STEP_BITS, first + i) for i in range(FAN_OUT)]

    @property
    def finest(self) -> range:
        """The numbers of the finest ranges in it."""
        width = FINEST_BITS - self.bits
        return range(self.prefix << width, self.prefix + 1 << width)


WHOLE = KeyRange(0, 0)


class RangeSum(NamedTuple):
    """Number of rows, and the sum of their row hashes modulo 2**128."""

    rows: int
    hash: int


EMPTY = RangeSum(0, 0)


class RangeSums:
    """The sums of a table's rows by range."""

    __slots__ = ("_counts", "_hashes")

    def __init__(self) -> None:
        self._counts = [0] * (1 << FINEST_BITS)
        self._hashes = [0] * (1 << FINEST_BITS)

    def add(self, encoder: RowEncoder, rows: Iterable[Sequence[Cell]]) -> None:
        """Add ``rows`` to the sums."""
        counts, sums, hashes = self._counts, self._hashes, encoder.hashes
        for row in rows:
            key, row_hash = hashes(row)
            i = key[0] << 8 | key[1]
            counts[i] += 1
            sums[i] += row_hash

    def of(self, one: KeyRange) -> RangeSum:
        """The sum of a range."""
        part = slice(one.finest.start, one.finest.stop)
        return RangeSum(sum(self._counts[part]), sum(self._hashes[part]) % SUM_MODULUS)

    def parts(self, one: KeyRange) -> dict[KeyRange, RangeSum]:
        """The sums of the parts of a range, without those that have no rows."""
        return {part: found for part in one.parts if (found := self.of(part)).rows}


def in_ranges(encoder: RowEncoder, ranges: Iterable[KeyRange]) -> Callable[[Sequence[Cell]], bool]:
    """A function that returns whether a row is in one of ``ranges``."""
    wanted = bytearray(1 << FINEST_BITS)
    for one in ranges:
        wanted[one.finest.start : one.finest.stop] = b"\x01" * len(one.finest)
    key_hash = encoder.key_hash

    def is_in(row: Sequence[Cell]) -> bool:
        key = key_hash(row)
        return wanted[key[0] << 8 | key[1]] == 1

    return is_in


def next_steps(
    mine: RangeSums, of: KeyRange, theirs: Mapping[KeyRange, RangeSum]
) -> tuple[list[KeyRange], list[KeyRange]]:
    """The parts of ``of`` in which two holders differ: those to split further, and those to read. ``theirs`` are the
    other's sums of the parts; one that is left out has no rows."""
    split: list[KeyRange] = []
    read: list[KeyRange] = []
    for part in of.parts:
        here, there = mine.of(part), theirs.get(part, EMPTY)
        if here != there:
            small = max(here.rows, there.rows) <= FEW_ROWS
            (read if small or not part.can_be_split else split).append(part)
    return split, read


def differing_ranges(mine: RangeSums, theirs: RangeSums) -> list[KeyRange]:
    """The ranges to read where both holders' sums are at hand."""
    split, read = next_steps(mine, WHOLE, theirs.parts(WHOLE))
    for one in split:
        read += next_steps(mine, one, theirs.parts(one))[1]
    return read
