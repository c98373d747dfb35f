"""A worker: one thread with one session, which commits groups of whatever database has something to do.

States: *without a session* (opens one, with a growing pause between attempts); *idle* (waits for the bell, outside of
any transaction); *in a group* (see ``group.commit``). After a group that may have left something to do it rings for the
same database again, behind those that were rung before, so that a group never waits for more to come and no database
waits for another one to be done. What was appended while it worked has rung already.

A group that fails for no fault of anybody's data, be it the program's own, is rolled back and tried again with half the
batches, after a pause that grows. One batch that fails alone while a group without one passes is counted, in a
transaction of its own, and rests while the others go on (``blame.evidence``); at the third time it is rejected. A lost
session is replaced first, so that a batch can be counted even if it is what kills sessions. While nothing passes at
all, the first failure and the end are told, and not each try.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from threading import Event

import structlog

from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.runtime.errors import reason_name
from anabranch.runtime.telemetry import span, tracing
from anabranch.store.catalog.out_of_sync import tear
from anabranch.store.group import control
from anabranch.store.group.waves import DatabaseError
from anabranch.store.inbox import take
from anabranch.store.inbox.claim import open_session
from anabranch.store.session.engine import Session, SessionOptions
from anabranch.store.session.errors import Fault, read_error
from anabranch.v1 import errors_pb2, verdict_pb2
from anabranch_conflict_resolver.batch.results import Applied, Rejection, Waiting
from anabranch_conflict_resolver.blame.evidence import (
    CONTROLS,
    FAILURES_AT_MOST,
    GIVEN_UP,
    NO_SUCH_STATEMENT,
    REST_MS,
    Suspicion,
    of_captured,
    suspicion,
)
from anabranch_conflict_resolver.blame.table_at_fault import table_at_fault
from anabranch_conflict_resolver.functions.child import Functions
from anabranch_conflict_resolver.group.cache import Memory
from anabranch_conflict_resolver.group.commit import GroupLimits, Outcome, commit_group
from anabranch_conflict_resolver.loop import garbage
from anabranch_conflict_resolver.loop.pace import Pace
from anabranch_conflict_resolver.loop.wakeups import Bell

_log = structlog.get_logger()
_WAIT_S = 0.5
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0
"""So much at most is lost once whatever was in the way is gone."""
_QUICK_FAILURES = 10
_REST_GROWS = 4
_TELL_EACH = 30
"""Of drains that fail with no table to blame, one in so many is told: about one a minute."""
_IDLE_S = 30.0
_OUT_OF_TIME = "57"
"""The class of SQLSTATEs that a statement's or a transaction's time limit belongs to."""


@dataclass(slots=True)
class Known:
    """What the workers of a process know of each database, by its number. The bell has one of them at most on a
    database at a time: what it keeps there is the next one's. ``refused_since``: since when Postgres refuses every
    group of a database, by the monotonic clock."""

    memories: dict[int, Memory] = field(default_factory=dict)
    paces: dict[int, Pace] = field(default_factory=dict)
    refused_since: dict[int, float] = field(default_factory=dict)


class Worker:
    """``run`` is the thread's body. ``broken`` says why it has no session, None where it has one."""

    def __init__(
        self,
        url: str,
        options: SessionOptions,
        limits: GroupLimits,
        clock: Clock,
        bell: Bell,
        known: Known,
        functions: Functions,
        stopping: Event,
        *,
        most_batches: int,
        target_ms: int,
        rest_ms: int,
    ) -> None:
        self._url = url
        self._options = options
        self._limits = limits
        self._clock = clock
        self._bell = bell
        self._functions = functions
        self._stopping = stopping
        self._most_batches = most_batches
        self._target_ms = target_ms
        self._rest_ms = rest_ms
        self._known = known
        self._session: Session | None = None
        self._lost = 0
        self._idle_since: float | None = None
        self.broken: str | None = "starting"

    def run(self) -> None:
        """Work until told to stop."""
        try:
            while not self._stopping.is_set():
                session = self._open()
                if session is None:
                    continue
                number = self._bell.take(_WAIT_S)
                if number is None:
                    self._rest()
                    continue
                self._idle_since = None
                try:
                    self._work(session, number)
                finally:
                    self._bell.done(number)
        finally:
            if self._session is not None:
                self._session.close()

    def _open(self) -> Session | None:
        if self._session is not None and not self._session.closed:
            return self._session
        try:
            self._session = open_session(self._url, self._options)
        except DatabaseError as error:
            self.broken = f"no session with the database: {error}"
            _log.warning("no session with the database", detail=str(error))
            self._pause(self._lost)
            self._lost += 1
            return None
        self.broken = None
        self._lost = 0
        return self._session

    def _rest(self) -> None:
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since > _IDLE_S:
            self._idle_since = now
            garbage.when_idle()

    def _pause(self, failures: int) -> None:
        self._stopping.wait(_pause_s(failures))

    def _work(self, session: Session, number: int) -> None:
        """One group. Where it may have left something, the database is rung again, behind the others."""
        memory = self._known.memories.setdefault(number, Memory())
        pace = self._known.paces.setdefault(number, Pace(self._most_batches, self._target_ms))
        started = time.perf_counter()
        now_ms = self._clock.now_ms()
        try:
            outcome = commit_group(
                session,
                memory,
                number,
                most=pace.most,
                now_ms=now_ms,
                clock_offset_ms=now_ms - Clock().now_ms(),
                limits=self._limits,
                functions=self._functions,
            )
        except Exception as error:
            # Also a fault of this program: one batch that it stumbles over must not hold up all others.
            self._failed(number, memory, pace, error)
            return
        if (outcome.taken or outcome.drained) and (since := self._known.refused_since.pop(number, None)) is not None:
            _log.info("groups pass again", database=outcome.name, after_s=round(time.monotonic() - since, 1))
        if outcome.taken or outcome.drained:
            took_s = time.perf_counter() - started
            if not outcome.all_heard:
                self._bell.ring(number)
            if outcome.taken:
                pace.succeeded(outcome.taken, took_s * 1000)
            _tell(outcome, took_s)
            if tracing():
                _trace(outcome)
            self._ring_when_due(number, outcome)
            del outcome
            garbage.between_groups()

    def _ring_when_due(self, number: int, outcome: Outcome) -> None:
        waits = [r.parking.until_ms for r in outcome.results if isinstance(r, Waiting)]
        if waits:
            self._bell.ring_in(number, max(0.0, (min(waits) - self._clock.now_ms()) / 1000))

    def _failed(self, number: int, memory: Memory, pace: Pace, error: Exception) -> None:
        name = memory.synced.database.name if memory.synced else str(number)
        batches = len(memory.attempted)
        fault: Fault | None = None
        if isinstance(error, DatabaseError):
            fault = read_error(error)
            if fault.sqlstate == NO_SUCH_STATEMENT and self._session is not None:
                self._session.close()
            cause = fault.sqlstate[:2] or "connection"
            tell = _log.debug if number in self._known.refused_since else _log.warning
            tell(
                "group rolled back",
                database=name,
                batches=batches,
                sqlstate=fault.sqlstate,
                constraint=fault.constraint,
                detail=str(error),
            )
        else:
            cause = "program"
            # Where it comes from is told once it is known which batch brings it out.
            where = error if batches <= 1 else None
            text = "group rolled back by a fault of the program"
            _log.error(text, database=name, batches=batches, detail=repr(error), exc_info=where)
        metrics.count("anabranch_group_retries", database=name, cause=cause)
        out_of_time = cause == _OUT_OF_TIME
        trouble = memory.trouble
        found: Suspicion | None = suspicion(fault, tried_long=memory.tried_long)
        if of_captured(fault) and trouble.beside and (memory.draining or not trouble.innocent):
            # Whatever is at fault shows when the captured changes are drained without any batch.
            trouble.failed(alone=memory.draining, out_of_time=out_of_time)
            found = None
        if memory.draining:
            pace.held_up()
            metrics.count("anabranch_drain_failures", database=name, cause=cause)
            if trouble.failures >= FAILURES_AT_MOST:
                self._set_aside(number, memory, name, error)
        else:
            # Of a group that ran out of time each half would, until there is one batch left.
            pace.failed(1 if out_of_time else len(memory.attempted))
        # What else the session's loss has left behind is not known.
        memory.sums.clear()
        if found is not None and len(memory.attempted) == 1 and self._others_pass(number, name, found.controls, error):
            self._put_aside(number, memory.attempted[0], name, found)
        # Halving is quick; what still fails then is nothing that haste would mend. Other databases don't wait for it.
        self._bell.rest(number, _pause_s(max(0, pace.failures - _QUICK_FAILURES)))

    def _others_pass(self, number: int, name: str, controls: int, error: Exception) -> bool:
        """Whether so many groups with nothing of anybody pass in a row."""
        for _ in range(controls):
            session = self._open()
            if session is None or not control.passes(session, number):
                break
        else:
            return True
        if number not in self._known.refused_since:
            self._known.refused_since[number] = time.monotonic()
            _log.error(
                "Postgres refuses every group of the database, with or without a batch: no batch and no table is "
                "blamed, all wait, and the next try comes within two seconds",
                database=name,
                detail=str(error),
            )
        return False

    def _set_aside(self, number: int, memory: Memory, name: str, error: Exception) -> None:
        """Look for the table whose captured changes can't be drained, and have it not hold up the others."""
        if not self._others_pass(number, name, CONTROLS, error) or (session := self._open()) is None:
            return
        try:
            now_ms = self._clock.now_ms()
            found = table_at_fault(session, memory, number, now_ms, now_ms - Clock().now_ms())
            if found is None:
                text = "captured changes can't be drained, and no table is shown to be at fault: they are tried again"
                failures = memory.trouble.failures
                tell = _log.error if failures % _TELL_EACH == FAILURES_AT_MOST else _log.debug
                tell(text, database=name, failures=failures, detail=str(error))
                return
            tear(session, number, found.table, now_ms=now_ms)
            session.commit()
        except DatabaseError as lost:
            _log.warning("no table was found to be at fault", database=name, detail=str(lost))
            if not session.closed:
                session.rollback()
            return
        memory.trouble.failures = memory.trouble.allowed_ms = 0
        text = "a table's captured changes could not be drained and are dropped: it has to be removed and added anew"
        _log.error(text, database=name, table=found.table, detail=found.why)

    def _put_aside(self, number: int, batch_id: str, name: str, found: Suspicion) -> None:
        """Have the batch rest, so that the others go on, and count the failure where it counts."""
        session = self._open()
        if session is None:
            return
        attempts = None
        try:
            if found.counts:
                attempts = take.count_attempt(
                    session,
                    number,
                    batch_id,
                    self._clock.now_ms(),
                    self._rest_ms,
                    _REST_GROWS,
                    failure=found.failure,
                    least=FAILURES_AT_MOST if found.last else 0,
                )
            else:
                take.park(session, number, [take.Parking(batch_id, self._clock.now_ms() + REST_MS)])
            session.commit()
        except DatabaseError as error:
            _log.warning("batch that failed alone not put aside", database=name, batch=batch_id, detail=str(error))
            if not session.closed:
                session.rollback()
            return
        if not found.counts:
            self._bell.ring_in(number, REST_MS / 1000)
            text = "batch rests: Postgres has no room or no lock for it, while others pass; it is tried again"
            _log.warning(text, database=name, batch=batch_id, sqlstate=found.failure, rest_ms=REST_MS)
            return
        self._bell.ring_in(number, self._rest_ms * _REST_GROWS ** max(0, (attempts or 1) - 1) / 1000)
        _log.warning("batch failed alone", database=name, batch=batch_id, attempts=attempts)


