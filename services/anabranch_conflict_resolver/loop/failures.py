"""Handles a group that failed for no fault that Postgres could name: it was rolled back, and is tried again.

It is tried with half the batches, after a pause that grows and in which its database rests. One batch that fails alone
while a group without one passes is counted, in a transaction of its own, and rests while the others go on
(``evidence``); at the third time it is rejected. While nothing passes at all, the first failure and the end are
published, and not each try. Where captured changes can't be drained, the table that is shown to be at fault is set
aside.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.store.catalog.out_of_sync import mark_torn
from anabranch.store.group import control
from anabranch.store.group.waves import DatabaseError
from anabranch.store.inbox import parking, take
from anabranch.store.session.engine import Session
from anabranch.store.session.errors import Fault, read_error
from anabranch_conflict_resolver.blame.evidence import (
    CONTROLS,
    FAILURES_AT_MOST,
    LOCK_NOT_AVAILABLE,
    NO_SUCH_STATEMENT,
    REST_GROWS,
    REST_MS,
    Suspicion,
    of_captured,
    suspicion,
)
from anabranch_conflict_resolver.blame.table_at_fault import table_at_fault
from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.loop.known import Known
from anabranch_conflict_resolver.loop.wakeups import Wakeups

_log = structlog.get_logger()
_PUBLISH_EACH = 30
"""Of drains that fail with no table to blame, one in so many is published: about one a minute."""
_OUT_OF_TIME = "57"
"""The class of SQLSTATEs that a statement's or a transaction's time limit belongs to."""


@dataclass(slots=True)
class Failures:
    """Of one worker. ``open_session`` gives its session with a database, a new one where it was lost, None where there
    is none to be had. ``rest_ms``: how long a batch rests that has failed alone once."""

    open_session: Callable[[int], Session | None]
    known: Known
    wakeups: Wakeups
    clock: Clock
    rest_ms: int

    def failed(self, session: Session, number: int, cache: Cache, error: Exception) -> None:
        """A group of a database has failed."""
        name = cache.synced.database.name if cache.synced else str(number)
        undertaken, trouble, pace = cache.undertaken, cache.trouble, self.known.paces[number]
        fault = read_error(error) if isinstance(error, DatabaseError) else None
        if fault is not None and fault.sqlstate == NO_SUCH_STATEMENT:
            session.close()
        cause = "program" if fault is None else fault.sqlstate[:2] or "connection"
        self._publish(number, name, len(undertaken.batches), fault, error)
        metrics.count("anabranch_group_retries", database=name, cause=cause)
        out_of_time = cause == _OUT_OF_TIME
        found: Suspicion | None = suspicion(fault, tried_long=undertaken.long)
        if (
            not undertaken.alters
            and of_captured(fault)
            and trouble.beside
            and (undertaken.drains_alone or not trouble.innocent)
        ):
            # The cause shows when the captured changes are drained without any batch.
            trouble.failed(alone=undertaken.drains_alone, out_of_time=out_of_time)
            found = None
        if undertaken.alters:
            # It has no batches, and looks for the table at fault by itself.
            pace.held_up()
            found = None
        elif undertaken.drains_alone:
            pace.held_up()
            metrics.count("anabranch_drain_failures", database=name, cause=cause)
            if trouble.failures >= FAILURES_AT_MOST:
                self._set_aside(number, cache, name, error)
        else:
            # Of a group that ran out of time each half would, until there is one batch left.
            pace.failed(1 if out_of_time else len(undertaken.batches))
        # The other consequences of the session's loss are not known.
        cache.sums.clear()
        alone = list(undertaken.batches)
        if found is not None and len(alone) == 1 and self._others_pass(number, name, found.controls, error):
            self._put_aside(number, alone[0], name, found)

    def _publish(self, number: int, name: str, batches: int, fault: Fault | None, error: Exception) -> None:
        if fault is None:
            # Where it comes from is published once it is known which batch brings it out.
            where = error if batches <= 1 else None
            text = "group rolled back by a fault of the program"
            _log.error(text, database=name, batches=batches, detail=error, exc_info=where)
            return
        quiet = number in self.known.refused_since or (batches == 0 and fault.sqlstate == LOCK_NOT_AVAILABLE)
        say = _log.debug if quiet else _log.warning
        say(
            "group rolled back",
            database=name,
            batches=batches,
            sqlstate=fault.sqlstate,
            constraint="" if fault.raised else fault.constraint,
            detail=error,
        )

    def _others_pass(self, number: int, name: str, controls: int, error: Exception) -> bool:
        """Whether so many empty groups pass in a row."""
        for _ in range(controls):
            session = self.open_session(number)
            if session is None or not control.passes(session, number):
                break
        else:
            return True
        if number not in self.known.refused_since:
            self.known.refused_since[number] = time.monotonic()
            _log.error(
                "Postgres refuses every group of the database, with or without a batch: no batch and no table is "
                "blamed, all wait, and the next try comes within two seconds",
                database=name,
                detail=error,
            )
        return False

    def _set_aside(self, number: int, cache: Cache, name: str, error: Exception) -> None:
        """Look for the table whose captured changes can't be drained, and set it aside, so that the others go on."""
        if not self._others_pass(number, name, CONTROLS, error) or (session := self.open_session(number)) is None:
            return
        try:
            now_ms = self.clock.now_ms()
            found = table_at_fault(session, cache, number, now_ms, now_ms - Clock().now_ms())
            if found is None:
                text = "captured changes can't be drained, and no table is shown to be at fault: they are tried again"
                failures = cache.trouble.failures
                say = _log.error if failures % _PUBLISH_EACH == FAILURES_AT_MOST else _log.debug
                say(text, database=name, failures=failures, detail=error)
                return
            mark_torn(session, number, found.table, now_ms=now_ms)
            session.commit()
        except DatabaseError as lost:
            _log.warning("no table was found to be at fault", database=name, detail=lost)
            if not session.closed:
                session.rollback()
            return
        cache.trouble.failures = cache.trouble.allowed_ms = 0
        text = "a table's captured changes could not be drained and are dropped: it has to be removed and added anew"
        _log.error(text, database=name, table=found.called, detail=found.why)

    def _put_aside(self, number: int, batch_id: str, name: str, found: Suspicion) -> None:
        """Have the batch rest, so that the others go on, and count the failure where it counts."""
        session = self.open_session(number)
        if session is None:
            return
        attempts = None
        try:
            if found.counts:
                attempts = take.count_attempt(
                    session,
                    number,
                    batch_id,
                    self.clock.now_ms(),
                    self.rest_ms,
                    REST_GROWS,
                    failure=found.failure,
                    least=FAILURES_AT_MOST if found.last else 0,
                )
            else:
                parking.park(session, number, [parking.Parking(batch_id, self.clock.now_ms() + REST_MS)])
            session.commit()
        except DatabaseError as error:
            _log.warning("batch that failed alone not put aside", database=name, batch=batch_id, detail=error)
            if not session.closed:
                session.rollback()
            return
        if not found.counts:
            self.wakeups.wake_in(number, REST_MS / 1000)
            text = "batch rests: Postgres has no room or no lock for it, while others pass; it is tried again"
            _log.warning(text, database=name, batch=batch_id, sqlstate=found.failure, rest_ms=REST_MS)
            return
        self.wakeups.wake_in(number, self.rest_ms * REST_GROWS ** max(0, (attempts or 1) - 1) / 1000)
        _log.warning("batch failed alone", database=name, batch=batch_id, attempts=attempts)
