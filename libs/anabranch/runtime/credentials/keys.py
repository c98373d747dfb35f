"""API keys as a running service knows them.

State: a bounded cache, id -> (key, confirmed, used). An entry answers calls while it was confirmed no longer
than ``TRUST_S`` ago. ``confirm`` reads every cached id again in one statement, when a notification tells of a
revocation and several times in two seconds without one (``watch``): so a revocation is noticed within a second at no
cost to calls; ids that were not used for ``IDLE_S`` are forgotten. Ids that are not cached are looked up together:
calls that come while one look-up is under way share the next one, so that any number of callers with made-up keys hold
one connection at most. A look-up that fails, and not for want of a database, is done again in halves, down to the id
at fault: it fails for its own callers alone.
Everything here runs in one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import structlog

from anabranch.runtime.errors import CallError
from anabranch.store.nodes import api_keys
from anabranch.store.nodes.api_keys import ApiKey
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncPool, AsyncSession
from anabranch.v1 import errors_pb2

CAPACITY = 10_000
WAITING_CAPACITY = 10_000
TRUST_S = 5.0
IDLE_S = 60.0
LOOK_UP_TIMEOUT_S = 3.0
MOST_FAULTS = 16
"""Ids that one look-up finds at fault. With more of them it is not the ids' fault, and all that are left fail."""
_log = structlog.get_logger()


@dataclass(slots=True)
class _Entry:
    key: ApiKey
    confirmed: float
    used: float


class KeyDirectory:
    """Finds keys by id."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._waiting: dict[str, asyncio.Future[ApiKey | None]] = {}
        self._look_up: asyncio.Task[None] | None = None

    def is_empty(self) -> bool:
        """Whether no key is cached."""
        return not self._entries

    def cached(self, key_id: str) -> ApiKey | None:
        """The key, if it is cached and was confirmed lately."""
        entry = self._entries.get(key_id)
        now = time.monotonic()
        if entry is None or now - entry.confirmed > TRUST_S:
            return None
        entry.used = now
        self._entries.move_to_end(key_id)
        return entry.key

    async def find(self, key_id: str) -> ApiKey | None:
        """The key, or None where there is none. Raises CallError UNAVAILABLE or OVERLOADED."""
        key = self.cached(key_id)
        if key is not None:
            return key
        future = self._waiting.get(key_id)
        if future is None:
            if len(self._waiting) >= WAITING_CAPACITY:
                raise CallError(errors_pb2.REASON_OVERLOADED, "too many unknown keys are being looked up")
            future = self._waiting[key_id] = asyncio.get_running_loop().create_future()
        if self._look_up is None or self._look_up.done():
            self._look_up = asyncio.create_task(self._look_up_waiting())
        # Shielded: a caller that gives up must not take the answer from the others.
        return await asyncio.shield(future)

    async def _look_up_waiting(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            left, faults = [list(waiting)], 0
            while left:
                ids = left.pop()
                try:
                    found = await self._read(ids)
                except Exception as error:
                    passes = is_unavailable(error) or isinstance(error, TimeoutError)
                    if len(ids) > 1 and not passes and faults < MOST_FAULTS:
                        middle = len(ids) // 2
                        left += ids[middle:], ids[:middle]
                        continue
                    if not passes:
                        faults += 1
                        _log.error("keys can't be looked up", keys=len(ids), exc_info=error)
                    for key_id in ids:
                        _fail(waiting[key_id], "no database" if passes else "their look-up failed")
                    continue
                for key_id in ids:
                    waiting[key_id].set_result(found.get(key_id))

    async def _read(self, ids: list[str]) -> dict[str, ApiKey]:
        async with asyncio.timeout(LOOK_UP_TIMEOUT_S), self._pool.connection() as conn:
            return self._keep(await api_keys.afind(conn, ids))

    def _keep(self, found: dict[str, ApiKey]) -> dict[str, ApiKey]:
        now = time.monotonic()
        for key_id, key in found.items():
            entry = self._entries.get(key_id)
            if entry is None:
                self._entries[key_id] = _Entry(key, now, now)
            else:
                entry.key, entry.confirmed = key, now
        while len(self._entries) > CAPACITY:
            self._entries.popitem(last=False)
        return found

    async def confirm(self, ids: Iterable[str], conn: AsyncSession | None) -> dict[str, ApiKey]:
        """Read these keys, which are in use, and every cached one again, in one statement of ``conn`` or of the pool;
        gives those that there are. Raises psycopg.Error or TimeoutError where the database does not answer."""
        asked, now = set(ids), time.monotonic()
        for key_id, entry in list(self._entries.items()):
            if key_id in asked:
                entry.used = now
                self._entries.move_to_end(key_id)
            elif now - entry.used > IDLE_S:
                del self._entries[key_id]
        asked.update(self._entries)
        if not asked:
            return {}
        wanted = list(asked)
        found = await self._read(wanted) if conn is None else self._keep(await api_keys.afind(conn, wanted))
        for key_id in asked - found.keys():
            self._entries.pop(key_id, None)
        return found


def _fail(future: asyncio.Future[ApiKey | None], why: str) -> None:
    # One error a future: raised by many callers, one would collect the traceback of each.
    future.set_exception(CallError(errors_pb2.REASON_UNAVAILABLE, f"credentials can't be checked now: {why}"))
    future.exception()  # its callers may all be gone; then nothing else would read it
