"""The bell rings each database when it was rung, and at every time at which it is due."""

from __future__ import annotations

import time

from anabranch_conflict_resolver.loop.wakeups import Bell


def test_a_database_is_due_at_each_of_its_times() -> None:
    """A time that has passed takes no later one with it."""
    bell = Bell()
    started = time.monotonic()
    for delay_s in (0.06, 0.02, 0.1):
        bell.ring_in(7, delay_s)
    rung: list[float] = []
    while len(rung) < 3:
        number = bell.take(5.0)
        assert number == 7
        rung.append(time.monotonic() - started)
        bell.done(7)
    assert all(at >= due for at, due in zip(rung, (0.02, 0.06, 0.1), strict=True))
    assert bell.take(0.0) is None


def test_who_is_worked_on_is_given_to_nobody_else_and_looked_at_once_more() -> None:
    bell = Bell()
    bell.ring(1)
    bell.ring(2)
    assert (bell.take(0.0), bell.take(0.0)) == (1, 2)
    bell.ring(1)
    assert bell.take(0.0) is None
    bell.done(1)
    assert bell.take(0.0) == 1


def test_a_database_that_rests_holds_up_no_other_and_is_not_woken_early() -> None:
    bell = Bell()
    bell.ring(1)
    assert bell.take(0.0) == 1
    started = time.monotonic()
    bell.rest(1, 0.2)
    bell.done(1)
    bell.ring(1)
    bell.ring(2)
    assert bell.take(0.0) == 2
    assert bell.take(0.0) is None
    assert bell.take(5.0) == 1
    assert 0.2 <= time.monotonic() - started < 5.0
    bell.done(1)
    assert bell.take(0.0) is None
