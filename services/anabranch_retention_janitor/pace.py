"""Decides how many rows a statement takes, and removes rows by such statements.

The number begins at the most; a statement that runs into its time limit halves it, and each that takes less than a
fifth of that doubles it again. So a slow disk or a busy server gets smaller pieces, and even with one row a statement
there is progress. After each statement the janitor rests as long as it took: at most half of a session's time is used.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from anabranch import faults
from anabranch.errors import ServerError
from anabranch.store.retention.floor import is_timeout

_log = structlog.get_logger()
_TRIES_AT_LEAST = 3


class StoppedError(ServerError):
    """The process is about to end: the sweep ends where it is."""


@dataclass(slots=True)
class SweepPace:
    """``rows``: how many a statement takes now, from 1 to ``most``."""

    most: int
    rows: int = 0

    def __post_init__(self) -> None:
        self.rows = self.rows or self.most

    def shrink(self) -> bool:
        """Half as many; False where it is one already."""
        was, self.rows = self.rows, max(1, self.rows // 2)
        return was > 1

    def grow(self) -> None:
        """Twice as many."""
        self.rows = min(self.most, self.rows * 2)


@dataclass(slots=True)
class SweepTurn:
    """One sweep's time. ``still``: raises where the lead is lost; it is asked by one thread at a time. ``until``: by
    the monotonic clock. ``ask_s``: how long the lead may go without being asked for."""

    still: Callable[[], None]
    stopping: threading.Event
    until: float
    timeout_s: float
    ask_s: float

    def over(self) -> bool:
        """Whether the sweep's time is up. Raises StoppedError, psycopg.Error (the lead is lost)."""
        if self.stopping.is_set():
            raise StoppedError
        self.still()
        return time.monotonic() >= self.until

    @contextmanager
    def long(self) -> Iterator[None]:
        """For a block that may take long: the lead is asked for all the while, since Postgres ends a session of which
        it hears nothing. Raises psycopg.Error (the lead is lost) at its end."""
        done = threading.Event()
        lost: list[Exception] = []

        def ask() -> None:
            while not done.wait(self.ask_s):
                try:
                    self.still()
                except Exception as error:
                    lost.append(error)
                    return

        asking = threading.Thread(target=ask, name="lead", daemon=True)
        asking.start()
        try:
            yield
        finally:
            done.set()
            asking.join()
        if lost:
            raise lost[0]

    def rest(self, took_s: float) -> None:
        """Pause as long as a statement took, so that other sessions go first."""
        self.stopping.wait(min(took_s, self.timeout_s))


def in_pieces(turn: SweepTurn, pace: SweepPace, piece: Callable[[int], int]) -> tuple[int, bool]:
    """``piece`` removes at most so many rows and gives how many; again and again, until it finds fewer, the time is up,
    or one row takes too long. Gives the rows removed, and whether nothing is left."""
    removed, misses = 0, 0
    while not turn.over():
        began, asked = time.monotonic(), pace.rows
        try:
            found = piece(asked)
        except Exception as error:
            if not is_timeout(error):
                raise
            misses += 0 if pace.shrink() else 1
            if misses >= _TRIES_AT_LEAST:
                _log.warning("a row takes too long; it is left for a later sweep", detail=error)
                return removed, False
            turn.rest(time.monotonic() - began)
            continue
        removed += found
        if found:
            faults.reach("after_removal")
        if found < asked:
            return removed, True
        took_s = time.monotonic() - began
        if took_s < turn.timeout_s / 5:
            pace.grow()
        turn.rest(took_s)
    return removed, False
