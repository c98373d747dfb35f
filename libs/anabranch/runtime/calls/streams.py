"""The streams that are open, so that they can be counted and ended from outside; and when calls may end.

State of a stream: open, then either ended by itself or ended from outside. ``OpenStream.end`` sets its failure and
cancels the task that serves it; the interceptor catches that and sends the failure as the stream's status, or drops the
stream where its caller does not take even that.
Everything in one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.runtime.credentials.auth import Identity
from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2


@dataclass(slots=True, eq=False)
class OpenStream:
    """One stream. ``identity`` is None for health and the like."""

    method: str
    identity: Identity | None
    task: asyncio.Task[object]
    failure: CallError | None = None
    expiry: asyncio.TimerHandle | None = None
    """Ends it when its credentials do."""

    def end(self, failure: CallError) -> None:
        """Have it end with ``failure``, unless it was ended before."""
        if self.failure is None:
            self.failure = failure
            self.task.cancel()


_current: ContextVar[OpenStream | None] = ContextVar("anabranch_stream", default=None)


def current_stream() -> OpenStream | None:
    """The stream that the current task serves."""
    return _current.get()


_LONGEST_TIMER_S = 3600.0
"""The time is looked at again after so long: an expiry may be in a year that no timer takes."""
MOST_OF_STRANGERS = 200
"""Open streams, and health calls, of callers without credentials. The oldest is ended when there is one more."""


class Streams:
    """All open streams; at most ``limit`` of one principal. ``stopping``: whether the server is to stop; ``clock``
    judges when credentials end."""

    def __init__(self, limit: int, stopping: asyncio.Event, clock: Clock) -> None:
        self._limit = limit
        self._clock = clock
        self._open: set[OpenStream] = set()
        self._of: Counter[str] = Counter()
        # In the order in which they came.
        self._strangers: dict[OpenStream, None] = {}
        self.unary: set[asyncio.Task[object]] = set()
        """Tasks that serve unary calls now; the interceptor adds and takes them out."""
        self.cut_off = False
        """Whether unary calls were cancelled because the drain is over."""
        self.taken = 0
        """The number of calls, of any kind, that have come so far."""
        self._moving: Callable[[OpenStream], bool] = lambda stream: False
        self._stopping = stopping
        self.on_open: Callable[[], None] = lambda: None
        """Called when somebody has opened a stream."""
        self.announced = asyncio.Event()
        """Whether the GOAWAY was sent: connections know that this server takes no more calls."""

    async def may_end(self) -> None:
        """Return when a call may be answered. Once the server is to stop, that is when the GOAWAY was sent: a caller
        that has its answer before would send the next call here."""
        if self._stopping.is_set():
            await self.announced.wait()

    def add(self, method: str, identity: Identity | None) -> OpenStream:
        """Note that the current task serves a stream. Raises CallError OVERLOADED, or UNAVAILABLE while
        draining."""
        task = asyncio.current_task()
        assert task is not None
        stream = OpenStream(method, identity, task)
        if self._moving(stream):
            raise moving()
        if identity is not None:
            subject = identity.principal.subject
            if self._of[subject] >= self._limit:
                raise CallError(errors_pb2.REASON_OVERLOADED, "this principal has too many streams open")
            self._of[subject] += 1
            self._expire(stream)
        else:
            self._add_stranger(stream)
        self._open.add(stream)
        self.on_open()
        _current.set(stream)
        metrics.gauge("anabranch_open_streams", len(self._open))
        return stream

    def _expire(self, stream: OpenStream) -> None:
        """End a stream whose credentials have ended; look again when they do."""
        assert stream.identity is not None
        expires_ms = stream.identity.principal.expires_ms
        if expires_ms is None:
            return
        left_s = (expires_ms - self._clock.now_ms()) / 1000
        if left_s <= 0:
            stream.end(CallError(errors_pb2.REASON_CREDENTIALS_EXPIRED, "the credentials have expired"))
            return
        # By the monotonic clock, which may run a little ahead of the other one: then it is looked at once more.
        delay_s = min(left_s, _LONGEST_TIMER_S)
        stream.expiry = asyncio.get_running_loop().call_later(delay_s, self._expire, stream)

    def _add_stranger(self, stream: OpenStream) -> None:
        while len(self._strangers) >= MOST_OF_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.end(CallError(errors_pb2.REASON_OVERLOADED, "newer calls without credentials have come"))
        self._strangers[stream] = None

    def remove(self, stream: OpenStream) -> None:
        """Note that it has ended; the current task served it."""
        self._open.discard(stream)
        if stream.expiry is not None:
            stream.expiry.cancel()
        # A task holds its context: they would be kept in a circle.
        _current.set(None)
        self._strangers.pop(stream, None)
        if stream.identity is not None:
            subject = stream.identity.principal.subject
            self._of[subject] -= 1
            if self._of[subject] <= 0:
                del self._of[subject]
        metrics.gauge("anabranch_open_streams", len(self._open))

    def identities(self) -> set[Identity]:
        """Return the identities that have streams open."""
        return {stream.identity for stream in self._open if stream.identity is not None}

    def end(self, which: Callable[[OpenStream], bool], failure: CallError) -> int:
        """End those that ``which`` picks; how many."""
        picked = [stream for stream in self._open if which(stream)]
        for stream in picked:
            stream.end(failure)
        return len(picked)

    def end_of(self, identities: set[Identity], failure: CallError) -> int:
        """End the streams of these identities; how many."""
        return self.end(lambda stream: stream.identity in identities, failure)

    def move(self, which: Callable[[OpenStream], bool]) -> int:
        """Send those that ``which`` picks, and such that still come, to another server; how many were
        open."""
        self._moving = which
        return self.end(which, moving())

    def cut(self) -> int:
        """End every stream and every unary call: this server waits no longer; how many."""
        self.cut_off = True
        for task in self.unary:
            task.cancel()
        return len(self.unary) + self.move(lambda stream: True)


def moving() -> CallError:
    """Return the failure of a stream or call that ends because this server stops."""
    return CallError(errors_pb2.REASON_UNAVAILABLE, "this server is stopping: connect again")
