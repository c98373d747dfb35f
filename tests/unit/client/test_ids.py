"""Ids of one file only grow, whatever its clock does."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from anabranch.client.writes.ids import first_id_at, next_id
from anabranch.merge import ulid_time_ms

TIMES = st.integers(0, 2**47)


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=30))
def test_each_id_is_later_than_the_last_and_than_what_was_seen(steps: list[tuple[int, int]]) -> None:
    last = ""
    for now, seen in steps:
        new = next_id(last, now, seen)
        assert str(ULID.from_str(new)) == new
        assert new > last
        assert ulid_time_ms(new) > seen
        assert ulid_time_ms(new) >= now
        last = new


def test_while_the_clock_stands_ids_grow_by_random_steps() -> None:
    ids = [next_id("", 1000, 0)]
    for _ in range(1000):
        ids.append(next_id(ids[-1], 500, 0))
    steps = {int(ULID.from_str(b)) - int(ULID.from_str(a)) for a, b in itertools.pairwise(ids)}
    assert min(steps) > 0
    assert len(steps) > 990


def test_when_a_millisecond_is_used_up_the_next_one_begins() -> None:
    full = str(ULID.from_int((1000 << 80) | (2**80 - 1)))
    assert ulid_time_ms(next_id(full, 1000, 0)) == 1001


def test_a_time_that_fits_into_no_id_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        next_id("", 2**48, 0)


@given(st.integers(1, 2**47))
def test_a_bound_lies_before_every_id_of_its_time(time_ms: int) -> None:
    assert first_id_at(time_ms) <= next_id("", time_ms, 0) < first_id_at(time_ms + 1)
