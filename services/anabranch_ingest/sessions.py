"""Sessions that come back: opened when first needed, and again after they broke."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from anabranch.store.inbox.session import Session, open_session
from anabranch.store.session.availability import is_unavailable

T = TypeVar("T")


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

    async def again(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Return the result of ``work`` with the session; run it a second time on a new one where the first broke: only
        the use of an idle session shows that its server has gone. ``work`` must be safe to run twice.

        Raises:
            psycopg.OperationalError: it can't be opened, or broke twice.
            Exception: what ``work`` raised.
        """
        try:
            async with self.session() as session:
                return await work(session)
        except Exception as error:
            if not is_unavailable(error):
                raise
        async with self.session() as session:
            return await work(session)

    async def close(self) -> None:
        """End it."""
        if self._session is not None:
            await self._session.close()
            self._session = None
