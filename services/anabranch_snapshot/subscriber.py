"""One subscriber while it is live: a queue between the tail and its client.

States of a *subscriber* (one call of Subscribe):

* *catching up*: it reads pages for itself, from its own place, and holds no more than the one page that it is sending.
* *live*: it follows the tail. Pages wait in its queue until its client takes them, in the order of the log, those that
  wait as one; ``next`` is where the last of them ends.
* *overflowed*: its client is too slow, and the queue grew beyond ``subscriber_queue_bytes``; or the tail went past a
  place where it does not stand. The queue is dropped, and it catches up again from the last page that it sent, so that
  nothing is sent twice or left out.
* *failed*: the tail could not go on. The call ends with the tail's reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from anabranch.store.log.history import SeenGroup
from anabranch_snapshot.page_tokens import Place

JOINED_BYTES = 256 * 1024
"""The most that responses have which are joined to one."""


@dataclass(frozen=True, slots=True)
class Shared:
    """A response as every subscriber gets it, or all that see the same: from one place to another. A heartbeat ends
    where it begins. ``known``: the head of the moment that it was read in."""

    start: Place
    end: Place
    data: bytes
    known: SeenGroup

    def __len__(self) -> int:
        return len(self.data)

    @property
    def is_heartbeat(self) -> bool:
        """Whether nothing of the log is in it."""
        return self.start == self.end


class Subscriber:
    """One follower while it is live. ``next`` is where its queue ends. One that has ``gaps`` is not offered pages in
    which it sees nothing: what it is offered may begin behind that place."""

    __slots__ = ("_bytes", "_failure", "_gaps", "_overflowed", "_queue", "_room", "_waiting", "next")

    def __init__(self, place: Place, room: int, *, gaps: bool = False) -> None:
        self.next = place
        self._room = room
        self._gaps = gaps
        self._queue: deque[Shared] = deque()
        self._bytes = 0
        self._overflowed = False
        self._failure: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    def offer(self, shared: Shared) -> bool:
        """Take a response that begins where the queue ends, or that one has got already. False: it has overflowed."""
        if shared.start != self.next and not (self._gaps and shared.start.cursor >= self.next.cursor):
            if self.next.cursor >= shared.end.cursor:
                return True
            self._overflow()
            return False
        if shared.is_heartbeat and self._queue:
            return True
        if self._queue and self._bytes + len(shared.data) > self._room:
            self._overflow()
            return False
        self._queue.append(shared)
        self._bytes += len(shared.data)
        self.next = shared.end
        self._wake()
        return True

    def fail(self, failure: Exception) -> None:
        """End it with ``failure``, after what waits in its queue."""
        self._failure = failure
        self._wake()

    async def take(self) -> Shared | None:
        """The next response; None once it has overflowed. Raises the exception that ``fail`` was called with."""
        while True:
            if self._overflowed:
                return None
            if self._queue:
                return self._joined()
            if self._failure is not None:
                raise self._failure
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def _joined(self) -> Shared:
        """One response of all that waits: a message costs gRPC the same whatever its size, so that whoever is behind is
        caught up with fewer of them. The bytes of several messages of a kind one after the other are those of one that
        has the repeated fields of all, and of other fields the last."""
        first = last = self._queue.popleft()
        parts, size = [first.data], len(first.data)
        # The sums of a heartbeat are those of its own place; and a group that is split over pages stays split.
        while (
            self._queue
            and not last.is_heartbeat
            and last.end.cursor.between_groups
            and size + len(self._queue[0].data) <= JOINED_BYTES
        ):
            last = self._queue.popleft()
            parts.append(last.data)
            size += len(last.data)
        self._bytes -= size
        return first if last is first else Shared(first.start, last.end, b"".join(parts), last.known)

    def _overflow(self) -> None:
        self._queue.clear()
        self._bytes = 0
        self._overflowed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
