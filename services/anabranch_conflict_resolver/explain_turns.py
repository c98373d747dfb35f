"""Turns of dry runs: one at a time in a process, in a thread of their own.

Each principal waits in its own line of two at most, so that one that asks without end delays itself. After a dry run
nothing runs for as long as it took, up to ``REST_S``: so groups that meet rows which dry runs lock find them free at
least half of the time.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from anabranch.runtime.calls.fair_turns import FairTurns
from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2

T = TypeVar("T")
WAIT_S = 4.0
"""How long a dry run waits for its turn."""
MOST_OF_PRINCIPAL = 2
MOST = 64
REST_S = 1.0


class Turns:
    """Used in one event loop. ``close`` last."""

    def __init__(self) -> None:
        self._turns = FairTurns(1)
        self._of: Counter[str] = Counter()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="dry-run")

    async def run(self, principal: str, work: Callable[[], T]) -> T:
        """Do the work in its turn, to its end: also where its caller is gone meanwhile.

        Raises:
            CallError: OVERLOADED.
        """
        if self._of[principal] >= MOST_OF_PRINCIPAL or self._of.total() >= MOST:
            raise _busy("this principal's, or many others', dry runs are under way")
        self._of[principal] += 1
        try:
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._turns.take(principal)
            except TimeoutError:
                raise _busy("other dry runs take long") from None
            # From here on the turn ends with the work, and not with its caller.
            return await asyncio.shield(asyncio.ensure_future(self._do(principal, work)))
        finally:
            self._of[principal] -= 1
            if not self._of[principal]:
                del self._of[principal]

    async def _do(self, principal: str, work: Callable[[], T]) -> T:
        loop, started = asyncio.get_running_loop(), time.monotonic()
        try:
            return await loop.run_in_executor(self._thread, work)
        finally:
            loop.call_later(min(time.monotonic() - started, REST_S), self._turns.give_back, principal)

    def close(self) -> None:
        """Wait for the end of the one that runs."""
        self._thread.shutdown()


def _busy(why: str) -> CallError:
    return CallError(errors_pb2.REASON_OVERLOADED, f"{why}: ask again in a second", retry_after_ms="1000")
