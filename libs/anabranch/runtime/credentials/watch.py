"""Ends the streams whose credentials are no longer good, and keeps the keys that calls are judged by fresh.

States: *at rest*, while no key is cached and nobody has a stream open: there is nothing to look at, and no session; and
*watching*, from the first call on that is judged by a key, or the first stream.

A revoked key is told of by a notification, and looked for every ``POLL_S`` without one: it ends within a second. Looks
have a session of their own, because the pool's may all be in use; while there is none, the pool serves. The
notification comes from the service's own listener (``KeyNews``), where it has one; else this session listens, and
Postgres wakes it for every write's notifications as well.

Any role may notify: looks keep a distance of ``LEAST_S``, and a flood ends this session's listening for ``DEAF_S``,
while looks go on. A stream's expiry needs no look: it has a timer (``calls.streams``), which is only looked after here
in case that the clock was set.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

import structlog

from anabranch.runtime.calls.streams import Streams
from anabranch.runtime.credentials.auth import Authenticator
from anabranch.runtime.errors import CallError
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncSession
from anabranch.store.session.listening import FLOOD, heard, listen_for_keys, open_key_session
from anabranch.v1 import errors_pb2

POLL_S = 0.7
GATHER_S = 0.02
"""Notifications that come within this time lead to one look."""
LEAST_S = 0.2
"""Between two looks, at least, however many notifications come: each look is a query."""
DEAF_S = 60.0
_CLOSE_S = 1.0
_log = structlog.get_logger()


class KeyNews:
    """News of revoked keys, from a service's own listener."""

    def __init__(self) -> None:
        self._come = asyncio.Event()

    def hear(self) -> None:
        """A notification has come, or may have been missed."""
        self._come.set()

    async def wait(self, timeout_s: float) -> None:
        """Wait for one, ``timeout_s`` seconds at most. One that came since the last call counts."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._come.wait()
        except TimeoutError:
            return
        self._come.clear()


class CredentialWatch:
    """Looks at the credentials of ``streams``. ``name`` is its session's in Postgres, which listens where the service
    hears no ``news``."""

    def __init__(
        self, url: str, name: str, authenticator: Authenticator, streams: Streams, news: KeyNews | None = None
    ) -> None:
        self._url = url
        self._name = name
        self._authenticator = authenticator
        self._streams = streams
        self._news = news
        self._wanted = asyncio.Event()
        streams.on_open = authenticator.on_identified = self._wanted.set
        self._session: AsyncSession | None = None
        self._deaf_until_s = 0.0
        self._looked_s = -LEAST_S

    async def run(self) -> None:
        """Look, again and again, while there is something to look at."""
        try:
            while True:
                # The next round judges whoever comes meanwhile.
                self._wanted.clear()
                if self._streams.identities() or self._authenticator.knows_keys():
                    await self._once()
                else:
                    await self._close()
                    await self._wanted.wait()
        finally:
            await self._close()

    async def _close(self) -> None:
        session, self._session = self._session, None
        self._deaf_until_s = 0.0
        if session is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(session.close(), _CLOSE_S)

    async def _once(self) -> None:
        try:
            if self._session is None or self._session.closed:
                self._session = None
                listens = self._news is None
                self._session = await open_key_session(self._url, application_name=self._name, listens=listens)
            else:
                await self._wait(self._session)
            await self._look(self._session)
        except Exception as error:
            if not _passes(error):
                raise
            await self._without_session(error)

    async def _wait(self, session: AsyncSession) -> None:
        if self._news is not None:
            await self._news.wait(POLL_S)
        elif self._deaf_until_s:
            await asyncio.sleep(POLL_S)
            if time.monotonic() >= self._deaf_until_s:
                self._deaf_until_s = 0.0
                await listen_for_keys(session)
        elif await heard(session, POLL_S, GATHER_S) >= FLOOD:
            _log.warning("too many notifications of revoked keys: they are not listened to for a while")
            self._deaf_until_s = time.monotonic() + DEAF_S

    async def _without_session(self, error: Exception) -> None:
        _log.warning("credentials are looked at without a session of their own", detail=error)
        await self._close()
        await asyncio.sleep(POLL_S)
        try:
            await self._look(None)
        except Exception as again:
            if not _passes(again):
                raise
            _log.warning("credentials can't be looked at now", detail=again)

    async def _look(self, session: AsyncSession | None) -> None:
        # A notification that comes meanwhile waits in the session, and leads to the next look.
        await asyncio.sleep(self._looked_s + LEAST_S - time.monotonic())
        self._looked_s = time.monotonic()
        ended = await self._authenticator.ended(self._streams.identities(), session)
        if ended:
            failure = CallError(errors_pb2.REASON_CREDENTIALS_EXPIRED, "the credentials have expired or were revoked")
            count = self._streams.end_of(ended, failure)
            _log.info("streams ended with their credentials", streams=count)


def _passes(error: Exception) -> bool:
    return isinstance(error, TimeoutError) or is_unavailable(error)
