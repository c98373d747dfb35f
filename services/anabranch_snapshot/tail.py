"""Follows the log: one tail for each database that has subscribers, and these subscribers.

A *tail* reads each new stretch of its database once and encodes it once, as the bytes of one whole response; every
subscriber that stands where the stretch begins is handed those bytes. It is woken by notifications, and looks by
itself every ``poll_interval_ms``. States of a tail:

* *resting*: it has no subscriber, no place and no task.
* *following*: it has a place, and a task that reads from it. The first subscriber's place is where it begins. Its last
  pages are kept, ``recent_pages_bytes`` of them, for subscribers that come a little late. When no subscriber is left,
  the task ends by itself.

After pages went out under load, the tail waits a moment that grows with the number of subscribers, so that changes
travel together; what comes while it is idle goes out at once. Heartbeats say what is settled, and the table sums of
that very position; they go to those who have got everything before it.

A database with restricted tables has a ``viewers_tail.ViewersTail``, which makes pages by what subscribers see.

The states of a subscriber stand in ``subscriber``. Everything happens in one event loop; between reading a place and
acting on it nothing is awaited. No state holds a session or a transaction while a client is waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence, Sized
from typing import Generic, Protocol, TypeVar

import structlog

from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.runtime.errors import CallError
from anabranch.runtime.telemetry import current_traceparent, span
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.reader import NO_LIMIT, Sums
from anabranch.store.log.stretch import Stretch
from anabranch.store.session.availability import is_unavailable
from anabranch.v1 import change_pb2, errors_pb2
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.log import Log, Reading
from anabranch_snapshot.page_tokens import Place
from anabranch_snapshot.pages import to_sum
from anabranch_snapshot.subscriber import Shared, Subscriber

_RETRY_S = 0.1
_UNPAUSED_S = 0.001
"""A pause that is shorter is not made."""
_TRACES = 64
_log = structlog.get_logger()


class Piece(Sized, Protocol):
    """A page, or what pages are made of: as long as the bytes that it holds."""

    @property
    def start(self) -> Place:
        """Where it begins."""

    @property
    def end(self) -> Place:
        """Where it ends."""


P = TypeVar("P", bound=Piece)


class TailOf(ABC, Generic[P]):
    """The tail of one database in one epoch, of which it keeps the last pieces."""

    def __init__(self, database: Database, log: Log, settings: SnapshotSettings, clock: Clock) -> None:
        self.database = database
        self._log = log
        self._settings = settings
        self._clock = clock
        self._place: Place | None = None
        # The head of the last moment that was read: what follows must be of a history that has it.
        self._known: Sequence[SeenGroup] = ()
        self._subscribers: set[Subscriber] = set()
        self._recent: deque[P] = deque()
        self._recent_bytes = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._heartbeat_at = 0.0
        # When those have to be told where they stand who got nothing of the last pieces.
        self._move_at = math.inf
        self._at_head = False
        # How many subscribers got the last piece.
        self._reached = 0
        # Of the groups heard of and not yet sent on; the newest where there are many.
        self._traces: deque[str] = deque(maxlen=_TRACES)

    def limit(self, place: Place) -> int:
        """Up to which position a subscriber that stands at ``place`` should read to end where it can become live."""
        if self._place is None or self._place.base <= place.base:
            return NO_LIMIT
        return self._place.base

    def _missed(self, place: Place) -> list[P] | None:
        """The pieces from ``place`` to where the tail is; None where it no longer has them all."""
        if self._place is None:
            self._place = place
        if place.cursor >= self._place.cursor:
            return []
        return list(itertools.dropwhile(lambda piece: piece.start != place, self._recent)) or None

    def _add(self, subscriber: Subscriber) -> None:
        """Have a subscriber follow that has got everything up to the tail's place, or more."""
        self._subscribers.add(subscriber)
        self._count()
        if self._task is None:
            self._heartbeat_at = time.monotonic() + self._settings.heartbeat_ms / 1000
            # Its reads are for all subscribers, and stand in no principal's line.
            self._task = asyncio.create_task(
                self._run(), name=f"tail of {self.database.name}", context=contextvars.Context()
            )

    def detach(self, subscriber: Subscriber) -> None:
        """Remove a subscriber."""
        self._subscribers.discard(subscriber)
        self._count()

    def hear(self, position: int, traceparent: str = "") -> None:
        """A group was committed at ``position``, or something may have been missed (0). ``traceparent`` is that of the
        group's span, "" where there is none."""
        if self._place is None or position == 0 or position > self._place.base:
            if traceparent and self._place is not None:
                self._traces.append(traceparent)
            self._wake.set()

    async def close(self) -> None:
        """End its task."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    def _count(self) -> None:
        metrics.gauge("anabranch_subscribers", len(self._subscribers), database=self.database.name)

    async def _run(self) -> None:
        failing_since: float | None = None
        while self._subscribers:
            try:
                await self._follow()
                failing_since = None
                await self._rest()
            except CallError as failure:
                self._fail(failure)
            except Exception as error:
                if not is_unavailable(error):
                    _log.error("tail failed", database=self.database.name, exc_info=error)
                    self._fail(CallError(errors_pb2.REASON_SERVER_FAULT, "the log can't be followed"))
                    break
                now = time.monotonic()
                failing_since = failing_since or now
                if now - failing_since >= self._settings.outage_ms / 1000:
                    self._fail(CallError(errors_pb2.REASON_UNAVAILABLE, "the database is not available now"))
                    break
                await asyncio.sleep(_RETRY_S)
        # Nothing was awaited since the last look at the subscribers: the next one that comes starts it anew.
        self._task = None
        self._place = None
        self._known = ()
        self._recent.clear()
        self._recent_bytes = 0
        self._traces.clear()
        self._move_at = math.inf

    async def _rest(self) -> None:
        now = time.monotonic()
        wait_s = min(self._settings.poll_interval_ms / 1000, max(0.0, min(self._heartbeat_at, self._move_at) - now))
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _follow(self) -> None:
        """Send on everything up to the head, and a heartbeat when it is time."""
        settings = self._settings
        while self._subscribers:
            assert self._place is not None
            if not await self._advance(self._place):
                break
            await self._pause()
            if self._at_head and not self._wake.is_set():
                break
            self._wake.clear()
        if time.monotonic() >= self._heartbeat_at and await self._beat():
            self._heartbeat_at = time.monotonic() + settings.heartbeat_ms / 1000

    @abstractmethod
    async def _advance(self, place: Place) -> bool:
        """Read from ``place`` on, and send it on; whether there was anything. Raises as ``Log.read``."""

    @abstractmethod
    async def _beat(self) -> bool:
        """Send a heartbeat, unless the log has gone on meanwhile; whether it was sent."""

    @contextlib.contextmanager
    def _delivering(self) -> Iterator[str]:
        """The span of a delivery: gives the traceparent that readers go on from, "" where there is none."""
        traces = list(self._traces)
        self._traces.clear()
        with span("deliver", parent=traces[0] if traces else None, links=traces[1:]):
            yield (current_traceparent() or "") if traces else ""

    def _keep(self, piece: P) -> None:
        """Note that the tail has got to the end of a piece."""
        self._place = piece.end
        self._recent.append(piece)
        self._recent_bytes += len(piece)
        while self._recent_bytes > self._settings.recent_pages_bytes:
            self._recent_bytes -= len(self._recent.popleft())

    def _delivered(self, stretch: Stretch) -> None:
        self._at_head = stretch.at_head
        if stretch.items:
            lag_ms = max(0, self._clock.now_ms() - stretch.items[-1].position)
            metrics.record("anabranch_delivery_lag", lag_ms / 1000, database=self.database.name)

    def _overflowed(self, lost: Sequence[Subscriber]) -> None:
        """Forget subscribers that are too slow."""
        if lost:
            self._subscribers.difference_update(lost)
            metrics.count("anabranch_subscriber_overflows", len(lost), database=self.database.name)
            self._count()

    async def _pause(self) -> None:
        pause_us = self._settings.fan_out_pause_us * self._reached
        pause_s = min(pause_us / 1_000_000, self._settings.fan_out_pause_max_ms / 1000)
        if pause_s >= _UNPAUSED_S:
            await asyncio.sleep(pause_s)

    def _is_settled(self, sums: Sums) -> bool:
        """Whether sums are those of the tail's place; if not, have it read on."""
        place = self._place
        assert place is not None
        if (
            [SeenGroup(sums.head, sums.chain)] == self._known
            and sums.head == place.base
            and place.cursor.between_groups
        ):
            return True
        self._wake.set()
        return False

    def _fail(self, failure: CallError) -> None:
        for subscriber in self._subscribers:
            subscriber.fail(failure)
        self._subscribers.clear()
        self._count()


