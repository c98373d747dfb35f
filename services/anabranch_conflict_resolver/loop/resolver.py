"""The resolver's background work: workers that commit groups, and a listener that wakes them.

The listener's session hears notifications as they come; every ``poll_interval_ms`` it also looks which databases have
batches that are ready or due, for notifications that were missed, for other resolvers that died, and for batches whose
time is up, and more often for captured changes, which no notification reports (``captured.watch``). Every third of
``claim_idle_ms`` it looks for claims whose holders are silent, and ends them (see ``store.inbox.claim``). Every five
seconds, and when it hears of a number that it does not know, it learns which databases there are. As often it gauges
what waits; the janitor's ``census`` tells the same gauges, for when no resolver is alive; and it wakes databases whose
tables no event trigger watches: the group, which finds nothing else to do, looks whether they were altered. A listener
without a session opens a new one; until then nothing wakes the workers, and readiness says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import NamedTuple, Protocol

import structlog

from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.store.capture.backlog import Moments, captured_backlogs
from anabranch.store.ddl.backlog import MarkerMoments, schema_backlogs
from anabranch.store.group.waves import DatabaseError
from anabranch.store.inbox.backlog import backlogs
from anabranch.store.inbox.claim import SilentClaim, end_session, heard, look_around, open_listener
from anabranch.store.inbox.undertaken import show_alive
from anabranch.store.session.direct import DirectConnection
from anabranch.store.session.engine import Session
from anabranch.store.session.told import told
from anabranch_conflict_resolver.captured.watch import CapturedWatch
from anabranch_conflict_resolver.config import ResolverSettings, group_options
from anabranch_conflict_resolver.loop.known import Known
from anabranch_conflict_resolver.loop.wakeups import Wakeups
from anabranch_conflict_resolver.loop.writers import Writers

_log = structlog.get_logger()
_PAUSE_S = 0.5
_GAUGE_INTERVAL_S = 5.0
_LOOK_INTERVAL_S = 5.0
_LEARN_INTERVAL_S = 5.0
_MOST_LOOKS = 50
"""So many databases at a time are looked at for tables that were altered, so that their groups delay no other one."""
_COUNT_AT_MOST = 100_000
_LISTENER_LOCK_MS = 10_000
"""It holds no lock that others wait for: so it may wait behind a migration for longer than a group may."""
_NEW_S = 0.05
"""A number that is not known may be a new database's; anybody may send it, so it is looked for no more often."""
_SLICE_S = 0.25
"""The longest that a thread does not look whether it shall stop."""


class Body(Protocol):
    """A worker, as its thread runs it."""

    def run(self) -> None:
        """Work until ``stopping`` is set."""
        ...


