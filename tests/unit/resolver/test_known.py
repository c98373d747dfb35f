"""The databases that are looked at because no event trigger tells of their tables."""

from __future__ import annotations

from anabranch_conflict_resolver.loop.known import Known


def test_databases_without_event_triggers_are_given_in_turn() -> None:
    known = Known()
    for number in range(1, 6):
        known.cache(number).watched = number == 3
    every = range(1, 7)
    assert known.unwatched(every, after=0, most=3) == [1, 2, 4]
    assert known.unwatched(every, after=4, most=3) == [5, 6, 1]
    assert known.unwatched(every, after=6, most=10) == [1, 2, 4, 5, 6]


def test_a_database_that_is_not_known_yet_is_looked_at_once() -> None:
    known = Known()
    assert known.unwatched([7], after=0, most=3) == [7]
    known.cache(7).watched = True
    assert known.unwatched([7], after=0, most=3) == []