class Tail(TailOf[Shared]):
    """The tail of a database of which everybody sees the same."""

    def attach(self, place: Place) -> Subscriber | None:
        """A live subscriber that stands at ``place``; None where it has to read on by itself first."""
        missed = self._missed(place)
        subscriber = Subscriber(place, self._settings.subscriber_queue_bytes)
        if missed is None or not all(subscriber.offer(shared) for shared in missed):
            return None
        self._add(subscriber)
        return subscriber

    async def _advance(self, place: Place) -> bool:
        reading = await self._log.read(self.database, place, self._settings.page_bytes, known=self._known)
        self._known = [reading.known]
        if not reading.moved:
            return False
        with self._delivering() as traceparent:
            response = to_response(self._log, self.database, reading, traceparent)
            metrics.count("anabranch_log_pages", database=self.database.name)
            shared = Shared(place, reading.place, response, reading.known)
            self._keep(shared)
            self._offer(shared)
            self._delivered(reading.stretch)
        return True

    def _offer(self, shared: Shared) -> None:
        self._overflowed([subscriber for subscriber in self._subscribers if not subscriber.offer(shared)])
        self._reached = len(self._subscribers)

    async def _beat(self) -> bool:
        sums = await self._log.sums(self.database)
        place = self._place
        if place is None or not self._is_settled(sums):
            return False
        response = change_pb2.SubscribeResponse(
            state=self._log.state(self.database, sums.head, sums.chain, sums.floor, sums.schema_version),
            sums=map(to_sum, sums.open_rows),
        )
        self._offer(Shared(place, place, response.SerializeToString(), SeenGroup(sums.head, sums.chain)))
        return True


def to_response(log: Log, database: Database, reading: Reading, traceparent: str = "") -> bytes:
    """A serialized SubscribeResponse. Its settled position is the one that the reader reaches with it, not a later one.
    ``traceparent`` is what the reader goes on from."""
    stretch = reading.stretch
    return change_pb2.SubscribeResponse(
        page=reading.page,
        state=log.state(database, stretch.reached, stretch.chain, stretch.floor, stretch.schema_version),
        traceparent=traceparent,
    ).SerializeToString()