def _pause_s(failures: int) -> float:
    pause_s: float = _FIRST_PAUSE_S * 2 ** min(failures, 10)
    return min(_LONGEST_PAUSE_S, pause_s)


def _trace(outcome: Outcome) -> None:
    """A mark in the trace of every batch that came with one, so that it can be followed from its device."""
    for result in outcome.results:
        taken = result.candidate.taken if isinstance(result, Applied) else result.taken
        if taken.traceparent:
            with span("decided", parent=taken.traceparent) as mark:
                mark.set_attribute("anabranch.batch", taken.batch_id)
                mark.set_attribute("anabranch.position", outcome.position)
                mark.set_attribute("anabranch.result", type(result).__name__)


def _tell(outcome: Outcome, took_s: float) -> None:
    """The group in metrics, and what must not pass unseen in the log."""
    name = outcome.name
    verdicts: Counter[tuple[str, str]] = Counter()
    mutations: Counter[int] = Counter()
    for result in outcome.results:
        if isinstance(result, Applied):
            verdicts["APPLIED", ""] += 1
            mutations.update([int(one.outcome) for one in result.decision.outcomes])
        elif isinstance(result, Rejection):
            reason = errors_pb2.Reason.ValueType(result.reason)
            verdicts["REJECTED", reason_name(reason)] += 1
            if reason in GIVEN_UP:
                _log.error(
                    "batch rejected after failing alone",
                    database=name,
                    batch=result.taken.batch_id,
                    reason=reason_name(reason),
                    sqlstate=result.sqlstate,
                    detail=result.message,
                )
    if not verdicts:
        return
    for (status, reason_text), count in verdicts.items():
        metrics.count("anabranch_verdicts", count, database=name, status=status, reason=reason_text)
    for number, count in mutations.items():
        label = verdict_pb2.Outcome.Name(verdict_pb2.Outcome.ValueType(number)).removeprefix("OUTCOME_")
        metrics.count("anabranch_mutations", count, database=name, outcome=label)
    metrics.count("anabranch_groups", database=name)
    metrics.record("anabranch_group_size", outcome.decided, database=name)
    metrics.record("anabranch_group_duration", took_s, database=name)
