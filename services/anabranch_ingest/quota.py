"""Limits what is under way at once: batches of one principal that wait for a verdict, and bytes in this process.

Counting the inbox at every call would cost more than the call. So a count is taken as an allowance: as many batches as
the count left free may come before it is taken again. A call takes its batches from the allowance before they are
appended; until it is settled they are *under way*, and the next count, which may or may not see them, takes them off.
So in one process the limit holds whatever comes at once: what waits, what is under way and what is left are never more.

Several ingest processes each count for themselves. One sees what the others have appended when it counts, and neither
what they have under way nor what is left to them, a quarter of the limit at most. So n processes may let in n times the
limit if they all start at one moment from nothing, and never more; where they share a principal's calls evenly, about
``limit * (1 + (n - 1) / 4)``. To hold it exactly would take a lock or a count at every call.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict

from anabranch.runtime.errors import CallError
from anabranch.store.inbox.append import count_waiting
from anabranch.v1 import errors_pb2
from anabranch_ingest.sessions import SessionSource

PRINCIPALS = 10_000
"""Principals whose allowance is remembered; a principal that is forgotten is counted anew."""
_SHARE = 4
"""An allowance is at most this part of the limit, so that a count is not trusted for ever."""


class Quota:
    """At most ``limit`` batches of a principal wait in a database."""

    def __init__(self, source: SessionSource, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._left: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._under_way: dict[tuple[int, str], int] = {}
        # One count at a time: they share a session, and a principal's calls must not each count the same room.
        self._turn = asyncio.Lock()

    async def take(self, database_id: int, principal: str, batches: int) -> None:
        """Let so many batches in: they are under way until ``settle``.

        Raises:
            CallError: OVERLOADED.
            psycopg.Error: they can't be counted.
        """
        key = (database_id, principal)
        if self._left.get(key, 0) < batches:
            async with self._turn:
                # An earlier count may have left enough.
                if self._left.get(key, 0) < batches:
                    await self._count(key, batches)
        self._keep(key, self._left[key] - batches)
        self._under_way[key] = self._under_way.get(key, 0) + batches

    def settle(self, database_id: int, principal: str, batches: int, appended: int) -> None:
        """So many batches are no longer under way; those that were not ``appended`` are given back."""
        key = (database_id, principal)
        under_way = self._under_way.pop(key) - batches
        if under_way:
            self._under_way[key] = under_way
        if appended < batches:
            self._keep(key, self._left.get(key, 0) + batches - appended)

    async def _count(self, key: tuple[int, str], batches: int) -> None:
        # No call takes from the old allowance while the new one is counted. Batches that are settled meanwhile may or
        # may not be in the count: they are subtracted, and at worst the next count comes sooner.
        self._left.pop(key, None)
        under_way = self._under_way.get(key, 0)
        counts = await self._source.again(lambda session: count_waiting(session, [key], self._limit))
        waiting = counts.get(key, 0)
        free = self._limit - waiting - under_way
        self._keep(key, min(max(free, 0), max(batches, self._limit // _SHARE)))
        if free < batches:
            raise CallError(
                errors_pb2.REASON_OVERLOADED,
                f"{waiting} batches of this principal wait for their verdicts, {under_way} are being taken in, and at "
                f"most {self._limit} may be: send again when some have their verdicts",
                retry_after_ms="1000",
            )

    def _keep(self, key: tuple[int, str], left: int) -> None:
        self._left[key] = left
        self._left.move_to_end(key)
        if len(self._left) > PRINCIPALS:
            self._left.popitem(last=False)


class HeldBytes:
    """Bytes of requests and of payloads in parts that this process holds; at most ``limit`` in all."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.held = 0

    def take(self, size: int) -> None:
        """Hold so many bytes more; one request or part in any case.

        Raises:
            CallError: OVERLOADED.
        """
        if self.held and self.held + size > self._limit:
            raise CallError(
                errors_pb2.REASON_OVERLOADED,
                "the server holds as many bytes as it may: send again in a second",
                retry_after_ms="1000",
            )
        self.held += size

    def give_back(self, size: int) -> None:
        """Hold so many bytes less."""
        self.held -= size


class HeldParts:
    """Bytes of unfinished payloads in parts, which are part of ``memory``: at most ``most`` of one principal, and half
    of the memory in all, so that whole requests have room however many payloads stay unfinished."""

    def __init__(self, memory: HeldBytes, limit: int, most: int) -> None:
        self._memory = memory
        self._limit = limit // 2
        self._most = most
        self._of: Counter[str] = Counter()
        self._held = 0

    def hold(self, principal: str, before: int, after: int) -> None:
        """A stream of the principal holds ``after`` bytes in place of ``before``; one payload in any case.

        Raises:
            CallError: OVERLOADED.
        """
        more = after - before
        if more > 0:
            others = self._of[principal] - before
            if others and others + after > self._most:
                raise _too_many_parts(f"unfinished payloads of this principal hold {others} bytes, of {self._most}")
            others = self._held - before
            if others and others + after > self._limit:
                raise _too_many_parts(f"unfinished payloads hold {others} bytes, of {self._limit}")
            self._memory.take(more)
        else:
            self._memory.give_back(-more)
        self._held += more
        self._of[principal] += more
        if not self._of[principal]:
            del self._of[principal]


def _too_many_parts(text: str) -> CallError:
    return CallError(
        errors_pb2.REASON_OVERLOADED, f"{text}: finish those first, or send again in a second", retry_after_ms="1000"
    )
