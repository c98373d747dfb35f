"""Limits of one principal: how often it may call, how much it may send.

A bucket of tokens per principal fills at a steady rate up to the burst. The buckets used last are kept, at
most ``CAPACITY``; one that is forgotten was either full again or belongs to the longest silent of that many
principals.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2

CAPACITY = 10_000


class RateLimit:
    """Calls of each principal, or what ``too_much`` says: ``rate_per_s`` in the long run, ``burst`` at once."""

    def __init__(self, rate_per_s: float, burst: int, too_much: str = "calls too often") -> None:
        self._rate = rate_per_s
        self._too_much = too_much
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, subject: str, count: int = 1) -> float:
        """Take so many tokens: 0, or, where there are less, the seconds until there are as many (and none is taken).
        More than the burst are taken where that is full, and are missing afterwards."""
        now = time.monotonic()
        tokens, since = self._buckets.get(subject, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        wanted = min(float(count), self._burst)
        taken = tokens >= wanted
        self._buckets[subject] = (tokens - count if taken else tokens, now)
        self._buckets.move_to_end(subject)
        if len(self._buckets) > CAPACITY:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (wanted - tokens) / self._rate

    async def wait(self, subject: str, count: int = 1) -> None:
        """Take so many tokens, as soon as there are as many. For a stream: gRPC's flow control hands the delay on to
        its client. It has no bound of its own: the end of the stream cancels it."""
        while wait_s := self.wait_s(subject, count):
            await asyncio.sleep(wait_s)

    def take(self, subject: str, count: int = 1) -> None:
        """Take tokens. Raises CallError OVERLOADED; its metadata ``retry_after_ms`` says when to call again."""
        wait_s = self.wait_s(subject, count)
        if wait_s:
            raise CallError(
                errors_pb2.REASON_OVERLOADED,
                f"this principal {self._too_much}",
                retry_after_ms=str(max(1, round(wait_s * 1000))),
            )
