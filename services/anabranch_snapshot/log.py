"""Reading the log for calls: a page from a place, or the reason why that place can't be read from.

A database with restricted tables is read as passages, of which each reader sees its own part (``visible``); no page for
everybody is made of it, also where it has become one a moment ago.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from anabranch.clock import Clock
from anabranch.runtime.calls.fair_turns import FairTurns
from anabranch.runtime.calls.rewind import Rewinds, seen_of
from anabranch.runtime.credentials.principal import current_subject
from anabranch.runtime.errors import CallError
from anabranch.store.audiences.viewing import is_scoped
from anabranch.store.catalog.databases import Database, UnknownDatabaseError
from anabranch.store.log.history import History, Judgement, SeenGroup, judge, read_history
from anabranch.store.log.reader import NO_LIMIT, Sums, read_stretch, read_sums
from anabranch.store.log.seal import EMPTY_CHAIN, position_token
from anabranch.store.log.stretch import Stretch
from anabranch.store.session.engine import AsyncPool, AsyncSession
from anabranch.v1 import change_pb2, errors_pb2, position_pb2
from anabranch_snapshot.databases import ServedDatabases
from anabranch_snapshot.nodes import Nodes
from anabranch_snapshot.page_tokens import Place
from anabranch_snapshot.pages import to_page, to_position
from anabranch_snapshot.passages import Passage, passage_of

_T = TypeVar("_T")
CALLS_PER_SESSION = 4
"""Calls that are under way for each session: a call reads several times, and does other things in between."""
BESIDE = 1
"""Sessions in which one principal reads while others read, too. What was read is made into pages by the one event loop:
several reads of one principal at once make each step of its neighbours' calls wait longer, and bring it little."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A page, the place where it ends, and what stood beside it. ``moved``: a reader gets ahead by it."""

    page: change_pb2.Page
    place: Place
    stretch: Stretch
    moved: bool

    @property
    def known(self) -> SeenGroup:
        """The head of the moment: what comes after the page is of a history that has it."""
        return SeenGroup(self.stretch.head, self.stretch.head_chain)


class ChangedError(CallError):
    """Tables or rules are no longer those that the call was begun with: it may begin again with the present ones."""

    def __init__(self, database: Database) -> None:
        super().__init__(
            errors_pb2.REASON_UNAVAILABLE, f"tables or rules of {database.name!r} have just changed: call again"
        )


