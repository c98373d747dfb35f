"""What may be under way at once: batches of one principal that wait for a verdict, and bytes in this process.

Counting the inbox at every call would cost more than the call. So a count is taken as an allowance: as many batches as
the count left free may come before it is taken again. Several ingest processes each count for themselves; together they
may let in so many times the limit, and never more.
"""

from __future__ import annotations

from collections import OrderedDict

from anabranch.runtime.errors import Failure
from anabranch.store.inbox.append import count_waiting
from anabranch.v1 import errors_pb2
from anabranch_ingest.sessions import SessionSource

PRINCIPALS = 10_000
"""Principals whose allowance is remembered; who is forgotten is counted anew."""
_SHARE = 4
"""An allowance is at most this part of the limit, so that a count is not trusted for ever."""


class Quota:
    """At most ``limit`` batches of a principal wait in a database."""

    def __init__(self, source: SessionSource, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._left: OrderedDict[tuple[int, str], int] = OrderedDict()

    async def take(self, database_id: int, principal: str, batches: int) -> None:
        """Let so many batches in.

        Raises:
            Failure: OVERLOADED.
            psycopg.Error: they can't be counted.
        """
        key = (database_id, principal)
        left = self._left.get(key, 0)
        if left < batches:
            counts = await self._source.again(lambda session: count_waiting(session, [key], self._limit))
            waiting = counts.get(key, 0)
            free = self._limit - waiting
            if free < batches:
                raise Failure(
                    errors_pb2.REASON_OVERLOADED,
                    f"{waiting} batches of this principal wait for their verdicts, and at most {self._limit} may: "
                    "send again when some have theirs",
                    retry_after_ms="1000",
                )
            left = min(free, max(batches, self._limit // _SHARE))
        self._left[key] = left - batches
        self._left.move_to_end(key)
        if len(self._left) > PRINCIPALS:
            self._left.popitem(last=False)


class Memory:
    """Bytes of requests and of payloads in parts that this process holds; at most ``limit`` in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Hold so many bytes more; one request or part in any case.

        Raises:
            Failure: OVERLOADED.
        """
        if self.held and self.held + size > self._limit:
            raise Failure(
                errors_pb2.REASON_OVERLOADED,
                "the server holds as many bytes as it may: send again in a second",
                retry_after_ms="1000",
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """Hold so many bytes less."""
        self.held -= size
