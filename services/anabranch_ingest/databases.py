"""The databases and their heads, as every call needs them: kept in memory, renewed when a notification names them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from anabranch.runtime.errors import CallError
from anabranch.runtime.look_again import LookAgain
from anabranch.store.inbox.heads import DatabaseHead, read_heads
from anabranch.store.inbox.verdicts import SettledHead
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.listening import Heard
from anabranch.v1 import errors_pb2
from anabranch_ingest import answers
from anabranch_ingest.sessions import SessionSource

_PAUSE_S = 0.05
"""Seconds between two reads of the heads: the settled position in an answer may be so much old."""
_UNKNOWN_PAUSE_S = 0.2
"""Seconds between two reads for a name that is not known."""
_RETRY_S = 0.5
_log = structlog.get_logger()


class Databases:
    """All databases. A head here is never newer than what is committed."""

    def __init__(self, source: SessionSource) -> None:
        self._source = source
        self._by_name: dict[str, DatabaseHead] = {}
        self._by_id: dict[int, DatabaseHead] = {}
        self._states: dict[int, bytes] = {}
        self._stale = asyncio.Event()
        self._announced: dict[int, int] = {}
        self._all = False
        self._again = LookAgain(self.read_all, _UNKNOWN_PAUSE_S)
        self.on_head: Callable[[DatabaseHead], None] = lambda _: None
        """Called with every head that answers bring."""

    async def read_all(self) -> None:
        """Read every database anew.

        Raises:
            psycopg.Error: they can't be read.
        """
        heads = await self._source.again(read_heads)
        states = {head.id: answers.state_head(head) for head in heads}
        for head in heads:
            self.on_head(head)
        self._by_name = {head.name: head for head in heads}
        self._by_id = {head.id: head for head in heads}
        self._states = states
        self._again.has_read()

    async def find(self, name: str) -> DatabaseHead:
        """The database of that name; one that was made a moment ago as well.

        Raises:
            CallError: UNKNOWN_DATABASE.
            psycopg.Error: they can't be read.
        """
        found = await self._again.until(lambda: self._by_name.get(name))
        if found is None:
            raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {name!r}")
        return found

    def by_id(self, number: int) -> DatabaseHead | None:
        """The database of that number, if it is known already."""
        return self._by_id.get(number)

    def state(self, database: DatabaseHead, now_ms: int) -> bytes:
        """A serialized ServerState of the database."""
        return answers.state(self._states.get(database.id) or answers.state_head(database), now_ms)

    def position(self, database: DatabaseHead) -> int:
        """The settled position as far as it is known here, in milliseconds."""
        return self._by_id.get(database.id, database).position

    def advance(self, head: SettledHead) -> None:
        """A database's head was read beside something else."""
        known = self._by_id.get(head.database_id)
        if known is not None and head.position > known.position:
            moved = replace(known, position=head.position, chain=head.chain)
            self._by_id[known.id] = self._by_name[known.name] = moved
            self._states[known.id] = answers.state_head(moved)
            self.on_head(moved)

    async def reach(self, database: DatabaseHead, position: int) -> None:
        """Bring the head to ``position`` at least, which is that of a verdict: an answer's settled position
        is the proof of what its verdicts say, should the server lose them.

        Raises:
            psycopg.Error: it can't be read.
        """
        if self.position(database) < position:
            await self.read_all()

    def hear(self, heard: Heard) -> bool:
        """Take in a notification: its database is looked at soon. False for a group of a database that is not known:
        anybody may send it, and the next poll finds one that is new."""
        known = self._by_id.get(heard.database_id)
        if heard.position == 0:
            self.look()
        elif known is None:
            return False
        elif heard.position > known.position:
            self._announced[heard.database_id] = heard.position
            self._stale.set()
        return True

    def look(self) -> None:
        """Have the databases looked at soon: something may have been missed."""
        self._all = True
        self._stale.set()

    async def follow(self) -> None:
        """Keep the heads current, for ever."""
        while True:
            await self._stale.wait()
            # Verdicts that are looked up bring the heads along: as a rule nothing is left to read after the pause.
            await asyncio.sleep(0 if self._all else _PAUSE_S)
            self._stale.clear()
            announced, self._announced = self._announced, {}
            if not self._all and all(self._is_at(number, position) for number, position in announced.items()):
                continue
            self._all = False
            try:
                await self.read_all()
            except Exception as error:
                if not is_unavailable(error):
                    raise
                _log.warning("heads can't be read", error=type(error).__name__, detail=error)
                self.look()
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(_PAUSE_S)

    def _is_at(self, number: int, position: int) -> bool:
        known = self._by_id.get(number)
        return known is not None and known.position >= position
