"""Tracks which databases have work, and which of them a worker is on.

Each database is in one of four states: *quiet*; *woken* (work came, no worker is on it); *worked on* by one worker of
this process; *worked on and woken again*, so that it is looked at once more. ``take`` moves a woken one to worked on,
``done`` back to quiet or woken. A database may also be due at times, each of which wakes it then; beyond
``_MOST_DUE`` of them all together, those that are added are left to the listener's regular look. A database whose group
failed *rests*: it is woken, and not given out before its pause is over, however often it is woken meanwhile. After
``end`` nothing is given out any more, and nobody waits.
"""

from __future__ import annotations

import heapq
import time
from threading import Condition

_MOST_DUE = 10_000


class Wakeups:
    """Shared by the listener, which wakes, and the workers, which take."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._woken: dict[int, None] = {}
        self._worked_on: set[int] = set()
        self._due: list[tuple[float, int]] = []
        self._rests: dict[int, float] = {}
        self._ended = False

    def end(self) -> None:
        """Have all workers that wait, and that come, go without work."""
        with self._condition:
            self._ended = True
            self._condition.notify_all()

    def wake(self, database_id: int) -> None:
        """Note that there is work in the database."""
        with self._condition:
            self._woken[database_id] = None
            if database_id not in self._worked_on:
                self._condition.notify()

    def wake_in(self, database_id: int, delay_s: float) -> None:
        """Note that there will be work in the database in ``delay_s`` seconds."""
        at = time.monotonic() + delay_s
        with self._condition:
            if len(self._due) < _MOST_DUE:
                heapq.heappush(self._due, (at, database_id))
                # Whoever is left waiting by then has to know of it.
                self._condition.notify_all()

    def take(self, timeout_s: float) -> int | None:
        """Take a database with work that no worker is on, the longest woken first; None after ``timeout_s``, or the
        end."""
        end = time.monotonic() + timeout_s
        with self._condition:
            while not self._ended:
                now = time.monotonic()
                while self._due and self._due[0][0] <= now:
                    self._woken[heapq.heappop(self._due)[1]] = None
                for number in self._woken:
                    if number not in self._worked_on and self._rests.get(number, 0.0) <= now:
                        del self._woken[number]
                        self._rests.pop(number, None)
                        self._worked_on.add(number)
                        return number
                if now >= end:
                    return None
                over = [at for number in self._woken if (at := self._rests.get(number, 0.0)) > now]
                self._condition.wait(min(end, *over, self._due[0][0] if self._due else end) - now)
            return None

    def busy(self) -> frozenset[int]:
        """The databases that a worker is on, or will be on next."""
        with self._condition:
            return frozenset(self._worked_on | self._woken.keys())

    def done(self, database_id: int) -> None:
        """Note that the worker has left the database."""
        with self._condition:
            self._worked_on.discard(database_id)
            if database_id in self._woken:
                self._condition.notify()

    def rest(self, database_id: int, pause_s: float) -> None:
        """Note that there is work in the database, for any free worker, once a pause is over."""
        with self._condition:
            self._rests[database_id] = time.monotonic() + pause_s
            self._woken[database_id] = None
            self._condition.notify_all()
