"""The databases as calls need them: read from the catalog, kept in memory, read anew when they may have changed."""

from __future__ import annotations

import asyncio

import structlog

from anabranch.runtime.errors import CallError
from anabranch.runtime.look_again import LookAgain
from anabranch.store.catalog.databases import Database, UnknownDatabaseError, aload_database, aload_databases
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncPool
from anabranch.v1 import errors_pb2

_PAUSE_S = 0.2
"""Between two reads that calls for unknown names may cause."""
_NEXT_S = 0.05
"""Between two reads that notifications cause: anybody may send any number of them."""
_RETRY_S = 0.5
_log = structlog.get_logger()


class ServedDatabases:
    """All databases. The kept state may be a moment old; a state that must be exact is read together with its rows."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool
        self._by_name: dict[str, Database] = {}
        self._by_id: dict[int, Database] = {}
        self._stale = asyncio.Event()
        self._again = LookAgain(self.read_all, _PAUSE_S)

    async def read_all(self) -> None:
        """Read all anew.

        Raises:
            psycopg.Error: they can't be read.
        """
        async with self._pool.connection() as conn:
            found = await aload_databases(conn)
        self._by_name = found
        self._by_id = {database.id: database for database in found.values()}
        self._again.has_read()

    async def find(self, name: str) -> Database:
        """The database of that name; one that was made a moment ago as well.

        Raises:
            CallError: UNKNOWN_DATABASE.
            psycopg.Error: they can't be read.
        """
        found = await self._again.until(lambda: self._by_name.get(name))
        if found is None:
            raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {name!r}")
        return found

    async def read(self, name: str) -> Database:
        """The database of that name as it is now, read anew. Raises as ``find``."""
        try:
            async with self._pool.connection() as conn:
                database = await aload_database(conn, name)
        except UnknownDatabaseError:
            raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {name!r}") from None
        known = self._by_id.get(database.id)
        if known is None or known.schema_version != database.schema_version or known.epoch != database.epoch:
            self.look()
        return database

    def current(self, database: Database) -> Database:
        """The same database as it is known now."""
        return self._by_id.get(database.id, database)

    def knows(self, number: int) -> bool:
        """Whether there was a database of that number when they were read."""
        return number in self._by_id

    def look(self) -> None:
        """Have them read soon: something has changed."""
        self._stale.set()

    async def follow(self) -> None:
        """Keep them current, for ever."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self.read_all()
            except Exception as error:
                if not is_unavailable(error):
                    raise
                _log.warning("databases can't be read", error=type(error).__name__, detail=error)
                self._stale.set()
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(_NEXT_S)
