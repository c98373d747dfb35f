"""A worker: one thread, which commits groups of any database that has work, in a session as that one's writer.

States: *idle* (waits for a wakeup, without a session); *without a session for its database* (which rests for a pause
that grows with each attempt, and holds up no other one); *in a group* (see ``group.commit``). After a group that may
have left something to do it wakes itself for the same database again, behind those that were woken before, so that a
group never waits for more to come and no database waits for another one to be done. Batches that were appended while it
worked have woken it already.

A lost session is replaced first, so that a batch can be counted even if it is what kills sessions (``failures``).
"""

from __future__ import annotations

import time
from threading import Event
from typing import Protocol

import structlog

from anabranch.clock import Clock
from anabranch.store.catalog.databases import UnknownDatabaseError
from anabranch.store.group.waves import DatabaseError
from anabranch.store.session.engine import Session
from anabranch.store.session.told import told
from anabranch_conflict_resolver.batch.results import Waiting
from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.group.outcome import Outcome
from anabranch_conflict_resolver.loop import garbage
from anabranch_conflict_resolver.loop.failures import Failures
from anabranch_conflict_resolver.loop.known import Known, Unreached
from anabranch_conflict_resolver.loop.pace import Pace
from anabranch_conflict_resolver.loop.publish import publish
from anabranch_conflict_resolver.loop.sessions import Sessions
from anabranch_conflict_resolver.loop.wakeups import Wakeups

_log = structlog.get_logger()
_WAIT_S = 5.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0
"""The longest pause, in seconds: at most so much time is lost once the cause of the failures is gone."""
_QUICK_FAILURES = 10
_IDLE_S = 30.0


class Commit(Protocol):
    """``group.commit.commit_group`` with its limits."""

    def __call__(
        self, conn: Session, cache: Cache, database_id: int, /, *, most: int, now_ms: int, clock_offset_ms: int
    ) -> Outcome:
        """Commit a group."""
        ...


class Worker:
    """``run`` is the thread's body."""

    def __init__(
        self,
        sessions: Sessions,
        commit: Commit,
        clock: Clock,
        wakeups: Wakeups,
        known: Known,
        stopping: Event,
        *,
        most_batches: int,
        target_ms: int,
        rest_ms: int,
    ) -> None:
        self._sessions = sessions
        self._commit = commit
        self._clock = clock
        self._wakeups = wakeups
        self._stopping = stopping
        self._most_batches = most_batches
        self._target_ms = target_ms
        self._known = known
        self._failures = Failures(self._open, known, wakeups, clock, rest_ms)
        self._session: Session | None = None
        self._idle_since: float | None = None

    def run(self) -> None:
        """Work until ``stopping`` is set."""
        try:
            while not self._stopping.is_set():
                number = self._wakeups.take(_WAIT_S)
                if number is None:
                    self._rest()
                    continue
                self._idle_since = None
                try:
                    self._turn(number)
                finally:
                    self._leave(number)
                    self._wakeups.done(number)
        finally:
            self._sessions.close()

    def _turn(self, number: int) -> None:
        session = self._open(number)
        if session is not None:
            self._work(session, number)
        elif (unreached := self._known.unreached.get(number)) is not None:
            self._wakeups.rest(number, _pause_s(unreached.tries - 1))

    def _open(self, number: int) -> Session | None:
        """The session that this worker has for a database, a new one where it was lost; None where there is none to be
        had."""
        if self._session is not None and not self._session.closed:
            return self._session
        self._leave(number)
        try:
            self._session = self._sessions.take(number)
        except UnknownDatabaseError:
            # It is gone, and so is its work.
            self._known.unreached.pop(number, None)
            return None
        except DatabaseError as error:
            before = self._known.unreached.get(number)
            tries = 1 if before is None else before.tries + 1
            self._known.unreached[number] = Unreached(tries, f"no session with the database: {told(error)}")
            _log.warning("no session with the database", number=number, detail=error)
            return None
        self._known.unreached.pop(number, None)
        return self._session

    def _leave(self, number: int) -> None:
        if self._session is not None:
            self._sessions.give_back(number, self._session)
            self._session = None

    def _rest(self) -> None:
        self._sessions.sweep()
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > _IDLE_S:
            self._idle_since = now
            garbage.when_idle()

    def _work(self, session: Session, number: int) -> None:
        """One group. Where it may have left something, the database is woken again, behind the others."""
        cache = self._known.cache(number)
        pace = self._known.paces.setdefault(number, Pace(self._most_batches, self._target_ms))
        started = time.perf_counter()
        now_ms = self._clock.now_ms()
        try:
            outcome = self._commit(
                session, cache, number, most=pace.most, now_ms=now_ms, clock_offset_ms=now_ms - Clock().now_ms()
            )
        except Exception as error:
            # Also a fault of this program: one batch that triggers it must not delay all others.
            self._failures.failed(session, number, cache, error)
            # Halving is quick; a group that still fails then gains nothing by more tries. Others don't wait for it.
            self._wakeups.rest(number, _pause_s(max(0, pace.failures - _QUICK_FAILURES)))
            return
        if not outcome.taken and not outcome.drained:
            return
        if (since := self._known.refused_since.pop(number, None)) is not None:
            _log.info("groups pass again", database=outcome.name, after_s=round(time.monotonic() - since, 1))
        took_s = time.perf_counter() - started
        if not outcome.all_heard:
            self._wakeups.wake(number)
        if outcome.taken:
            pace.succeeded(outcome.taken, took_s * 1000)
        publish(outcome, took_s)
        self._wake_when_due(number, outcome)
        del outcome
        garbage.between_groups()

    def _wake_when_due(self, number: int, outcome: Outcome) -> None:
        waits = [r.parking.until_ms for r in outcome.results if isinstance(r, Waiting)]
        if waits:
            self._wakeups.wake_in(number, max(0.0, (min(waits) - self._clock.now_ms()) / 1000))


def _pause_s(failures: int) -> float:
    pause_s: float = _FIRST_PAUSE_S * 2 ** min(failures, 10)
    return min(_LONGEST_PAUSE_S, pause_s)
