"""The verb: appending batches to the inbox, durably, many calls in one commit.

State of an *appender*: a queue, and one task for each of its sessions. A task takes what has arrived while it was busy
(it never waits for more), settles that, and takes again. To settle a group of submissions it goes through passes, at
most ``MAX_PASSES`` before what is left rests; in each, with set statements only:

1. *append*: one statement checks and replaces the tokens of calls that carry their node's current one, and
   appends what is new of them and of calls let in before. This is all that happens to an ordinary call.
2. *admit*: calls that were not let in by 1 are looked at with their node's row locked, and their batches appended, in
   one transaction.
3. *find*: batches of calls let in that 1 left out have a verdict already, or wait already; or another session appended
   them a moment ago, and the next pass sees them.

A submission is done when its call is let in and every batch waits or has its verdict. A new token is never committed
without the call's batches. Where its answer gets lost, the call that comes again names them.

Nothing here waits for a locked row: a group commit locks the rows of its nodes and batches until its end.
Such a submission *rests* a moment and goes back into the queue, so that it does not delay others.

One submission's fault does not hit others: a group that Postgres refuses is settled in halves, down to the one that
is at fault. A passing failure (a lost connection, a deadlock, a full disk) is tried again with all of them;
whether the lost commit had happened shows in the tokens and in the inbox.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import structlog
import tenacity

from anabranch import faults
from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.runtime.errors import CallError
from anabranch.store.inbox import append, verdicts
from anabranch.store.inbox.append import NOTHING, Appended, Arrival
from anabranch.store.inbox.session import Session, names_missing_database
from anabranch.store.inbox.verdicts import Key
from anabranch.store.nodes.tokens import Mode
from anabranch.store.session.availability import is_unavailable
from anabranch.v1 import errors_pb2
from anabranch_ingest import answers
from anabranch_ingest.admission import look
from anabranch_ingest.config import IngestSettings
from anabranch_ingest.queueing import FairQueue, Submission
from anabranch_ingest.sessions import SessionSource
from anabranch_ingest.statement import AppendStatement, one_of_each_node, statement_of
from anabranch_ingest.waiting import WatchedBatches

MAX_PASSES = 4
AGAIN_S = 0.005
"""The pause, in seconds, before a submission is tried again whose node or batches were locked by another session."""
ATTEMPTS = 6
"""How often a group is tried where Postgres is not available; with the waits in between about two seconds."""
_log = structlog.get_logger()


class Appender:
    """Takes submissions in. ``run`` does the work, with ``sessions`` sessions."""

    def __init__(self, url: str, settings: IngestSettings, waiting: WatchedBatches, clock: Clock) -> None:
        self._settings = settings
        self._waiting = waiting
        self._clock = clock
        self._queue = FairQueue(settings.queue_max_batches, settings.queue_max_bytes)
        self._resting: set[Submission] = set()
        self._sources = [SessionSource(url, settings.append_timeout_ms) for _ in range(settings.append_sessions)]

    async def submit(self, submission: Submission, timeout_s: float) -> None:
        """Have a submission appended; what has a verdict already is on its ticket then, the rest is watched.

        Raises:
            CallError: WRONG_PRINCIPAL, NODE_FORKED, UNKNOWN_DATABASE, OVERLOADED; UNAVAILABLE where Postgres could not
                take it, or not within ``timeout_s`` seconds.
            psycopg.Error: Postgres refused it for an unforeseen reason.
        """
        try:
            self._queue.put(submission)
        except CallError:
            submission.leave()
            raise
        try:
            async with asyncio.timeout(timeout_s):
                await submission.done
        except TimeoutError:
            raise _unavailable("the batches could not be appended in time: send them again") from None
        finally:
            submission.abandoned = True

    async def run(self) -> None:
        """Append what is submitted, for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for source in self._sources:
                    tasks.create_task(self._work(source))
        finally:
            self._queue.drain(lambda: _unavailable("this server is stopping: send again"))
            while self._resting:
                self._resting.pop().fail(_unavailable("this server is stopping: send again"))
            for source in self._sources:
                await source.close()

    async def _work(self, source: SessionSource) -> None:
        settings = self._settings
        while True:
            group = await self._queue.take(settings.append_max_batches, settings.append_max_bytes)
            for submission in group:
                submission.holder = group
            try:
                await self._settle(source, group)
            except BaseException as error:
                for submission in group:
                    submission.certain = False
                    submission.fail(error if isinstance(error, Exception) else _unavailable("this server is stopping"))
                raise
            # Those that rest, or came back and were taken again, are not done with; those whose callers went away are.
            for submission in group:
                if submission.holder is group:
                    submission.leave()

    async def _settle(self, source: SessionSource, group: list[Submission]) -> None:
        """Settle a group, or those of it that can be."""
        try:
            await self._insist(source, group)
        except Exception as error:
            if is_unavailable(error):
                _log.warning("append failed", error=type(error).__name__, detail=error)
                for submission in group:
                    submission.fail(_unavailable("the database can't take batches now"))
            elif len(group) > 1:
                middle = len(group) // 2
                await self._settle(source, [s for s in group[:middle] if not s.done.done()])
                await self._settle(source, [s for s in group[middle:] if not s.done.done()])
            elif group:
                _fail_alone(group[0], error)

    async def _insist(self, source: SessionSource, group: list[Submission]) -> None:
        try:
            async with source.session() as session:
                return await self._go_through(session, group)
        except Exception as error:
            if not is_unavailable(error):
                raise
            _log.warning("append is tried again", error=type(error).__name__, detail=error)
            # It may have been committed, and then is found to wait already.
            for submission in group:
                submission.certain = False
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(is_unavailable),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                async with source.session() as session:
                    await self._go_through(session, group)
        return None

    async def _go_through(self, session: Session, group: list[Submission]) -> None:
        left = [s for s in group if not s.done.done()]
        for _ in range(MAX_PASSES):
            left = await self._pass(session, left)
            if not left:
                return
        self._later(left)

    def _later(self, group: list[Submission]) -> None:
        """Have submissions come again in a moment; their callers' patience bounds how often."""
        for submission in group:
            submission.holder = None
        self._resting.update(group)
        asyncio.get_running_loop().call_later(AGAIN_S, self._come_again, group)

    def _come_again(self, group: list[Submission]) -> None:
        for submission in group:
            if submission in self._resting:
                self._resting.discard(submission)
                self._queue.put_back(submission)

    async def _pass(self, session: Session, group: list[Submission]) -> list[Submission]:
        """One pass; gives what can go on at once after it."""
        now_ms = self._clock.now_ms()
        ready, left = one_of_each_node(group)
        statement = statement_of(ready)
        busy: list[Submission] = []
        if statement.calls or statement.arrivals:
            faults.reach("before_append")
            appended = await _append(session, statement, now_ms)
            faults.reach("after_append")
            for submission in ready:
                call = submission.call
                if call is None:
                    continue
                if call.number in appended.busy:
                    busy.append(submission)
                elif call.number in appended.calls:
                    submission.admitted = True
                if call.mode is Mode.EXTEND and call.number not in appended.busy:
                    # Added, or no longer the node's current token: another call has come since.
                    submission.call = None
            self._note(ready, statement, appended)
        unadmitted = [s for s in ready if not s.admitted and s not in busy]
        if unadmitted:
            busy += await self._admit(session, unadmitted, now_ms)
        known = [s for s in ready if s.admitted and s.open and s not in unadmitted]
        if known:
            await self._find(session, known)
        for submission in ready:
            if submission.settled:
                submission.finish()
            elif submission not in busy and not submission.done.done():
                left.append(submission)
        if busy:
            self._later([s for s in busy if not s.done.done()])
        return left

    async def _admit(self, session: Session, unadmitted: list[Submission], now_ms: int) -> list[Submission]:
        """Look at calls that did not carry their node's current token, and append what is let in, in one
        transaction: a batch that Postgres refuses leaves its node's token as it was. Gives the submissions whose node's
        row was locked."""
        faults.reach("before_append")
        async with session.conn.transaction():
            admission = await look(session, unadmitted, now_ms)
            statement = statement_of(admission.admitted, admitted=True)
            appended = NOTHING
            if statement.arrivals:
                appended = await _append(session, statement, now_ms)
        faults.reach("after_append")
        for submission, failure in admission.refused:
            submission.fail(failure)
        for submission in admission.admitted:
            submission.admitted = True
        self._note(admission.admitted, statement, appended)
        return admission.busy

    def _note(self, group: list[Submission], statement: AppendStatement, appended: Appended) -> None:
        """Watch the batches that were appended, from now on."""
        new, doubled = appended.batches, statement.doubled
        for submission in group:
            if not submission.admitted or not submission.open:
                continue
            own = {
                a.batch_id: a.payload_sha256
                for a in submission.open
                if (a.database_id, a.batch_id) in new and not (doubled and id(a) in doubled)
            }
            self._watch(submission, own)
            if len(own) == len(submission.open):
                submission.open = []
            else:
                submission.open = [a for a in submission.open if a.batch_id not in own]

    def _watch(self, submission: Submission, batches: Mapping[str, bytes]) -> None:
        if not submission.abandoned:
            self._waiting.watch(submission.ticket, submission.database_id, batches)

    async def _find(self, session: Session, group: list[Submission]) -> None:
        """Look up batches that were sent before."""
        keys: list[Key] = list({(a.database_id, a.batch_id) for s in group for a in s.open})
        found = await verdicts.find(session, keys)
        for submission in group:
            unknown: list[Arrival] = []
            same: dict[str, bytes] = {}
            for arrival in submission.open:
                known = found.get((arrival.database_id, arrival.batch_id))
                if known is None:
                    unknown.append(arrival)
                elif known.payload_sha256 != arrival.payload_sha256 or known.principal != arrival.principal:
                    submission.ticket.refuse(arrival.batch_id, answers.reused(arrival.batch_id))
                elif known.verdict is not None:
                    submission.ticket.deliver(arrival.batch_id, known.verdict, known.position or 0)
                else:
                    same[arrival.batch_id] = arrival.payload_sha256
            self._watch(submission, same)
            submission.leave_out(unknown)


async def _append(session: Session, statement: AppendStatement, now_ms: int) -> Appended:
    started = time.monotonic()
    appended = await append.append(session, statement.calls, statement.arrivals, now_ms)
    metrics.record("anabranch_append_duration", time.monotonic() - started)
    metrics.record("anabranch_append_size", len(appended.batches))
    return appended


def _fail_alone(submission: Submission, error: Exception) -> None:
    if names_missing_database(error):
        submission.fail(CallError(errors_pb2.REASON_UNKNOWN_DATABASE, "the database was removed"))
        return
    _log.error("a call's batches can't be appended", exc_info=error)
    submission.fail(error)


def _unavailable(message: str) -> CallError:
    return CallError(errors_pb2.REASON_UNAVAILABLE, message)
