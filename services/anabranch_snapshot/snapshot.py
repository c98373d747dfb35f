"""The parts of snapshot put together: what calls use, and the background work that serves them all."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import structlog
import tenacity

from anabranch.clock import Clock
from anabranch.runtime import metrics
from anabranch.runtime.credentials.principal import require_database
from anabranch.runtime.credentials.watch import KeyNews
from anabranch.store.catalog.databases import Database
from anabranch.store.log.pull_reader import PullOptions, PullSource
from anabranch.store.log.reader import log_pool
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncPool
from anabranch.store.session.listening import TRIED_EACH_S, hear, open_listener
from anabranch.v1 import position_pb2
from anabranch_snapshot.config import SnapshotSettings
from anabranch_snapshot.databases import ServedDatabases
from anabranch_snapshot.log import Log
from anabranch_snapshot.nodes import Nodes
from anabranch_snapshot.pulls.bases import Bases
from anabranch_snapshot.pulls.turns import TurnLimits, Turns
from anabranch_snapshot.pulls.yielding import give_way
from anabranch_snapshot.tail import Tail
from anabranch_snapshot.unread import UnreadBytes
from anabranch_snapshot.viewers import Viewers
from anabranch_snapshot.viewers_tail import ViewersTail

_IDLE_MARGIN_MS = 30_000
"""A stalled pull is ended by this process, with a reason; so much later by Postgres, should this one be stopped."""
_log = structlog.get_logger()


class Snapshot:
    """The parts that the servicers work with. ``start`` first, then ``run`` beside the calls, ``close`` last."""

    def __init__(self, settings: SnapshotSettings, clock: Clock, pool: AsyncPool) -> None:
        self.settings = settings
        self.clock = clock
        self.pool = pool
        self.databases = ServedDatabases(pool)
        self.nodes = Nodes(pool, clock, settings.node_report_ms)
        self._url = settings.postgres_url.get_secret_value()
        self._log_pool = log_pool(
            self._url, max_size=settings.log_sessions, statement_timeout_ms=settings.log_statement_timeout_ms
        )
        self.log = Log(
            self._log_pool, pool, self.databases, self.nodes, clock, settings.log_sessions, settings.log_wait_ms
        )
        source = _pull_source(settings)
        self.turns = Turns(source, pool, _pull_limits(settings))
        self.compare_turns = Turns(source, pool, _compare_limits(settings))
        self.bases = Bases(settings, clock, pool)
        self.unread = UnreadBytes(
            settings.unread_max_bytes, settings.unread_max_bytes_per_principal, settings.unread_patience_ms / 1000
        )
        self.viewers = Viewers(self.log)
        self._tails: dict[int, Tail | ViewersTail] = {}
        self.key_news = KeyNews()
        self._tried_s = max(TRIED_EACH_S, settings.poll_interval_ms / 1000)
        self._listening = False

    async def start(self) -> None:
        """Read the databases.

        Raises:
            psycopg.Error: they can't be read.
        """
        await self._log_pool.open(wait=False)
        await self.databases.read_all()

    async def close(self) -> None:
        """Store the nodes' last reports, and end the sessions."""
        for tail in self._tails.values():
            await tail.close()
        try:
            await self.nodes.flush()
        except Exception as error:
            if not is_unavailable(error):
                raise
            _log.warning("nodes can't be stored", error=type(error).__name__, detail=error)
        self.turns.close()
        self.compare_turns.close()
        self.bases.close()
        await self._log_pool.close()

    async def ready(self) -> str | None:
        """Return why calls can't be served now, or None."""
        return None if self._listening else "notifications of groups are not heard"

    async def open_call(self, db_name: str, state: position_pb2.NodeState) -> tuple[Database, int]:
        """The database that a call may use, and its head; the node's state is checked and noted.

        Raises:
            CallError: PERMISSION_DENIED, UNKNOWN_DATABASE, INVALID_REQUEST, WRONG_PRINCIPAL, INVALID_POSITION,
            HISTORY_REWOUND.
            psycopg.Error: the database can't be read.
        """
        principal = require_database(db_name)
        database = await self.databases.find(db_name)
        history = await self.log.check_seen(database, state.greatest_seen)
        if history.epoch != database.epoch:
            database = await self.databases.read(db_name)
        await self.nodes.admit(database, principal.subject, state, history.head)
        return database, history.head

    def tail(self, database: Database) -> Tail:
        """The tail of a database in its epoch of which everybody sees the same. Raises ChangedError."""
        tail = self._tails.get(database.id)
        if isinstance(tail, Tail) and tail.database.epoch == database.epoch:
            return tail
        # The tail of an epoch that is over ends by itself: its next read fails.
        made = Tail(database, self.log, self.settings, self.clock)
        self._replace(database, made)
        return made

    def viewers_tail(self, database: Database) -> ViewersTail:
        """The tail of a database with restricted tables, by its tables and rules. Raises ChangedError."""
        tail = self._tails.get(database.id)
        if isinstance(tail, ViewersTail) and _version(tail.database) == _version(database):
            return tail
        made = ViewersTail(database, self.log, self.viewers, self.settings, self.clock)
        self._replace(database, made)
        return made

    def _replace(self, database: Database, tail: Tail | ViewersTail) -> None:
        before = self._tails.get(database.id)
        if isinstance(before, ViewersTail) and before.database.epoch == database.epoch:
            # Notifications are for the latest: none of an earlier state of the database takes its place.
            self.log.require_version(database, max(before.database.schema_version, database.schema_version))
        self._tails[database.id] = tail
        if before is not None:
            before.hear(0)

    async def run(self) -> None:
        """All background work, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.databases.follow())
            tasks.create_task(self.nodes.follow())
            tasks.create_task(self._listen())
            tasks.create_task(give_way(self.pool, [self.turns, self.compare_turns]))

    async def _listen(self) -> None:
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(is_unavailable),
            wait=tenacity.wait_random_exponential(multiplier=0.05, max=1.0),
            before_sleep=_log_outage,
        )
        async for attempt in retrying:
            with attempt:
                await self._hear()

    async def _hear(self) -> None:
        conn = await open_listener(self._url, application_name="anabranch-snapshot-listener")
        metrics.count("anabranch_notifications_ignored", 0)
        try:
            self._listening = True
            # Notifications that were sent before the session listened are made up for by a look.
            self.databases.look()
            self.key_news.hear()
            for tail in self._tails.values():
                tail.hear(0)
            notified = hear(conn, self._tried_s, self.key_news.hear)
            async with contextlib.aclosing(notified) as notifications:
                async for heard in notifications:
                    if heard is None or (heard.position and not self.databases.knows(heard.database_id)):
                        metrics.count("anabranch_notifications_ignored")
                    elif heard.position == 0:
                        self.databases.look()
                        if isinstance(follower := self._tails.get(heard.database_id), ViewersTail):
                            # Its rules may be others now.
                            follower.hear(0)
                    elif heard.database_id in self._tails:
                        self._tails[heard.database_id].hear(heard.position, heard.traceparent)
        finally:
            self._listening = False
            await conn.close()


def _version(database: Database) -> tuple[str, int]:
    return database.epoch, database.schema_version


def _pull_source(settings: SnapshotSettings) -> PullSource:
    options = PullOptions(
        lock_timeout_ms=settings.pull_lock_timeout_ms,
        statement_timeout_ms=settings.pull_max_ms,
        idle_timeout_ms=settings.pull_stall_ms + _IDLE_MARGIN_MS,
        batch_bytes=settings.pull_batch_bytes,
    )
    return PullSource(settings.postgres_url.get_secret_value(), options)


def _pull_limits(settings: SnapshotSettings) -> TurnLimits:
    return TurnLimits(
        kind="pulls",
        sessions=settings.pull_sessions,
        sessions_of_one=settings.pull_sessions_per_principal,
        waiting=settings.pull_waiting,
        waiting_of_one=settings.pull_waiting_per_principal,
        least_bytes_per_s=settings.pull_least_bytes_per_s,
        window_s=settings.pull_least_window_ms / 1000,
        turn_s=settings.pull_turn_ms / 1000,
    )


def _compare_limits(settings: SnapshotSettings) -> TurnLimits:
    return replace(
        _pull_limits(settings),
        kind="comparisons",
        sessions=settings.compare_sessions,
        sessions_of_one=settings.compare_sessions_per_principal,
        waiting=settings.compare_waiting,
        waiting_of_one=settings.compare_waiting_per_principal,
    )


def _log_outage(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    _log.warning("notifications are not heard", error=type(error).__name__, detail=error)
