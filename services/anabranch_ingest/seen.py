"""Compares the positions that nodes have seen, as their calls present them, with the history before a call goes on.

Nearly every call presents a position that this process has sent in an answer, or has looked up, a moment ago: these are
remembered, and cost no statement. A remembered position holds for as long as the server is the same: a restored one has
ended every session, so that all are forgotten when the session that listens is lost, and without such a session nothing
is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from anabranch.clock import Clock
from anabranch.runtime.calls.fair_turns import FairTurns
from anabranch.runtime.calls.rewind import Rewinds
from anabranch.runtime.credentials.principal import current_subject
from anabranch.runtime.errors import CallError
from anabranch.store.inbox.heads import DatabaseHead
from anabranch.store.session.engine import AsyncSession
from anabranch.v1 import position_pb2
from anabranch_ingest.databases import Databases
from anabranch_ingest.sessions import SessionSource

KEPT = 50_000
"""Positions that are remembered."""
_Known = tuple[int, str, int, bytes]
_T = TypeVar("_T")


class SeenPositions:
    """The positions that nodes of all databases present. ``source`` is the session that looks them up, for one
    principal after the other; ``claiming`` the one that may wait for a claim."""

    def __init__(self, source: SessionSource, claiming: SessionSource, databases: Databases, clock: Clock) -> None:
        self._source = source
        self._claiming = claiming
        self._databases = databases
        self._turns = FairTurns(1)
        self._rewinds = Rewinds(clock, self._with_session, self._with_claiming)
        self._known: OrderedDict[_Known, None] = OrderedDict()
        self._remembering = False
        self._generation = 0

    def remember(self, remembering: bool) -> None:
        """Begin to remember, or forget everything: the server may be another one from now on."""
        self._remembering = remembering
        self._generation += 1
        self._known.clear()

    def note_head(self, head: DatabaseHead) -> None:
        """Note that this head goes out with answers from now on."""
        if self._remembering:
            self._add((head.id, head.epoch, head.position, head.token))

    def _add(self, position: _Known) -> None:
        self._known[position] = None
        if len(self._known) > KEPT:
            self._known.popitem(last=False)

    async def check(self, database: DatabaseHead, seen: position_pb2.Position) -> DatabaseHead:
        """Check the greatest position that a node ever saw; gives the database in today's epoch.

        Raises:
            CallError: HISTORY_REWOUND, INVALID_POSITION, UNKNOWN_DATABASE, UNAVAILABLE.
            psycopg.Error: the history can't be read.
        """
        position = (database.id, seen.epoch, seen.server_timestamp_ms, seen.token)
        if not (seen.epoch or seen.server_timestamp_ms or seen.token):
            return database
        if position in self._known and seen.epoch == database.epoch:
            return database
        generation = self._generation
        try:
            checked = await self._rewinds.check(database.id, database.name, seen)
        except CallError:
            # The database may be gone.
            self._databases.look()
            raise
        if checked.epoch != database.epoch:
            # In the new epoch the next call's token is judged, also where this call fails.
            await self._databases.read_all()
        if checked.failure is not None:
            raise checked.failure
        if self._remembering and generation == self._generation and seen.epoch == checked.epoch:
            self._add(position)
        return database if checked.epoch == database.epoch else await self._databases.find(database.name)

    async def _with_session(self, work: Callable[[AsyncSession], Awaitable[_T]], /) -> _T:
        async with self._turns.turn(current_subject()):
            return await self._source.again(lambda session: work(session.conn))

    async def _with_claiming(self, work: Callable[[AsyncSession], Awaitable[_T]], /) -> _T:
        return await self._claiming.again(lambda session: work(session.conn))
