"""Limits what is under way at once: one principal's batches without a verdict, and their bytes; bytes in this process.

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

import time
from collections import Counter, OrderedDict
from typing import NamedTuple

from anabranch.runtime.calls.fair_turns import FairTurns
from anabranch.runtime.errors import CallError
from anabranch.store.inbox.append import NO_LOAD, Load, count_waiting
from anabranch.v1 import errors_pb2
from anabranch_ingest.sessions import SessionSource

PRINCIPALS = 10_000
"""Principals whose allowance is remembered; a principal that is forgotten is counted anew."""
_SHARE = 4
"""An allowance is at most this part of the limit, so that a count is not trusted for ever."""
Key = tuple[int, str]
"""Database id and principal."""


class _Refused(NamedTuple):
    """A count that left too little: when it began, what was free, and what it found."""

    began_s: float
    free: Load
    waiting: Load
    under_way: Load


class Quota:
    """At most ``limit`` batches and bytes of a principal wait in a database; one call's bytes in any case."""

    def __init__(self, source: SessionSource, limit: Load) -> None:
        self._source = source
        self._limit = limit
        self._left: OrderedDict[Key, Load] = OrderedDict()
        self._under_way: dict[Key, Load] = {}
        self._refused: dict[Key, _Refused] = {}
        # One count at a time: they share a session, and a principal's calls must not each count the same room. In turn
        # over principals: those of one that is at its limit count again and again.
        self._turns = FairTurns(1)

    async def take(self, database_id: int, principal: str, load: Load) -> None:
        """Let so many batches in: they are under way until ``settle``.

        Raises:
            CallError: OVERLOADED.
            psycopg.Error: they can't be counted.
        """
        key = (database_id, principal)
        if not self._left.get(key, NO_LOAD).holds(load):
            came_s = time.monotonic()
            async with self._turns.turn(principal):
                # An earlier count may have left enough.
                if not self._left.get(key, NO_LOAD).holds(load):
                    await self._count(key, load, came_s)
        self._keep(key, self._left[key].less(load))
        self._under_way[key] = self._under_way.get(key, NO_LOAD).more(load)

    def settle(self, database_id: int, principal: str, load: Load, appended: Load) -> None:
        """So many batches are no longer under way; those that were not ``appended`` are given back."""
        key = (database_id, principal)
        under_way = self._under_way.pop(key).less(load)
        if under_way.batches:
            self._under_way[key] = under_way
        if appended.batches < load.batches:
            self._keep(key, self._left.get(key, NO_LOAD).more(load.less(appended)))

    async def _count(self, key: Key, load: Load, came_s: float) -> None:
        refused = self._refused.get(key)
        if refused is not None and refused.began_s >= came_s and not refused.free.holds(load):
            # Of many calls that wait for one answer, one asks.
            raise self._refusal(refused)
        # No call takes from the old allowance while the new one is counted. Batches that are settled meanwhile may or
        # may not be in the count: they are subtracted, and at worst the next count comes sooner.
        self._left.pop(key, None)
        under_way, began_s = self._under_way.get(key, NO_LOAD), time.monotonic()
        counts = await self._source.again(lambda session: count_waiting(session, [key], self._limit.batches))
        waiting, limit = counts.get(key, NO_LOAD), self._limit
        free = limit.less(waiting).less(under_way)
        if not waiting.batches and not under_way.batches:
            free = Load(free.batches, max(free.size, load.size))
        self._keep(
            key,
            Load(
                min(max(free.batches, 0), max(load.batches, limit.batches // _SHARE)),
                min(max(free.size, 0), max(load.size, limit.size // _SHARE)),
            ),
        )
        self._refused.pop(key, None)
        if not free.holds(load):
            if len(self._refused) >= PRINCIPALS:
                self._refused.clear()
            self._refused[key] = _Refused(began_s, free, waiting, under_way)
            raise self._refusal(self._refused[key])

    def _refusal(self, refused: _Refused) -> CallError:
        waiting, under_way = refused.waiting, refused.under_way
        return CallError(
            errors_pb2.REASON_OVERLOADED,
            f"{waiting.batches} batches of this principal ({waiting.size} bytes) wait for their verdicts, "
            f"{under_way.batches} ({under_way.size} bytes) are being taken in, and at most {self._limit.batches} "
            f"({self._limit.size} bytes) may be: send again when some have their verdicts",
            retry_after_ms="1000",
        )

    def _keep(self, key: Key, left: Load) -> None:
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
