"""The state of each database that the workers of a process share."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.loop.pace import Pace


class Unreached(NamedTuple):
    """A database with which there is no session: how often one was tried to be opened, and why there is none."""

    tries: int
    why: str


@dataclass(slots=True)
class Known:
    """By the database's number. One worker at most is on a database at a time (``wakeups``): it keeps its state here
    for the next one. ``refused_since``: since when Postgres refuses every group of a database, by the monotonic
    clock. ``unreached``: those with which no session can be had. ``seal_key``: as in ``Cache``."""

    seal_key: Callable[[int], bytes] | None = None
    caches: dict[int, Cache] = field(default_factory=dict)
    paces: dict[int, Pace] = field(default_factory=dict)
    refused_since: dict[int, float] = field(default_factory=dict)
    unreached: dict[int, Unreached] = field(default_factory=dict)

    def cache(self, database_id: int) -> Cache:
        """The cache of a database; an empty one the first time."""
        return self.caches.setdefault(database_id, Cache(self.seal_key, careful=True))

    def why_unreached(self) -> str | None:
        """Why there is no session with some database; None where there is one with each that had work."""
        return next((one.why for one in list(self.unreached.values())), None)

    def unwatched(self, numbers: Collection[int], *, after: int, most: int) -> list[int]:
        """Databases of ``numbers`` whose tables no event trigger watches, as far as is known: at most ``most``, those
        that come next behind ``after``, where their numbers end at the first ones again."""
        found = [n for n in numbers if (cache := self.caches.get(n)) is None or not cache.watched]
        return sorted(found, key=lambda n: (n <= after, n))[:most]
