"""Each database is woken when something came, and at every time at which it is due."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from anabranch_conflict_resolver.loop.wakeups import Wakeups


def test_a_database_is_due_at_each_of_its_times() -> None:
    """A time that has passed takes no later one with it."""
    wakeups = Wakeups()
    started = time.monotonic()
    for delay_s in (0.06, 0.02, 0.1):
        wakeups.wake_in(7, delay_s)
    woken: list[float] = []
    while len(woken) < 3:
        number = wakeups.take(5.0)
        assert number == 7
        woken.append(time.monotonic() - started)
        wakeups.done(7)
    assert all(at >= due for at, due in zip(woken, (0.02, 0.06, 0.1), strict=True))
    assert wakeups.take(0.0) is None


def test_who_is_worked_on_is_given_to_nobody_else_and_looked_at_once_more() -> None:
    wakeups = Wakeups()
    wakeups.wake(1)
    wakeups.wake(2)
    assert (wakeups.take(0.0), wakeups.take(0.0)) == (1, 2)
    wakeups.wake(1)
    assert wakeups.take(0.0) is None
    wakeups.done(1)
    assert wakeups.take(0.0) == 1


def test_a_database_that_rests_holds_up_no_other_and_is_not_woken_early() -> None:
    wakeups = Wakeups()
    wakeups.wake(1)
    assert wakeups.take(0.0) == 1
    started = time.monotonic()
    wakeups.rest(1, 0.2)
    wakeups.done(1)
    wakeups.wake(1)
    wakeups.wake(2)
    assert wakeups.take(0.0) == 2
    assert wakeups.take(0.0) is None
    assert wakeups.take(5.0) == 1
    assert 0.2 <= time.monotonic() - started < 5.0
    wakeups.done(1)
    assert wakeups.take(0.0) is None


def test_whoever_still_waits_is_in_time_for_what_is_due() -> None:
    wakeups = Wakeups()
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(wakeups.take, 20.0) for _ in range(2)]
        started = time.monotonic()
        wakeups.wake_in(7, 0.3)
        wakeups.wake(1)
        assert {one.result() for one in taken} == {1, 7}
    assert 0.3 <= time.monotonic() - started < 10.0


def test_nobody_waits_after_the_end() -> None:
    wakeups = Wakeups()
    with ThreadPoolExecutor(2) as pool:
        taken = [pool.submit(wakeups.take, 60.0) for _ in range(2)]
        wakeups.end()
        assert [one.result(10) for one in taken] == [None, None]
    wakeups.wake(1)
    assert wakeups.take(60.0) is None
