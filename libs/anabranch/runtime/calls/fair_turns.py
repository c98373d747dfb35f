"""Turns that principals get one after the other, so that a busy one delays itself and no other.

A principal that wants a turn stands in its own line. A turn that comes free goes to the line that has waited longest
for one, and not to the line that is longest. What no principal asked for stands in a line of its own, as one would.
Everything in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable


class FairTurns:
    """``count`` turns at once, at most ``of_one`` of them with one principal (None: all of them). ``told`` is called
    whenever turns, or those who wait for one, have changed."""

    def __init__(self, count: int, of_one: int | None = None, told: Callable[[], None] | None = None) -> None:
        self._free = count
        self._of_one = count if of_one is None else min(of_one, count)
        self._held: Counter[str] = Counter()
        # In the order in which they are served next.
        self._lines: dict[str, deque[asyncio.Future[None]]] = {}
        self._told = told
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
        return self._free > 0 and self._held[subject] < self._of_one

    def wanted(self, subject: str) -> bool:
        """Whether a turn that this principal gave back would be another's, or another of its own."""
        return any(line == subject or self._held[line] < self._of_one for line in self._lines)

    def starved(self) -> bool:
        """Whether a principal waits that has no turn at all."""
        return any(not self._held[line] for line in self._lines)

    async def take(self, subject: str) -> None:
        """Wait for a turn of this principal, which ``give_back`` ends."""
        # Nobody waits who may have a free turn: turns are handed on at once.
        if self.is_free(subject):
            self._hold(subject)
            self._tell()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(subject, deque()).append(turn)
        self.waiting += 1
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

    def _following(self) -> str | None:
        return next((subject for subject in self._lines if self._held[subject] < self._of_one), None)

    def _leave(self, subject: str, turn: asyncio.Future[None]) -> None:
        line = self._lines.get(subject)
        if line is not None and turn in line:
            line.remove(turn)
            self.waiting -= 1
            if not line:
                del self._lines[subject]
            self._tell()

    def _tell(self) -> None:
        if self._told is not None:
            self._told()
