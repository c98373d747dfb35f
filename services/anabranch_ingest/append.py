"""The verb: appending batches to the inbox, durably, many calls in one commit.

State of an *appender*: a queue, and one task for each of its sessions. A task takes what has arrived while it was
busy (it never waits for more), settles that, and takes again. To settle a group of submissions it goes through
passes, at most ``MAX_PASSES``; in each, with set statements only:

1. *append*: one statement checks and replaces the tokens of calls that carry their node's current one, and
   appends what is new of them and of calls let in before. This is all that happens to an ordinary call.
2. *admit*: calls that were not let in by 1 are looked at with their node's row locked, in one transaction.
3. *find*: batches of calls let in that 1 left out have a verdict already, or wait already; or they were
   appended by somebody else a moment ago, and the next pass sees more.

A submission is done when its call is let in and every batch waits or has its verdict. A crash anywhere loses nothing
that was answered: a token that was replaced without its batches being appended is one whose answer was lost, and the
call that comes again names its batches.

Trouble is kept from neighbours: a group that Postgres refuses is settled in halves, down to the one submission that
is at fault. What passes by itself (a lost connection, a deadlock, a full disk) is tried again with all of them;
whether the lost commit had happened shows in the tokens and in the inbox.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence

import structlog
import tenacity

from anabranch import faults
from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.runtime.errors import Failure
from anabranch.store import inbox, nodes, verdicts
from anabranch.store.availability import is_unavailable
from anabranch.store.inbox import Arrival
from anabranch.store.ingest_session import Session, names_missing_database
from anabranch.store.nodes import Call
from anabranch.store.verdicts import Key
from anabranch.v1 import errors_pb2
from anabranch_ingest import answers
from anabranch_ingest.config import IngestSettings
from anabranch_ingest.queueing import FairQueue, Submission
from anabranch_ingest.sessions import SessionSource
from anabranch_ingest.tokens import Ruling, judge
from anabranch_ingest.waiting import Waiting

MAX_PASSES = 8
ATTEMPTS = 6
"""How often a group is tried where Postgres is not to be had; with the waits in between about two seconds."""
_log = structlog.get_logger()

_REFUSED = {
    Ruling.WRONG_PRINCIPAL: (
        errors_pb2.REASON_WRONG_PRINCIPAL,
        "the node belongs to another principal: clear the device's file, or log in as its owner",
    ),
    Ruling.FORKED: (
        errors_pb2.REASON_NODE_FORKED,
        "the node's token is not the current one: the device was copied or restored. "
        "Take a new node id; the queue is kept",
    ),
}


class Appender:
    """Takes submissions in. ``run`` does the work, with ``sessions`` sessions."""

    def __init__(self, url: str, settings: IngestSettings, waiting: Waiting, clock: Clock) -> None:
        self._settings = settings
        self._waiting = waiting
        self._clock = clock
        self._queue = FairQueue(settings.queue_max_batches, settings.queue_max_bytes)
        self._sources = [SessionSource(url, settings.append_timeout_ms) for _ in range(settings.append_sessions)]

    async def submit(self, submission: Submission, timeout_s: float) -> None:
        """Have a submission appended; what has a verdict already is on its ticket then, the rest is watched.

        Raises:
            Failure: WRONG_PRINCIPAL, NODE_FORKED, UNKNOWN_DATABASE, OVERLOADED; UNAVAILABLE where Postgres could not
            take it, or not within ``timeout_s`` seconds. psycopg.Error: Postgres refused it for a reason that nobody
            foresaw.
        """
        self._queue.put(submission)
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
            for source in self._sources:
                await source.close()

    async def _work(self, source: SessionSource) -> None:
        settings = self._settings
        while True:
            group = await self._queue.take(settings.append_max_batches, settings.append_max_bytes)
            try:
                await self._settle(source, group)
            except BaseException as error:
                for submission in group:
                    submission.fail(error if isinstance(error, Exception) else _unavailable("this server is stopping"))
                raise

    async def _settle(self, source: SessionSource, group: list[Submission]) -> None:
        """Settle a group, or those of it that can be."""
        try:
            await self._insist(source, group)
        except Exception as error:
            if is_unavailable(error):
                _log.warning("append failed", error=type(error).__name__, detail=str(error))
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
            _log.warning("append is tried again", error=type(error).__name__, detail=str(error))
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
        for submission in left:
            submission.fail(_unavailable("the same node or the same batches are being sent at once: send again"))

    async def _pass(self, session: Session, group: list[Submission]) -> list[Submission]:
        """One pass; gives what is not done after it."""
        now_ms = self._clock.now_ms()
        ready, waiting_for_turn = _one_of_each_node(group)
        calls, arrivals, doubled = _statement(ready)
        if calls or arrivals:
            await self._append(session, ready, calls, arrivals, doubled, now_ms)
        strangers = [s for s in ready if not s.admitted]
        if strangers:
            await _admit(session, strangers, now_ms)
        known = [s for s in ready if s.admitted and s.open and s not in strangers]
        if known:
            await self._find(session, known)
        for submission in ready:
            if submission.admitted and not submission.open:
                submission.finish()
        return [s for s in ready if not s.done.done()] + waiting_for_turn

    async def _append(
        self,
        session: Session,
        ready: list[Submission],
        calls: list[Call],
        arrivals: list[Arrival],
        doubled: set[int],
        now_ms: int,
    ) -> None:
        faults.reach("before_append")
        started = time.monotonic()
        appended = await inbox.append(session, calls, arrivals, now_ms)
        metrics.record("anabranch_append_duration", time.monotonic() - started)
        metrics.record("anabranch_append_size", len(appended.batches))
        faults.reach("after_append")
        new = appended.batches
        for submission in ready:
            call = submission.call
            if call is not None and call.number in appended.calls:
                submission.admitted = True
            if not submission.admitted or not submission.open:
                continue
            own = {a.batch_id for a in submission.open if (a.database_id, a.batch_id) in new}
            if doubled:
                own -= {a.batch_id for a in submission.open if id(a) in doubled}
            self._watch(submission, own)
            if len(own) == len(submission.open):
                submission.open = []
            else:
                submission.open = [a for a in submission.open if a.batch_id not in own]

    def _watch(self, submission: Submission, batch_ids: Collection[str]) -> None:
        if not submission.abandoned:
            self._waiting.watch(submission.ticket, submission.database_id, batch_ids)

    async def _find(self, session: Session, group: list[Submission]) -> None:
        """Look up batches that were sent before."""
        keys: list[Key] = list({(a.database_id, a.batch_id) for s in group for a in s.open})
        found = await verdicts.find(session, keys)
        for submission in group:
            unknown: list[Arrival] = []
            same: list[str] = []
            for arrival in submission.open:
                known = found.get((arrival.database_id, arrival.batch_id))
                if known is None:
                    unknown.append(arrival)
                elif known.payload_sha256 != arrival.payload_sha256 or known.principal != arrival.principal:
                    submission.ticket.refuse(arrival.batch_id, answers.reused(arrival.batch_id))
                elif known.verdict is not None:
                    submission.ticket.deliver(arrival.batch_id, known.verdict)
                else:
                    same.append(arrival.batch_id)
            self._watch(submission, same)
            submission.open = unknown


def _one_of_each_node(group: list[Submission]) -> tuple[list[Submission], list[Submission]]:
    """Those that can be in one statement, and those that come after another call of their node."""
    seen: set[tuple[int, str]] = set()
    ready: list[Submission] = []
    later: list[Submission] = []
    for submission in group:
        if submission.call is not None:
            node = (submission.call.database_id, submission.call.node_id)
            if node in seen:
                later.append(submission)
                continue
            seen.add(node)
        ready.append(submission)
    return ready, later


def _statement(ready: list[Submission]) -> tuple[list[Call], list[Arrival], set[int]]:
    """The calls and the batches of one append: calls in the order of their nodes, so that two statements lock
    rows in the same order, and each batch once. Then the ``id()`` of the arrivals that are left out, because
    another submission of the group brings the same batch."""
    calls: list[Call] = []
    arrivals: dict[Key, Arrival] = {}
    doubled: set[int] = set()
    for number, submission in enumerate(ready, 1):
        call = submission.call
        if call is None or (submission.admitted and call.mode is not nodes.Mode.EXTEND):
            number = 0
        else:
            call.number = number
            if not submission.admitted and not call.token:
                continue
            calls.append(call)
            if submission.admitted:
                number = 0
        for arrival in submission.open:
            arrival.number = number
            if arrivals.setdefault((arrival.database_id, arrival.batch_id), arrival) is not arrival:
                doubled.add(id(arrival))
    calls.sort(key=lambda c: (c.database_id, c.node_id))
    return calls, list(arrivals.values()), doubled


async def _admit(session: Session, strangers: Sequence[Submission], now_ms: int) -> None:
    """Look at calls whose token is not the current one, or whose node is new."""
    of = {s.call.number: s for s in strangers if s.call is not None}
    calls = sorted((s.call for s in of.values() if s.call), key=lambda c: (c.database_id, c.node_id))
    refused: list[tuple[Submission, Ruling]] = []
    accepted: list[Call] = []
    async with session.conn.transaction():
        made = await nodes.create(session, calls, now_ms)
        rows = await nodes.lock(session, [c for c in calls if c.number not in made])
        for call in calls:
            row = rows.get(call.number)
            if row is None:
                # Made here, or removed a moment ago: then the next pass makes it anew.
                continue
            ruling = judge(call, of[call.number].unanswered, row)
            if ruling is Ruling.IN:
                accepted.append(call)
            elif ruling is not Ruling.IN_ALREADY:
                refused.append((of[call.number], ruling))
        if accepted:
            await nodes.rotate(session, accepted, now_ms)
    for submission, ruling in refused:
        reason, message = _REFUSED[ruling]
        submission.fail(Failure(reason, message))
    for number, submission in of.items():
        submission.admitted = not submission.done.done() and (number in made or number in rows)


def _fail_alone(submission: Submission, error: Exception) -> None:
    if names_missing_database(error):
        submission.fail(Failure(errors_pb2.REASON_UNKNOWN_DATABASE, "the database was removed"))
        return
    _log.error("a call's batches can't be appended", exc_info=error)
    submission.fail(error)


def _unavailable(message: str) -> Failure:
    return Failure(errors_pb2.REASON_UNAVAILABLE, message)