class Resolver:
    """Threads and their state; ``run`` is the service's background work. ``workers`` are woken by ``wakeups`` and stop
    when ``stopping`` is set. ``writers``: the roles of their sessions. ``known`` is the workers' state of databases."""

    def __init__(
        self,
        settings: ResolverSettings,
        writers: Writers,
        workers: Sequence[Body],
        wakeups: Wakeups,
        known: Known,
        stopping: Event,
        clock: Clock,
    ) -> None:
        self._writers = writers
        self._known = known
        self._clock = clock
        self._poll_s = settings.poll_interval_ms / 1000
        self._captured_poll_s = settings.captured_poll_interval_ms / 1000
        self._claim_idle_s = settings.claim_idle_ms / 1000
        self._silent: dict[SilentClaim, float] = {}
        self._databases: frozenset[int] = frozenset()
        self._learned = self._judged = float("-inf")
        self._options = group_options(settings)
        self._stopping = stopping
        self._wakeups = wakeups
        self._workers = workers
        self._without_listener: str | None = "starting"

    async def run(self) -> None:
        """Work until cancelled; a thread that fails ends it."""
        loop = asyncio.get_running_loop()
        bodies = [self._listen, *(worker.run for worker in self._workers)]
        pool = ThreadPoolExecutor(len(bodies), "resolver")
        threads = [loop.run_in_executor(pool, body) for body in bodies]
        try:
            done, _ = await asyncio.wait(threads, return_when=asyncio.FIRST_COMPLETED)
            for thread in done:
                thread.result()
        finally:
            self._stopping.set()
            self._wakeups.end()
            await asyncio.gather(*threads, return_exceptions=True)
            pool.shutdown()

    async def ready(self) -> str | None:
        """Return why groups can't be committed now, or None."""
        return self._without_listener or self._known.why_unreached()

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                session = open_listener(
                    self._writers.listens_as, replace(self._options, lock_timeout_ms=_LISTENER_LOCK_MS)
                )
                try:
                    show_alive(session)
                    self._hear(session)
                finally:
                    session.close()
            except DatabaseError as error:
                self._without_listener = f"the listener has no session: {told(error)}"
                _log.warning("the listener has no session", detail=error)
                self._stopping.wait(_PAUSE_S)

    def _hear(self, session: DirectConnection) -> None:
        polled = gauged = looked = float("-inf")
        last = 0
        self._learned = self._judged = float("-inf")
        metrics.count("anabranch_notifications_ignored", 0)
        moments = _Moments({}, {})
        watch = CapturedWatch(self._captured_poll_s)
        while not self._stopping.is_set():
            now = time.monotonic()
            if now - polled >= self._poll_s:
                polled = now
                self._look_around(session, now)
            if now - gauged >= _GAUGE_INTERVAL_S:
                gauged = now
                self._writers.tell(session)
                _gauge(session, moments, now)
            if now - looked >= _LOOK_INTERVAL_S:
                looked = now
                for number in self._known.unwatched(self._databases, after=last, most=_MOST_LOOKS):
                    self._wakeups.wake(number)
                    last = number
            if watch.due_in(now) <= 0:
                for number in watch.look(session, now, self._wakeups.busy()):
                    self._wakeups.wake(number)
            self._without_listener = None
            for heard_of in heard(session, min(_SLICE_S, self._poll_s, watch.due_in(now))):
                now = time.monotonic()
                if heard_of in self._databases:
                    self._wakeups.wake(heard_of)
                else:
                    metrics.count("anabranch_notifications_ignored")
                    if heard_of is not None and now - polled >= _NEW_S:
                        polled = self._learned = float("-inf")
                if now - polled >= self._poll_s or watch.due_in(now) <= 0:
                    break

    def _look_around(self, session: Session, now: float) -> None:
        """Wake the databases that have work, learn from time to time which there are, and end silent claims."""
        learns, judges = now - self._learned >= _LEARN_INTERVAL_S, now - self._judged >= self._claim_idle_s / 3
        found = look_around(session, self._clock.now_ms(), learns=learns, judges=judges)
        if found.known is None and not self._databases.issuperset(found.work):
            # One of the release before may have been made without a claim.
            found = look_around(session, self._clock.now_ms(), learns=True, judges=judges)
        if found.known is not None:
            self._learned, self._databases = now, found.known
        for number in found.work:
            self._wakeups.wake(number)
        if found.silent is not None:
            self._judged = now
            self._end_silent_claims(session, found.silent, now)

    def _end_silent_claims(self, session: Session, silent: Sequence[SilentClaim], now: float) -> None:
        """End sessions that hold a claim and have said nothing for too long."""
        self._silent = {claim: self._silent.get(claim, now) for claim in silent}
        for claim, since in self._silent.items():
            if now - since >= self._claim_idle_s:
                _log.warning("ended a session that held a claim and was silent", pid=claim.pid)
                end_session(session, claim)


class _Moments(NamedTuple):
    """Since when captured changes and markers wait, from look to look."""

    captured: Moments
    markers: MarkerMoments


def _gauge(session: Session, moments: _Moments, now: float) -> None:
    for backlog in backlogs(session, _COUNT_AT_MOST):
        metrics.gauge("anabranch_inbox_backlog", backlog.ready, database=backlog.name)
        metrics.gauge("anabranch_inbox_parked", backlog.parked, database=backlog.name)
    for waiting in captured_backlogs(session, moments.captured, now, _COUNT_AT_MOST):
        metrics.gauge("anabranch_captured_backlog", waiting.changes, database=waiting.name)
        metrics.gauge("anabranch_captured_age", waiting.age_s, database=waiting.name)
    for changes in schema_backlogs(session, moments.markers, now):
        metrics.gauge("anabranch_schema_version", changes.version, database=changes.name)
        metrics.gauge("anabranch_schema_changes_waiting", changes.markers, database=changes.name)
        metrics.gauge("anabranch_schema_change_age", changes.age_s, database=changes.name)
