"""Answers that clients have not taken yet: how many bytes of them there are, and what happens where they are many.

gRPC takes one message of a call at a time, copies it, and keeps it until the client's window has room for it; a client
that reads nothing so holds what it was sent for as long as it likes. Therefore each answer of the log counts from when
it is to be made until it was taken: twice, because it is here and at gRPC; once where it is shared by all subscribers.

States of a call's answer (``Unread``): *none*; *reserved*, while it is read from the log; *sent*, while gRPC has it;
*ended*, once its call was chosen to make room, and until that call is gone.

Rules:

* Small answers, of ``SMALL_BYTES`` at most, are always given: so everybody goes on, whatever others hold.
* A large one needs room: in its principal's share, and in the whole. A principal that holds nothing has room.
* Where there is none, the call that has not taken its answer for longest ends, if that is longer than ``patience_s``:
  of the same principal where its share is used up, else of the one that holds most. Its client pages, and subscribes
  again. Meanwhile pages are small ones, and a subscriber that gets no live page in time reads small pages for itself.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from anabranch.runtime import metrics

SMALL_BYTES = 32 * 1024
_LOOK_S = 0.5
_MIB_BITS = 20


class _Line:
    """The answers that the calls of one principal hold, longest untaken first, and the calls that wait for room."""

    __slots__ = ("bytes", "calls", "ending", "holding", "waiting")

    def __init__(self) -> None:
        self.bytes = 0
        self.calls = 0
        self.ending = 0
        """Of these bytes those of calls that were ended, and are not gone yet."""
        self.holding: dict[Unread, None] = {}
        self.waiting: deque[tuple[Unread, int, asyncio.Future[None]]] = deque()


class Unread:
    """The answers of one call, one after the other. ``end`` ends the call; ``UnreadBytes.call`` makes it, and ``gone``
    is called when the call is over."""

    __slots__ = ("_all", "_end", "_is_gone", "_line", "_subject", "bytes", "ended", "sent_s")

    def __init__(self, all_: UnreadBytes, subject: str, line: _Line, end: Callable[[], None]) -> None:
        self._all = all_
        self._subject = subject
        self._line = line
        self._end = end
        self._is_gone = False
        self.bytes = 0
        self.ended = False
        self.sent_s: float | None = None
        """Since when gRPC has it, by the monotonic clock."""

    def reserve(self, size: int) -> bool:
        """Reserve room for an answer that is to be made, if there is any now. Where there is none, make some for
        later."""
        if size <= SMALL_BYTES or self._all.fits(self._line, size):
            self.hold(size)
            return True
        self._all.press(self._line, size)
        return False

    async def wait(self, size: int, timeout_s: float) -> bool:
        """Reserve room, and wait for it; whether there was any in time."""
        if self.reserve(size):
            return True
        line, until = self._line, time.monotonic() + timeout_s
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting.append((self, size, room))
        self._all.lines_waiting[self._subject] = line
        try:
            while not room.done() and time.monotonic() < until:
                await asyncio.wait({room}, timeout=_LOOK_S)
                self._all.press(line, size)
        finally:
            if not room.done():
                room.cancel()
        return not room.cancelled()

    def hold(self, size: int) -> None:
        """Reserve room in any case."""
        self._line.holding[self] = None
        self._change(size - self.bytes)

    def sent(self, size: int) -> None:
        """The answer is made, of ``size`` bytes, and goes out now."""
        # It goes to the end: the others have waited longer.
        self._line.holding.pop(self, None)
        self.hold(size)
        self.sent_s = time.monotonic()

    def taken(self) -> None:
        """The client has taken it; or it was not made."""
        if self.bytes and not self.ended:
            self._release()

    def gone(self) -> None:
        """The call is over."""
        if not self._is_gone:
            self._is_gone = True
            if self.ended:
                self._line.ending -= self.bytes
            self._release()
            self._all.leave(self._subject, self._line)

    def end(self) -> None:
        """End the call to make room; it counts until it is gone."""
        self.ended = True
        self._line.ending += self.bytes
        self._end()

    def _release(self) -> None:
        self._line.holding.pop(self, None)
        self._change(-self.bytes)
        self.sent_s = None
        self._all.hand_on(self._subject, self._line)

    def _change(self, by: int) -> None:
        self.bytes += by
        self._all.change(self._line, by)


class UnreadBytes:
    """The answers of all calls: at most ``most`` bytes, of one principal ``most_of_one``, as the module says."""

    def __init__(self, most: int, most_of_one: int, patience_s: float) -> None:
        self._most = most
        self._most_of_one = min(most_of_one, most)
        self._patience_s = patience_s
        self._bytes = 0
        self._told = -1
        self._lines: dict[str, _Line] = {}
        self.lines_waiting: dict[str, _Line] = {}
        """The lines in which somebody waits for room."""

    def call(self, subject: str, end: Callable[[], None]) -> Unread:
        """The answers that one call of a principal holds: none yet."""
        line = self._lines.get(subject)
        if line is None:
            line = self._lines[subject] = _Line()
        line.calls += 1
        return Unread(self, subject, line, end)

    def leave(self, subject: str, line: _Line) -> None:
        """A call of the line is over."""
        line.calls -= 1
        if not line.calls:
            del self._lines[subject]

    def fits(self, line: _Line, size: int) -> bool:
        """Whether a principal has room for a large answer more."""
        if not line.holding:
            return True
        return line.bytes + size <= self._most_of_one and self._bytes + size <= self._most

    def press(self, line: _Line, size: int) -> None:
        """There is no room in a line: end the call that has not taken its answer for longest."""
        room = self._most_of_one - line.bytes
        if room >= size:
            line = max(self._lines.values(), key=lambda one: one.bytes)
            room = self._most - self._bytes
        if room + line.ending >= size:
            # It comes free soon.
            return
        for one in line.holding:
            if one.sent_s is not None and not one.ended:
                if time.monotonic() - one.sent_s >= self._patience_s:
                    metrics.count("anabranch_calls_dropped", why="unread")
                    one.end()
                return

    def change(self, line: _Line, by: int) -> None:
        """A call of the line holds so much more, or less."""
        line.bytes += by
        self._bytes += by
        # Told in whole MiB: this is done for each page of each subscriber.
        begun = -(-self._bytes >> _MIB_BITS)
        if begun != self._told:
            self._told = begun
            metrics.gauge("anabranch_unread", self._bytes)

    def hand_on(self, subject: str, line: _Line) -> None:
        """Room has come free in a line: give it to those that wait, in it and in others."""
        if not self.lines_waiting:
            return
        first = [(subject, line)] if subject in self.lines_waiting else []
        for name, one in [*first, *self.lines_waiting.items()]:
            while one.waiting:
                unread, size, room = one.waiting[0]
                if not room.done():
                    if not self.fits(one, size):
                        break
                    unread.hold(size)
                    room.set_result(None)
                one.waiting.popleft()
            if not one.waiting:
                self.lines_waiting.pop(name, None)
