"""The queue of submissions: principals take turns, so that a busy one delays itself and no other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from anabranch.runtime.errors import CallError
from anabranch.store.inbox.append import NO_LOAD, Arrival, Load, load_of
from anabranch.store.nodes.tokens import Call, Mode
from anabranch.v1 import errors_pb2
from anabranch_ingest.waiting import Ticket


@dataclass(slots=True, eq=False)
class Submission:
    """Batches of one call on their way into the inbox, and the call's token.

    States: *queued*, *taken* (by an append under way), *resting* (until it is queued again), *done*. ``admitted``:
    the token was found good (or there was none to look at). ``open``: the batches of which it is not yet known that
    they wait in the inbox, or have a verdict. ``abandoned``: the caller is gone; it is dropped as long as it is
    queued. ``unanswered``: ids that the call names beside its batches.

    ``on_leaving`` is called once, when nothing will be done for it any more, with the load that was appended at most:
    all of it where a commit's answer was lost (``certain`` is false then). ``known``: the load of the batches that were
    found to be there already. ``holder``: the group in which it was taken, None while it rests or is queued."""

    database_id: int
    principal: str
    call: Call | None
    unanswered: frozenset[str]
    open: list[Arrival]
    ticket: Ticket
    done: asyncio.Future[None]
    admitted: bool = False
    abandoned: bool = False
    certain: bool = True
    known: Load = NO_LOAD
    holder: object = None
    on_leaving: Callable[[Load], None] | None = None
    batches: int = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.batches = max(1, len(self.open))
        self.size = sum(len(arrival.payload) for arrival in self.open)

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do for it. A call that only extends is removed when that is done."""
        extends = self.call is not None and self.call.mode is Mode.EXTEND
        return self.admitted and not self.open and not extends

    def leave_out(self, unknown: list[Arrival]) -> None:
        """Of its open batches only the ``unknown`` ones are left: the others are there already."""
        self.known = self.known.more(load_of(self.open).less(load_of(unknown)))
        self.open = unknown

    def finish(self) -> None:
        """Everything is in the inbox, or has its verdict on the ticket."""
        if not self.done.done():
            self.done.set_result(None)
        self.leave()

    def fail(self, error: Exception) -> None:
        """The call fails."""
        if not self.done.done():
            self.done.set_exception(error)
        self.leave()

    def leave(self) -> None:
        """Nothing will be done for it any more."""
        if self.on_leaving is not None:
            on_leaving, self.on_leaving = self.on_leaving, None
            load = Load(self.batches, self.size)
            on_leaving(load.less(load_of(self.open)).less(self.known) if self.certain else load)


PRINCIPALS_SHARE = 2
"""One principal fills at most this part of the queue: there is always room for others."""


@dataclass(slots=True, eq=False)
class Line:
    """The submissions of one principal that wait."""

    waiting: deque[Submission] = field(default_factory=deque)
    batches: int = 0
    size: int = 0

    def add(self, submission: Submission) -> None:
        """Put at its end."""
        self.waiting.append(submission)
        self.batches += submission.batches
        self.size += submission.size

    def pop(self) -> Submission:
        """Take from its front."""
        first = self.waiting.popleft()
        self.batches -= first.batches
        self.size -= first.size
        return first


class FairQueue:
    """Submissions by principal; at most ``max_batches`` batches and ``max_bytes`` of payload."""

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._batches = 0
        self._bytes = 0
        self._of: dict[str, Line] = {}
        self._filled = asyncio.Event()

    def put(self, submission: Submission) -> None:
        """Add to the end of the principal's line.

        Raises:
            CallError: OVERLOADED, the queue or the principal's share of it is full.
        """
        most, most_bytes = self._max_batches, self._max_bytes
        own = self._of.get(submission.principal)
        full = bool(self._batches) and not _fits(submission, self._batches, self._bytes, most, most_bytes)
        share, share_bytes = most // PRINCIPALS_SHARE, most_bytes // PRINCIPALS_SHARE
        if full or (own is not None and not _fits(submission, own.batches, own.size, share, share_bytes)):
            raise CallError(
                errors_pb2.REASON_OVERLOADED,
                "the server takes in batches more slowly than they come: send again in a second",
                retry_after_ms="1000",
            )
        self.put_back(submission)

    def put_back(self, submission: Submission) -> None:
        """``put`` for one that was in before: it is not refused."""
        self._batches += submission.batches
        self._bytes += submission.size
        line = self._of.get(submission.principal)
        if line is None:
            line = self._of[submission.principal] = Line()
        line.add(submission)
        self._filled.set()

    async def take(self, max_batches: int, max_bytes: int) -> list[Submission]:
        """Wait for submissions, and take one of each principal in turn up to the limits, and one in any case."""
        while True:
            while not self._of:
                self._filled.clear()
                await self._filled.wait()
            taken = self._take(max_batches, max_bytes)
            if taken:
                return taken

    def _take(self, max_batches: int, max_bytes: int) -> list[Submission]:
        taken: list[Submission] = []
        batches = size = 0
        while self._of:
            principal, line = next(iter(self._of.items()))
            first = line.waiting[0]
            if taken and (batches + first.batches > max_batches or size + first.size > max_bytes):
                break
            line.pop()
            # The principal goes to the end of the turn, or out of it.
            del self._of[principal]
            if line.waiting:
                self._of[principal] = line
            self._batches -= first.batches
            self._bytes -= first.size
            if first.abandoned:
                first.leave()
            else:
                taken.append(first)
                batches += first.batches
                size += first.size
        return taken

    def drain(self, fail: Callable[[], Exception]) -> None:
        """Fail everything that waits."""
        for line in self._of.values():
            for submission in line.waiting:
                submission.fail(fail())
        self._of.clear()
        self._batches = self._bytes = 0


def _fits(submission: Submission, batches: int, size: int, max_batches: int, max_bytes: int) -> bool:
    return batches + submission.batches <= max_batches and size + submission.size <= max_bytes
