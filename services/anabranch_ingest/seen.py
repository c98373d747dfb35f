"""Compares the positions that nodes have seen, as their calls present them, with the history before a call goes on.

Nearly every call presents a position that this process has sent in an answer, or has looked up, a moment ago: these are
remembered, and cost no statement. A remembered position holds for as long as the server is the same: a restored one has
ended every session, so that all are forgotten when the session that listens is lost, and without such a session nothing
is remembered.
"""

from __future__ import annotations

from collections import OrderedDict

from anabranch.clock import Clock
from anabranch.runtime.errors import CallError
from anabranch.runtime.rewind import check_seen
from anabranch.store.inbox.heads import DatabaseHead
from anabranch.store.log.history import History
from anabranch.v1 import position_pb2
from anabranch_ingest.databases import Databases
from anabranch_ingest.sessions import SessionSource

KEPT = 50_000
"""Positions that are remembered."""
_Known = tuple[int, str, int, bytes]


class SeenPositions:
    """The positions that nodes of all databases present."""

    def __init__(self, source: SessionSource, databases: Databases, clock: Clock) -> None:
        self._source = source
        self._databases = databases
        self._clock = clock
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
            CallError: HISTORY_REWOUND, INVALID_POSITION, UNKNOWN_DATABASE.
            psycopg.Error: the history can't be read.
        """
        position = (database.id, seen.epoch, seen.server_timestamp_ms, seen.token)
        if not (seen.epoch or seen.server_timestamp_ms or seen.token):
            return database
        if position in self._known and seen.epoch == database.epoch:
            return database
        generation = self._generation
        try:
            history = await self._look(database, seen)
        except CallError:
            # A new epoch may have begun, in which the next call's token is judged.
            await self._databases.read_all()
            raise
        if self._remembering and generation == self._generation and seen.epoch == history.epoch:
            self._add(position)
        if history.epoch != database.epoch:
            await self._databases.read_all()
            return await self._databases.find(database.name)
        return database

    async def _look(self, database: DatabaseHead, seen: position_pb2.Position) -> History:
        return await self._source.again(
            lambda session: check_seen(session.conn, database.id, database.name, seen, self._clock)
        )
