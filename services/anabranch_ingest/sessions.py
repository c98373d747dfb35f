"""Sessions that come back: opened when first needed, and again after they broke."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from anabranch.store.ingest_session import Session, open_session


class SessionSource:
    """One session, used by one task at a time."""

    def __init__(self, url: str, statement_timeout_ms: int) -> None:
        self._url = url
        self._statement_timeout_ms = statement_timeout_ms
        self._session: Session | None = None
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[Session]:
        """The session, for a block of statements.

        Raises:
            psycopg.OperationalError: it can't be opened, or breaks in the block.
        """
        async with self._turn:
            if self._session is None or self._session.broken:
                self._session = await open_session(self._url, statement_timeout_ms=self._statement_timeout_ms)
            yield self._session

    async def close(self) -> None:
        """End it."""
        if self._session is not None:
            await self._session.close()
            self._session = None
