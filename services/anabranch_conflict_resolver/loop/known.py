"""The state of each database that the workers of a process share."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.loop.pace import Pace


@dataclass(slots=True)
class Known:
    """By the database's number. One worker at most is on a database at a time (``wakeups``): it keeps its state here
    for the next one. ``refused_since``: since when Postgres refuses every group of a database, by the monotonic
    clock."""

    caches: dict[int, Cache] = field(default_factory=dict)
    paces: dict[int, Pace] = field(default_factory=dict)
    refused_since: dict[int, float] = field(default_factory=dict)
