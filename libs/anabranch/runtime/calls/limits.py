"""Limits of one principal: how often it may call, how many streams it may have open.

A bucket of tokens per principal fills at a steady rate up to the burst. The buckets used last are kept, at
most ``CAPACITY``; one that is forgotten was either full again or belongs to the longest silent of that many
principals.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2

CAPACITY = 10_000


class RateLimit:
    """Calls of each principal: ``rate_per_s`` in the long run, ``burst`` at once."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        self._rate = rate_per_s
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, subject: str) -> float:
        """Take one token: 0, or, where there is none, the seconds until there is one (and none is taken)."""
        now = time.monotonic()
        tokens, since = self._buckets.get(subject, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        taken = tokens >= 1.0
        self._buckets[subject] = (tokens - 1.0 if taken else tokens, now)
        self._buckets.move_to_end(subject)
        if len(self._buckets) > CAPACITY:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1.0 - tokens) / self._rate

    def take(self, subject: str) -> None:
        """Take one token. Raises CallError OVERLOADED; its metadata ``retry_after_ms`` says when to call again."""
        wait_s = self.wait_s(subject)
        if wait_s:
            raise CallError(
                errors_pb2.REASON_OVERLOADED,
                "this principal calls too often",
                retry_after_ms=str(max(1, round(wait_s * 1000))),
            )
