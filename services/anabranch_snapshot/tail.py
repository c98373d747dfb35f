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

The states of a subscriber stand in ``subscriber``. Everything happens in one event loop; between reading a place and
acting on it nothing is awaited. No state holds a session or a transaction while a client is waited for.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Sequence

import structlog

from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.runtime.errors import CallError
from anabranch.runtime.telemetry import current_traceparent, span
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.reader import NO_LIMIT
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


class Tail:
    """The tail of one database in one epoch."""

    def __init__(self, database: Database, log: Log, settings: SnapshotSettings, clock: Clock) -> None:
        self.database = database
        self._log = log
        self._settings = settings
        self._clock = clock
        self._place: Place | None = None
        # The head of the last moment that was read: what follows must be of a history that has it.
        self._known: Sequence[SeenGroup] = ()
        self._subscribers: set[Subscriber] = set()
        self._recent: deque[Shared] = deque()
        self._recent_bytes = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._heartbeat_at = 0.0
        # Of the groups heard of and not yet sent on; the newest where there are many.
        self._traces: deque[str] = deque(maxlen=_TRACES)

    def limit(self, place: Place) -> int:
        """Up to which position a subscriber that stands at ``place`` should read to end where it can become live."""
        if self._place is None or self._place.base <= place.base:
            return NO_LIMIT
        return self._place.base

    def attach(self, place: Place) -> Subscriber | None:
        """A live subscriber that stands at ``place``; None where it has to read on by itself first."""
        if self._place is None:
            self._place = place
        missed: list[Shared] = []
        if place.cursor < self._place.cursor:
            recent = iter(self._recent)
            missed = [shared for shared in recent if shared.start == place]
            if not missed:
                return None
            missed.extend(recent)
        subscriber = Subscriber(place, self._settings.subscriber_queue_bytes)
        if not all(subscriber.offer(shared) for shared in missed):
            return None
        self._subscribers.add(subscriber)
        self._count()
        if self._task is None:
            self._heartbeat_at = time.monotonic() + self._settings.heartbeat_ms / 1000
            # Its reads are for all subscribers, and stand in no principal's line.
            self._task = asyncio.create_task(
                self._run(), name=f"tail of {self.database.name}", context=contextvars.Context()
            )
        return subscriber

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

    async def _rest(self) -> None:
        now = time.monotonic()
        wait_s = min(self._settings.poll_interval_ms / 1000, max(0.0, self._heartbeat_at - now))
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
            reading = await self._log.read(self.database, self._place, settings.page_bytes, known=self._known)
            self._known = [reading.known]
            if not reading.moved:
                break
            traces = list(self._traces)
            self._traces.clear()
            with span("deliver", parent=traces[0] if traces else None, links=traces[1:]):
                self._publish(reading, traced=bool(traces))
            await self._pause()
            if reading.stretch.at_head and not self._wake.is_set():
                break
            self._wake.clear()
        if time.monotonic() >= self._heartbeat_at and await self._beat():
            self._heartbeat_at = time.monotonic() + settings.heartbeat_ms / 1000

    def _publish(self, reading: Reading, *, traced: bool) -> None:
        start = self._place
        assert start is not None
        stretch = reading.stretch
        traceparent = (current_traceparent() or "") if traced else ""
        response = to_response(self._log, self.database, reading, traceparent)
        metrics.count("anabranch_log_pages", database=self.database.name)
        shared = Shared(start, reading.place, response, reading.known)
        self._place = reading.place
        self._recent.append(shared)
        self._recent_bytes += len(response)
        while self._recent_bytes > self._settings.recent_pages_bytes:
            self._recent_bytes -= len(self._recent.popleft().data)
        self._offer(shared)
        if stretch.items:
            lag_ms = max(0, self._clock.now_ms() - stretch.items[-1].position)
            metrics.record("anabranch_delivery_lag", lag_ms / 1000, database=self.database.name)

    def _offer(self, shared: Shared) -> None:
        lost = [subscriber for subscriber in self._subscribers if not subscriber.offer(shared)]
        if lost:
            self._subscribers.difference_update(lost)
            metrics.count("anabranch_subscriber_overflows", len(lost), database=self.database.name)
            self._count()

    async def _pause(self) -> None:
        pause_us = self._settings.fan_out_pause_us * len(self._subscribers)
        pause_s = min(pause_us / 1_000_000, self._settings.fan_out_pause_max_ms / 1000)
        if pause_s >= _UNPAUSED_S:
            await asyncio.sleep(pause_s)

    async def _beat(self) -> bool:
        """Send a heartbeat, unless the log has gone on meanwhile; whether it was sent."""
        sums = await self._log.sums(self.database)
        place = self._place
        assert place is not None
        head = SeenGroup(sums.head, sums.chain)
        if [head] != self._known or sums.head != place.base or not place.cursor.between_groups:
            self._wake.set()
            return False
        response = change_pb2.SubscribeResponse(
            state=self._log.state(self.database, sums.head, sums.chain, sums.floor, sums.schema_version),
            sums=map(to_sum, sums.rows),
        )
        self._offer(Shared(place, place, response.SerializeToString(), head))
        return True

    def _fail(self, failure: CallError) -> None:
        for subscriber in self._subscribers:
            subscriber.fail(failure)
        self._subscribers.clear()
        self._count()


def to_response(log: Log, database: Database, reading: Reading, traceparent: str = "") -> bytes:
    """A serialized SubscribeResponse. Its settled position is the one that the reader reaches with it, not a later one.
    ``traceparent`` is what the reader goes on from."""
    stretch = reading.stretch
    return change_pb2.SubscribeResponse(
        page=reading.page,
        state=log.state(database, stretch.reached, stretch.chain, stretch.floor, stretch.schema_version),
        traceparent=traceparent,
    ).SerializeToString()
