"""Reads again when something is not known yet: one read for all callers that ask at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


class LookAgain:
    """``read_all`` reads everything anew and calls ``has_read``; asked by callers it does so at most once every
    ``pause_s`` seconds. Everything happens in one event loop."""

    def __init__(self, read_all: Callable[[], Awaitable[None]], pause_s: float) -> None:
        self._read_all = read_all
        self._pause_s = pause_s
        self._read_at = -pause_s
        self._reading: asyncio.Task[None] | None = None

    def has_read(self) -> None:
        """Note that everything was read just now, whether or not a caller here asked for it."""
        self._read_at = time.monotonic()

    async def until(self, known: Callable[[], T | None]) -> T | None:
        """Return the result of ``known``, if need be after reading again; None where it is not there.

        Raises:
            Exception: what ``read_all`` raised.
        """
        found = known()
        for _ in range(2):
            # A look that was under way already may have begun before the thing was made; the second one did not.
            if found is None:
                if self._reading is None or self._reading.done():
                    self._reading = asyncio.create_task(self._after_pause())
                await asyncio.shield(self._reading)
                found = known()
        return found

    async def _after_pause(self) -> None:
        await asyncio.sleep(max(0.0, self._read_at + self._pause_s - time.monotonic()))
        await self._read_all()
