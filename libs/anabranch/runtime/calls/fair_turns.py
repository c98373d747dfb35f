"""Turns that principals get one after the other, so that a busy one delays itself and no other.

A principal that wants a turn stands in its own line. A turn that comes free goes to the line that has waited longest
for one, and not to the line that is longest. What no principal asked for stands in a line of its own, as one would.
Everything in one event loop.

Turns in order are not enough where what is done in them shares one processor: a principal that holds all turns but one
makes each step of the one beside it wait for as many steps of its own. So one principal may be held to fewer turns
while others take some, and has all of them when it is alone. That comes with time alone, so a timer looks for it
(``_watch``) while turns are free and somebody is held back. What no principal asked for is never held back so: it is
beside nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable

ALONE_S = 1.0
"""A principal is alone when no other waits for a turn, and none has asked for one, or got one, for so long."""


class FairTurns:
    """``count`` turns at once, at most ``of_one`` of them with one principal (None: all of them), and at most
    ``beside`` while other principals take turns (None: as many as alone). ``told`` is called whenever turns, or those
    who wait for one, have changed."""

    def __init__(
        self,
        count: int,
        of_one: int | None = None,
        told: Callable[[], None] | None = None,
        *,
        beside: int | None = None,
    ) -> None:
        self._free = count
        self._of_one = count if of_one is None else min(of_one, count)
        self._beside = self._of_one if beside is None else min(beside, self._of_one)
        # The principal that was seen here last, when that was, and when another than it was.
        self._latest, self._latest_s, self._before_s = "", -ALONE_S, -ALONE_S
        self._held: Counter[str] = Counter()
        # In the order in which they are served next.
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._told = told
        self._timer: asyncio.TimerHandle | None = None
        self.held = 0
        """How many turns are held."""
        self.waiting = 0
        """How many wait for one."""

    def waiting_of(self, subject: str) -> int:
        """How many of a principal wait for a turn."""
        line = self._lines.get(subject)
        return 0 if line is None else len(line)

    def is_free(self, subject: str) -> bool:
        """Whether a principal gets a turn at once."""
        return self._free > 0 and self._may_hold_more(subject)

    def wanted(self, subject: str) -> bool:
        """Whether a turn that this principal gave back would be another's, or another of its own."""
        return any(line == subject or self._may_hold_more(line) for line in self._lines)

    def starved(self) -> bool:
        """Whether a principal waits that has no turn at all."""
        return any(not self._held[line] for line in self._lines)

    async def take(self, subject: str) -> None:
        """Wait for a turn of this principal, which ``give_back`` ends."""
        # Nobody else waits who may have a free turn: turns are handed on at once.
        if subject not in self._lines and self.is_free(subject):
            self._hold(subject)
            self._tell()
            return
        self._see(subject)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(subject, deque()).append(turn)
        self.waiting += 1
        self._hand_on()
        self._tell()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # It was handed on in this very moment.
                self.give_back(subject)
            else:
                self._leave(subject, turn)
            raise

    def give_back(self, subject: str) -> None:
        """End a turn of this principal, and hand it on."""
        self._free += 1
        self.held -= 1
        self._held[subject] -= 1
        if self._held[subject] <= 0:
            del self._held[subject]
        self._hand_on()
        self._tell()

    def _hand_on(self) -> None:
        while self._free and (following := self._following()) is not None:
            line = self._lines.pop(following)
            turn = line.popleft()
            self.waiting -= 1
            if line:
                # The principal goes to the end.
                self._lines[following] = line
            # One that was cancelled just now has not left yet.
            if not turn.done():
                self._hold(following)
                turn.set_result(None)
        self._watch()

    def _watch(self) -> None:
        """Look again when a principal that is held back will be alone, if none comes until then."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        principals = list(itertools.islice(filter(None, self._lines), 2)) if self._free else []
        if len(principals) == 1 and self._held[principals[0]] < self._of_one:
            left_s = self._others_s(principals[0]) + ALONE_S - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._hand_on()
        self._tell()

    @contextlib.asynccontextmanager
    async def turn(self, subject: str) -> AsyncIterator[None]:
        """A turn for a block."""
        await self.take(subject)
        try:
            yield
        finally:
            self.give_back(subject)

    def _hold(self, subject: str) -> None:
        self._free -= 1
        self.held += 1
        self._held[subject] += 1
        self._see(subject)

    def _see(self, subject: str) -> None:
        # Work that no principal asked for is done for all of them, and is beside nobody.
        if self._beside < self._of_one and subject:
            if subject != self._latest:
                self._latest, self._before_s = subject, self._latest_s
            self._latest_s = time.monotonic()

    def _may_hold_more(self, subject: str) -> bool:
        held = self._held[subject]
        if held >= self._of_one:
            return False
        if held < self._beside or not subject:
            return True
        if any(line and line != subject for line in self._lines):
            return False
        return time.monotonic() - self._others_s(subject) >= ALONE_S

    def _others_s(self, subject: str) -> float:
        """When another principal than this one was seen last."""
        return self._before_s if subject == self._latest else self._latest_s

    def _following(self) -> str | None:
        return next(filter(self._may_hold_more, self._lines), None)

    def _leave(self, subject: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(subject)
        if line is not None and turn in line:
            line.remove(turn)
            self.waiting -= 1
            if not line:
                del self._lines[subject]
                # The one that waits still may be alone from now on.
                self._hand_on()
            self._tell()

    def _tell(self) -> None:
        if self._told is not None:
            self._told()
