"""The oracle of leaks: who may have seen a value, by spans of rows, audiences and memberships."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.testkit.attack.history import History

NOBODY: frozenset[str] = frozenset()
T1 = frozenset({"team:t1"})
T2 = frozenset({"team:t2"})


def history() -> History:
    return History(frozenset({"job"}))


def test_a_value_is_seen_by_claims_while_its_row_is_theirs() -> None:
    past = history()
    past.put((10, 0), "job", "1", ["v1"], T1)
    past.put((20, 0), "job", "1", ["v2"], T2)
    past.remove((30, 0), "job", "1")
    assert past.sees("alice", T1, "v1", 10)
    assert not past.sees("alice", T1, "v1", 9)
    assert not past.sees("alice", T1, "v2", 100)
    assert past.sees("alice", T2, "v2", 100)
    assert not past.sees("alice", NOBODY, "v1", 100)
    assert past.audiences("v2") == [T2]


def test_a_value_that_stays_in_a_row_that_moves_is_seen_from_its_move_on() -> None:
    past = history()
    past.put((10, 0), "job", "1", ["key", "v1"], T2)
    past.put((20, 0), "job", "1", ["key", "v1"], T1)
    assert not past.sees("alice", T1, "v1", 19)
    assert past.sees("alice", T1, "v1", 20)


def test_memberships_and_rows_must_meet_at_one_position() -> None:
    past = history()
    past.put((10, 0), "job", "1", ["v1"], T1)
    past.join(20, "bob", T1)
    past.put((30, 0), "job", "1", ["v2"], T1)
    # A group's own set rules its changes: what it writes while it revokes is not seen, what it grants is.
    past.join(40, "bob", NOBODY)
    past.put((40, 0), "job", "1", ["v3"], T1)
    past.join(50, "bob", T1)
    past.put((50, 0), "job", "1", ["v4"], T1)
    assert [past.sees("bob", NOBODY, mark, 100) for mark in ("v1", "v2", "v3", "v4")] == [True, True, False, True]
    # Between the commits that one group has, the row may have come first.
    assert past.sees("bob", NOBODY, "v3", 100, between=True)
    past.put((60, 0), "job", "2", ["w1"], T1)
    past.join(70, "bob", NOBODY)
    past.put((70, 0), "job", "2", ["w2"], T1)
    past.put((80, 0), "job", "2", ["w3"], T1)
    assert [past.sees("bob", NOBODY, mark, 100) for mark in ("w1", "w2", "w3")] == [True, False, False]
    assert [past.sees("bob", NOBODY, mark, 100, between=True) for mark in ("w1", "w2", "w3")] == [True, True, False]
    assert not past.sees("bob", NOBODY, "v1", 19)


def test_a_row_that_goes_where_the_membership_comes_was_never_seen() -> None:
    past = history()
    past.put((10, 0), "job", "1", ["v1"], T1)
    past.join(20, "bob", T1)
    past.remove((20, 0), "job", "1")
    assert not past.sees("bob", NOBODY, "v1", 100)


def test_what_stood_between_two_changes_of_one_group_was_there() -> None:
    past = history()
    past.put((10, 0), "job", "1", ["v1"], T1)
    past.put((10, 1), "job", "1", ["v2"], T2)
    assert past.sees("alice", T1, "v1", 10)
    assert not past.sees("alice", T1, "v2", 10)


def test_what_lost_is_seen_by_those_who_saw_the_row_before_and_after() -> None:
    past = history()
    past.lose((10, 0), "both", T1, T1)
    past.lose((10, 0), "left", T1, T2)
    past.lose((10, 0), "new", NOBODY, T1)
    seen = {mark: past.sees("alice", T1, mark, 10) for mark in ("both", "left", "new")}
    assert seen == {"both": True, "left": False, "new": True}
    assert past.sees("carol", T1 | T2, "left", 10)
    assert not past.sees("alice", T1, "both", 9)


def test_what_somebody_sent_comes_back_to_them_only() -> None:
    past = history()
    past.send("alice", "own")
    assert past.sees("alice", NOBODY, "own", 0)
    assert not past.sees("bob", T1, "own", 100)
    assert past.knows("own")
    assert not past.knows("other")


def test_rows_are_counted_as_they_were_seen() -> None:
    past = history()
    past.put((10, 0), "job", "1", [], T1)
    past.put((10, 1), "job", "2", [], T2)
    past.put((20, 0), "job", "3", [], T1)
    past.remove((30, 0), "job", "1")
    past.remove((30, 1), "job", "3")
    past.put((30, 2), "job", "4", [], T1)
    assert [past.most_rows("a", T1, "job", at) for at in (5, 10, 20, 30)] == [0, 1, 2, 2]
    assert [past.rows_ever("a", T1, "job", at) for at in (5, 10, 20, 30)] == [0, 1, 2, 3]
    assert past.most_rows("a", T1 | T2, "job", 30) == 3
    assert past.counts("job", "team:t1", 20) == {0, 1, 2}
    assert past.counts("job", "team:t1", 30) == {0, 1, 2}
    assert past.counts("job", "team:t2", 30) == {0, 1}
    past.join(40, "bob", T2)
    assert past.most_rows("bob", NOBODY, "job", 39) == 0
    assert past.most_rows("bob", NOBODY, "job", 40) == 1


def test_audiences_are_held_from_their_position_on() -> None:
    past = history()
    past.join(20, "bob", T1)
    past.join(30, "bob", NOBODY)
    assert not past.holds("bob", NOBODY, "team:t1", 19)
    assert past.holds("bob", NOBODY, "team:t1", 99)
    assert past.holds("bob", T2, "team:t2", 0)


AUDIENCES = st.sampled_from([NOBODY, T1, T2, T1 | T2])
CHANGES = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from("abc"), AUDIENCES)
    | st.tuples(st.just(2), st.just("alice"), AUDIENCES),
    max_size=30,
)


@pytest.mark.slow
@settings(max_examples=1_500, deadline=None)
@given(st.lists(CHANGES, max_size=6), AUDIENCES)
def test_the_most_rows_at_once_are_those_of_the_fullest_place(groups: list[Any], claimed: frozenset[str]) -> None:
    """Against a count at each place, of each row by itself."""
    past = history()
    for position, changes in enumerate(groups, 1):
        for _, principal, audiences in [one for one in changes if one[0] == 2][:1]:
            past.join(position, principal, audiences)
        for ordinal, (kind, key, audiences) in enumerate(changes):
            if kind == 0:
                past.put((position, ordinal), "job", key, [], audiences)
            elif kind == 1:
                past.remove((position, ordinal), "job", key)
    parts = [part for _, span in past._spans["job"] for part in past._seen("alice", claimed, span)]
    most = 0
    for position in range(len(groups) + 1):
        for ordinal in range(-1, 31):
            most = max(most, sum(begin <= (position, ordinal) < end for begin, end in parts))
        assert past.most_rows("alice", claimed, "job", position) == most
