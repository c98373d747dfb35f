"""Two holders of a table find what differs, and read little more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.ranges import (
    FAN_OUT,
    FEW_ROWS,
    FINEST_BITS,
    WHOLE,
    KeyRange,
    RangeSums,
    differing_ranges,
    in_ranges,
    next_steps,
)
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.canonical import RowEncoder, table_sum

TABLE = Table("t", (Column("n", Kind.INT64, "bigint"), Column("id", Kind.INT64, "bigint")), ("id",))
ENCODER = RowEncoder(TABLE)


def sums_of(rows: dict[int, int]) -> RangeSums:
    sums = RangeSums()
    sums.add(ENCODER, ((n, i) for i, n in rows.items()))
    return sums


@pytest.mark.slow
def test_parts_of_a_range_are_its_rows_exactly_once() -> None:
    rows: list[tuple[Cell, ...]] = [(i, i) for i in range(3_000)]
    sums = RangeSums()
    sums.add(ENCODER, rows)
    assert sums.of(WHOLE) == table_sum(ENCODER, rows)
    for part, found in sums.parts(WHOLE).items():
        is_in = in_ranges(ENCODER, [part])
        assert found == table_sum(ENCODER, filter(is_in, rows))
        assert sum(finer.rows for finer in sums.parts(part).values()) == found.rows
    finest = [number for part in WHOLE.parts for number in part.finest]
    assert finest == list(range(1 << FINEST_BITS))
    assert not KeyRange(8, FAN_OUT).is_valid
    assert not KeyRange(4, 0).is_valid


@pytest.mark.slow
@given(
    st.sets(st.integers(0, 4_999), max_size=5),
    st.sets(st.integers(0, 4_999), max_size=5),
    st.sets(st.integers(5_000, 5_010)),
)
def test_every_difference_lies_in_a_range_that_is_read(changed: set[int], gone: set[int], added: set[int]) -> None:
    theirs = {i: i for i in range(5_000)}
    mine = {i: n + (i in changed) for i, n in theirs.items() if i not in gone} | dict.fromkeys(added, 0)
    here, there = sums_of(mine), sums_of(theirs)
    read = differing_ranges(here, there)
    is_in = in_ranges(ENCODER, read)
    differing = {i for i in mine.keys() | theirs.keys() if mine.get(i) != theirs.get(i)}
    assert differing == {i for i in differing if is_in((0, i))}
    assert len(read) <= len(differing)
    # Rows that are read beside them share their ranges.
    assert sum(map(is_in, ((0, i) for i in theirs))) <= FEW_ROWS * len(differing)


def test_a_range_that_is_large_on_either_side_is_split_and_a_small_one_read() -> None:
    rows = dict.fromkeys(range(FAN_OUT * FEW_ROWS * 4), 0)
    assert next_steps(sums_of(rows), WHOLE, {}) == (WHOLE.parts, [])
    assert next_steps(RangeSums(), WHOLE, sums_of(rows).parts(WHOLE)) == (WHOLE.parts, [])
    split, read = next_steps(sums_of({1: 1}), WHOLE, {})
    assert (split, len(read)) == ([], 1)
    # The finest are read however many rows they have.
    finest = KeyRange(8, 0)
    assert next_steps(sums_of(rows), finest, {})[0] == []