class Log:
    """The log of all databases. At most ``sessions`` reads are under way; others wait for their turn, and principals
    take turns, each with ``BESIDE`` reads at a time where there are several. Claims are waited for in sessions of
    ``claim_pool``. A call waits at most ``wait_ms`` until it may begin to read."""

    def __init__(
        self,
        pool: AsyncPool,
        claim_pool: AsyncPool,
        databases: ServedDatabases,
        nodes: Nodes,
        clock: Clock,
        sessions: int,
        wait_ms: int,
    ) -> None:
        self._pool = pool
        self._claim_pool = claim_pool
        self._databases = databases
        self._nodes = nodes
        self._clock = clock
        self._turns = FairTurns(sessions, beside=BESIDE)
        self._calls = FairTurns(CALLS_PER_SESSION * sessions)
        self._wait_s = wait_ms / 1000
        self._rewinds = Rewinds(clock, self.with_session, self.with_claiming)

    @contextlib.asynccontextmanager
    async def admitted(self) -> AsyncIterator[None]:
        """A block in which a call may read. Calls that come faster than they can be answered would all wait until their
        callers have given up, and none would be answered: those that wait for long are refused, and come again.

        Raises:
            CallError: OVERLOADED.
        """
        subject = current_subject()
        try:
            async with asyncio.timeout(self._wait_s):
                await self._calls.take(subject)
        except TimeoutError:
            raise CallError(
                errors_pb2.REASON_OVERLOADED,
                f"the call has waited {self._wait_s:g} s for its turn to read the log: call again in a while",
            ) from None
        try:
            yield
        finally:
            self._calls.give_back(subject)

    @contextlib.asynccontextmanager
    async def _session(self) -> AsyncIterator[AsyncSession]:
        async with self._turns.turn(current_subject()), self._pool.connection() as conn:
            yield conn

    async def with_session(self, work: Callable[[AsyncSession], Awaitable[_T]], /) -> _T:
        """Do work in a session that reads the log, when it is the caller's turn."""
        async with self._session() as conn:
            return await work(conn)

    async def with_claiming(self, work: Callable[[AsyncSession], Awaitable[_T]], /) -> _T:
        """Do work in a session that may wait for a claim."""
        async with self._claim_pool.connection() as conn:
            return await work(conn)

    async def read(
        self,
        database: Database,
        place: Place,
        max_bytes: int,
        up_to: int = NO_LIMIT,
        *,
        known: Sequence[SeenGroup] = (),
        resumed: SeenGroup | None = None,
    ) -> Reading:
        """The next page from ``place`` on, of positions up to ``up_to``. ``known``: what the reader has seen, and what
        was read before this page; a page of a history that has not all of it is not given. ``resumed``: the same of
        the page token that the place is from.

        Raises:
            CallError: BEHIND_FLOOR, INVALID_POSITION, INVALID_TOKEN, UNAVAILABLE, UNKNOWN_DATABASE.
            psycopg.Error: the log can't be read.
        """
        stretch = await self._stretch(database, place, max_bytes, up_to, known, resumed)
        current = self._databases.current(database)
        if current.schema_version != stretch.schema_version:
            current = await self._databases.read(database.name)
        if is_scoped(current) or current.id != database.id:
            raise self.changed(database)
        if current.epoch != database.epoch:
            current = database
        names = await self._nodes.names(database.id, (item.node_id for item in stretch.items))
        end = Place(stretch.reached, stretch.end)
        return Reading(to_page(stretch, current, names), end, stretch, end != place)

    async def passage(
        self,
        database: Database,
        place: Place,
        max_bytes: int,
        up_to: int = NO_LIMIT,
        *,
        known: Sequence[SeenGroup] = (),
        resumed: SeenGroup | None = None,
    ) -> Passage:
        """The next stretch from ``place`` on of a database with restricted tables, as ``read`` reads it.

        Raises:
            CallError: as ``read``; UNAVAILABLE also where tables or rules are no longer those of ``database``.
            psycopg.Error: the log can't be read.
        """
        stretch = await self._stretch(database, place, max_bytes, up_to, known, resumed, scoped=True)
        self.require_version(database, stretch.schema_version)
        names = await self._nodes.names(database.id, (item.node_id for item in stretch.items))
        return passage_of(database, stretch, place, names)

    def require_version(self, database: Database, schema_version: int) -> None:
        """Check that what was read is of the tables and rules of ``database``. Raises ChangedError."""
        if schema_version != database.schema_version:
            raise self.changed(database)

    def changed(self, database: Database) -> ChangedError:
        """The failure of a call whose ``database`` has other tables or rules now; they are read anew."""
        self._databases.look()
        return ChangedError(database)

    def now_ms(self) -> int:
        """The time, in milliseconds since 1970."""
        return self._clock.now_ms()

    async def _stretch(
        self,
        database: Database,
        place: Place,
        max_bytes: int,
        up_to: int,
        known: Sequence[SeenGroup],
        resumed: SeenGroup | None,
        *,
        scoped: bool = False,
    ) -> Stretch:
        wanted = [*known, *([] if resumed is None else [resumed])]
        try:
            async with self._session() as conn:
                stretch = await read_stretch(
                    conn,
                    database.id,
                    place.base,
                    place.cursor,
                    max_bytes=max_bytes,
                    up_to=up_to,
                    known=wanted,
                    scoped=scoped,
                )
        except UnknownDatabaseError:
            raise self._gone(database) from None
        self._check_history(database, stretch.epoch, stretch.schema_version)
        if resumed in stretch.lost:
            raise CallError(
                errors_pb2.REASON_INVALID_TOKEN, "the server was restored to a time before page_token: start again"
            )
        if stretch.lost:
            # A caller that calls again presents the position that it has seen, and learns of the rewind.
            raise CallError(errors_pb2.REASON_UNAVAILABLE, "the log is no longer what was read of it: call again")
        if stretch.floor >= place.cursor.least_needed:
            raise CallError(
                errors_pb2.REASON_BEHIND_FLOOR,
                f"the log goes back to {stretch.floor}; take a new snapshot",
                floor=str(stretch.floor),
            )
        if place.cursor.position > stretch.head:
            raise beyond_head(place.cursor.position, stretch.head)
        if not stretch.known_base:
            raise CallError(
                errors_pb2.REASON_INVALID_POSITION, f"no group was ever committed at {place.base}: take a new snapshot"
            )
        return stretch

    async def sums(self, database: Database) -> Sums:
        """Head and sums of one moment.

        Raises:
            CallError: UNAVAILABLE, UNKNOWN_DATABASE.
            psycopg.Error: they can't be read.
        """
        try:
            async with self._session() as conn:
                sums = await read_sums(conn, database.id)
        except UnknownDatabaseError:
            raise self._gone(database) from None
        self._check_history(database, sums.epoch, sums.schema_version)
        return sums

    async def check_seen(self, database: Database, seen: position_pb2.Position) -> History:
        """Check the greatest position that a node ever saw. Gives the history that has it.

        Raises:
            CallError: HISTORY_REWOUND, INVALID_POSITION, UNKNOWN_DATABASE, UNAVAILABLE.
            psycopg.Error: the history can't be read.
        """
        checked = await self._rewinds.check(database.id, database.name, seen)
        if checked.failure is not None:
            if checked.epoch != self._databases.current(database).epoch:
                # It has just moved.
                self._databases.look()
            raise checked.failure
        return checked.history

    async def find_common(self, database: Database, seen: Sequence[position_pb2.Position]) -> position_pb2.Position:
        """The greatest of these positions that the history has, sealed in its epoch; the position 0 where it has none.

        Raises:
            CallError: UNKNOWN_DATABASE.
            psycopg.Error: the history can't be read.
        """
        candidates = list(map(seen_of, seen))
        async with self._session() as conn:
            history = await read_history(conn, database.id, [one.position for one in candidates])
        if history is None:
            raise self._gone(database)
        fitting = [one for one in candidates if one.token and judge(history, one) is Judgement.FITS]
        common = max((one.position for one in fitting), default=0)
        chain = EMPTY_CHAIN if common == 0 else history.chains.get(common)
        token = b"" if chain is None else position_token(history.seal_key, history.epoch, common, chain)
        return position_pb2.Position(epoch=history.epoch, server_timestamp_ms=common, token=token)

    def state(
        self, database: Database, position: int, chain: bytes | None, floor: int, schema_version: int
    ) -> position_pb2.ServerState:
        """The ServerState of an answer of the database, settled at ``position``."""
        return position_pb2.ServerState(
            settled=to_position(database, position, chain),
            floor=floor,
            schema_version=schema_version,
            server_time_ms=self._clock.now_ms(),
        )

    def _check_history(self, database: Database, epoch: str, schema_version: int) -> None:
        if schema_version != self._databases.current(database).schema_version:
            self._databases.look()
        if epoch != database.epoch:
            self._databases.look()
            # A caller that calls again is judged anew, and goes on if its position lies in this history as well.
            raise CallError(errors_pb2.REASON_UNAVAILABLE, "a new epoch has begun: call again")

    def _gone(self, database: Database) -> CallError:
        self._databases.look()
        return CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {database.name!r}")


def beyond_head(position: int, head: int) -> CallError:
    """The failure of a reader whose position is beyond the log's head."""
    return CallError(errors_pb2.REASON_INVALID_POSITION, f"{position} is beyond the head {head}: take a new snapshot")
