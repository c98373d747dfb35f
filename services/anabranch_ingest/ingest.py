"""The parts of ingest put together: what calls use, and the background work that serves them all."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import structlog
import tenacity

from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.runtime.calls.limits import RateLimit
from anabranch.runtime.credentials.principal import require_database
from anabranch.runtime.credentials.watch import KeyNews
from anabranch.runtime.errors import CallError
from anabranch.runtime.telemetry import current_traceparent
from anabranch.store.inbox.append import Arrival, Load, load_of
from anabranch.store.inbox.notified import open_verdicts
from anabranch.store.inbox.verdicts import Key, SettledHead, decided
from anabranch.store.nodes.tokens import Call
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.listening import TRIED_EACH_S, Heard, hear, open_listener
from anabranch.v1 import errors_pb2, ingest_pb2
from anabranch_ingest.append import Appender
from anabranch_ingest.calls import Opening, open_call
from anabranch_ingest.config import IngestSettings
from anabranch_ingest.databases import Databases
from anabranch_ingest.queueing import Submission
from anabranch_ingest.quota import HeldBytes, HeldParts, Quota
from anabranch_ingest.seen import SeenPositions
from anabranch_ingest.sessions import SessionSource
from anabranch_ingest.waiting import Ticket, WatchedBatches

FETCH_MOST = 5_000
"""Verdicts looked up by one statement."""
HEADS_EACH = 5
"""One in so many polls looks at the databases, too. Notifications of them are missed only while there is no listener,
and the next one begins with a look."""
MARGIN_SHARE = 0.1
UNSEALED_S = 60.0
"""Seconds between two log lines about notifications that are not sealed by the resolver, at least."""
_log = structlog.get_logger()


class Ingest:
    """The parts that the servicer works with. ``start`` first, then ``run`` beside the calls."""

    def __init__(self, settings: IngestSettings, clock: Clock, stopping: asyncio.Event) -> None:
        url = settings.postgres_url.get_secret_value()
        self.settings = settings
        self.clock = clock
        self.stopping = stopping
        self._url = url
        self._look_ups = SessionSource(url, settings.append_timeout_ms)
        self._fetches = SessionSource(url, settings.append_timeout_ms)
        self._histories = SessionSource(url, settings.append_timeout_ms)
        self._claims = SessionSource(url, settings.append_timeout_ms)
        self._tickets: set[Ticket] = set()
        self.key_news = KeyNews()
        self._tried_s = max(TRIED_EACH_S, settings.poll_interval_ms / 1000)
        self._listening = False
        self._unsealed = 0
        self._unsealed_logged_s = -UNSEALED_S
        self.waiting = WatchedBatches()
        self.memory = HeldBytes(settings.memory_max_bytes)
        self.parts = HeldParts(self.memory, settings.memory_max_bytes, settings.principal_max_parts_bytes)
        self.databases = Databases(self._look_ups)
        self.seen = SeenPositions(self._histories, self._claims, self.databases, clock)
        self.databases.on_head = self.seen.note_head
        most = Load(settings.principal_max_waiting_batches, settings.principal_max_waiting_bytes)
        self._quota = Quota(self._look_ups, most)
        self._rate = RateLimit(
            settings.principal_batches_per_s, settings.principal_batches_burst, "sends batches too fast"
        )
        self._appender = Appender(url, settings, self.waiting, clock)

    async def start(self) -> None:
        """Read the databases.

        Raises:
            psycopg.Error: they can't be read.
        """
        await self.databases.read_all()

    async def ready(self) -> str | None:
        """Return why calls can't be served now, or None."""
        return None if self._listening else "notifications of verdicts are not heard"

    def wait_s(self, remaining_s: float | None) -> float:
        """How long a call may wait that has ``remaining_s`` seconds left (None: no deadline)."""
        settings = self.settings
        if remaining_s is None:
            return min(settings.wait_default_ms, settings.wait_max_ms) / 1000
        margin_s = min(settings.answer_margin_ms / 1000, remaining_s * MARGIN_SHARE)
        return max(0.0, min(remaining_s - margin_s, settings.wait_max_ms / 1000))

    async def open(self, request: ingest_pb2.SendRequest | ingest_pb2.SendStreamRequest) -> Opening:
        """The call that a request makes, judged before anything is appended: database, position seen, fields.

        Raises:
            CallError: as ``require_database``, ``Databases.find``, ``SeenPositions.check`` and ``open_call``.
            psycopg.Error: the history, or the databases, can't be read.
        """
        principal = require_database(request.db_name)
        database = await self.databases.find(request.db_name)
        database = await self.seen.check(database, request.node_state.greatest_seen)
        return open_call(request, database, principal, self.databases.position(database), current_traceparent() or "")

    @contextlib.asynccontextmanager
    async def ticket(self, opening: Opening) -> AsyncIterator[Ticket]:
        """A ticket for the verdicts of one call."""
        ticket = Ticket(opening.principal)
        self._tickets.add(ticket)
        if self.stopping.is_set():
            ticket.give_up()
        try:
            yield ticket
        finally:
            self._tickets.discard(ticket)
            self.waiting.close(ticket, opening.database.id)

    async def append(
        self,
        opening: Opening,
        call: Call | None,
        arrivals: Sequence[Arrival],
        ticket: Ticket,
        timeout_s: float,
        *,
        admitted: bool = False,
    ) -> None:
        """Append batches and look at the call's token, unless it is ``admitted`` already, by its stream's opening.
        Raises as ``Appender.submit``, ``Quota.take``, and ``RateLimit.take`` where it is not."""
        database = opening.database
        if arrivals:
            name = database.name
            metrics.count("anabranch_batches_received", len(arrivals), database=name)
            load = load_of(arrivals)
            metrics.count("anabranch_batch_bytes_received", load.size, database=name)
            if admitted:
                await self._rate.wait(opening.principal, load.batches)
            else:
                self._rate.take(opening.principal, load.batches)
            await self._quota.take(database.id, opening.principal, load)
        elif call is None:
            return
        submission = Submission(
            database_id=database.id,
            principal=opening.principal,
            call=call,
            unanswered=opening.unanswered,
            open=list(arrivals),
            ticket=ticket,
            done=asyncio.get_running_loop().create_future(),
            admitted=admitted,
        )
        if arrivals:
            submission.on_leaving = functools.partial(self._quota.settle, database.id, opening.principal, load)
        try:
            await self._appender.submit(submission, timeout_s)
        except CallError as failure:
            if failure.reason == errors_pb2.REASON_UNKNOWN_DATABASE:
                self.databases.look()
            raise

    async def run(self) -> None:
        """All background work, for ever."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._appender.run())
                tasks.create_task(self.databases.follow())
                tasks.create_task(self._listen())
                tasks.create_task(self._fetch())
                tasks.create_task(self._poll())
                tasks.create_task(self._answer_when_stopping())
        finally:
            await self._look_ups.close()
            await self._fetches.close()
            await self._histories.close()
            await self._claims.close()

    async def _listen(self) -> None:
        async def listen() -> None:
            conn = await open_listener(self._url, application_name="anabranch-ingest-listener")
            metrics.count("anabranch_notifications_ignored", 0)
            try:
                self._listening = True
                self.seen.remember(True)
                # Notifications that were sent before the session listened are made up for by a look.
                self.databases.look()
                self.waiting.look_at_all()
                self.key_news.hear()
                notified = hear(conn, self._tried_s, self.key_news.hear)
                async with contextlib.aclosing(notified) as notifications:
                    async for heard in notifications:
                        if heard is not None:
                            self._take_verdicts(heard)
                        if heard is not None and self.databases.hear(heard):
                            self.waiting.hear(heard)
                        else:
                            metrics.count("anabranch_notifications_ignored")
            finally:
                self._listening = False
                self.seen.remember(False)
                await conn.close()

        while True:
            await _insist(listen)

    def _take_verdicts(self, heard: Heard) -> None:
        """Deliver the verdicts in a notification; the others are looked up."""
        head = self.databases.by_id(heard.database_id) if heard.verdicts else None
        if head is None:
            return
        opened = open_verdicts(head.seal_key, head.id, heard.position, heard.verdicts)
        if opened is None:
            self._log_unsealed(head.name)
            return
        chain, verdicts = opened
        self.databases.advance(SettledHead(head.id, heard.position, chain))
        for batch_id, verdict in verdicts:
            self.waiting.decide((head.id, batch_id), verdict)

    def _log_unsealed(self, database: str) -> None:
        """Log unsealed notifications, at most every ``UNSEALED_S``: any session can send as many as it likes."""
        self._unsealed += 1
        now = time.monotonic()
        if now - self._unsealed_logged_s >= UNSEALED_S:
            text = "verdicts in a notification that are not sealed by the resolver"
            _log.warning(text, database=database, number=self._unsealed)
            self._unsealed, self._unsealed_logged_s = 0, now

    async def _fetch(self) -> None:
        while True:
            keys = await self.waiting.due(FETCH_MOST)

            async def fetch(keys: list[Key] = keys) -> None:
                async with self._fetches.session() as session:
                    found, heads = await decided(session, keys)
                for head in heads:
                    self.databases.advance(head)
                for key, verdict in found:
                    self.waiting.decide(key, verdict)

            await _insist(fetch)

    async def _poll(self) -> None:
        interval_s = self.settings.poll_interval_ms / 1000
        for number in itertools.count(1):
            await asyncio.sleep(interval_s)
            self.waiting.poll()
            if number % HEADS_EACH == 0:
                self.databases.look()

    async def _answer_when_stopping(self) -> None:
        """Answer every call that still waits with the verdicts that there are, when the drain begins."""
        await self.stopping.wait()
        for ticket in list(self._tickets):
            ticket.give_up()
        await asyncio.Event().wait()


async def _insist(work: Callable[[], Awaitable[None]]) -> None:
    """Do the work; repeat it while Postgres is not available."""
    try:
        return await work()
    except Exception as error:
        if not is_unavailable(error):
            raise
        _log.warning("without the database", error=type(error).__name__, detail=error)
    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(is_unavailable),
        wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
    )
    async for attempt in retrying:
        with attempt:
            await work()
    return None
