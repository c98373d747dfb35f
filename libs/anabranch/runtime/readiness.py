"""Asks whether Postgres answers, in a session that does nothing else.

Calls may hold every session of the pool, or wait for one: that says nothing about Postgres. So a *lookout* has a
session of its own. Its states:

* *without a session*: each look opens one, or waits for the one that is being opened.
* *asked*: a look that has no answer yet goes on; a caller that asks meanwhile learns that there is none in time.
* *lost*: its session broke, or was silent for ``SILENT_MS``. A new one shows the cause: another server (its start was
  at another moment) has taken the place of the one that the older sessions are with, so they are given up; or it is the
  same one, which does not answer on old connections, so they are doubted.

The pool has recovered once it gives a session again: only then does a service that was not ready become ready.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog

from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import CONNECT_S, AsyncPool, AsyncSession, SessionOptions, aconnect
from anabranch.store.session.patience import doubt_older, give_up_older
from anabranch.store.session.readiness import instance, not_ready
from anabranch.store.session.told import told

SILENT_MS = 4_000
_log = structlog.get_logger()


class Lookout:
    """Used by one task. ``close`` last."""

    def __init__(self, url: str, name: str, pool: AsyncPool, known: Sequence[str]) -> None:
        self._url = url
        self._name = name
        self._pool = pool
        self._known = known
        self._session: AsyncSession | None = None
        self._instance: str | None = None
        self._looking: asyncio.Task[str | None] | None = None
        self._pooled = False
        self._why: str | None = None

    async def objection(self, timeout_s: float) -> str | None:
        """Return why the database is not available, or why its schema does not fit; None where all is well.

        Raises:
            Exception: a fault of this program.
        """
        self._why = await self._objection(timeout_s)
        return self._why

    async def _objection(self, timeout_s: float) -> str | None:
        if self._looking is None:
            self._looking = asyncio.create_task(self._look(), name="lookout")
        done, _ = await asyncio.wait({self._looking}, timeout=timeout_s)
        if not done:
            self._pooled = False
            # As far as is known, an earlier objection still holds.
            return self._why or "the database does not answer in time"
        looked, self._looking = self._looking, None
        try:
            objection = looked.result()
        except Exception as error:
            self._pooled = False
            if is_unavailable(error):
                return f"the database is not available: {told(error)}"
            raise
        if objection is None and not self._pooled:
            objection = await self._ask_pool(timeout_s)
            self._pooled = objection is None
        return objection

    async def close(self) -> None:
        """End its look and its session."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking}, timeout=1.0)
        if self._session is not None:
            await self._session.close()

    async def _look(self) -> str | None:
        if self._session is None or self._session.closed:
            self._session = await self._open()
        return await not_ready(self._session, self._known)

    async def _open(self) -> AsyncSession:
        began_s = time.monotonic()
        options = SessionOptions(statement_timeout_ms=SILENT_MS, silence_ms=SILENT_MS, connect_timeout_s=CONNECT_S)
        conn = await aconnect(self._url, application_name=self._name, autocommit=True, options=options)
        found = await instance(conn)
        if self._instance is not None:
            if found != self._instance:
                _log.warning("another server, or the same one started anew, has taken the place of Postgres")
                give_up_older(began_s, "another server has taken the place of the one that this session was with")
            else:
                doubt_older(began_s)
        self._instance = found
        return conn

    async def _ask_pool(self, timeout_s: float) -> str | None:
        try:
            async with self._pool.connection(timeout_s):
                return None
        except Exception as error:
            if is_unavailable(error):
                return f"the pool has no session: {told(error)}"
            raise
