"""What may go of a database's past: facts in, plan out.

The floor is the largest position that every bound allows; it never moves back, and a bound that says nothing more is
not there. Times and positions are in milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

_DAY_MS = 86_400_000
LEAST_KEPT_DAYS = 30
"""Verdicts and tombstones are kept for so long, whatever the retention window is."""
LEFTOVER_MS = 3_600_000
"""A batch that has its verdict and still stands in the inbox was sent twice; its second stay ends after so long."""


class Hold(IntEnum):
    """What may hold the floor back: numbers of ``anabranch.v1.FloorHold``."""

    WINDOW = 1
    COMPACTION = 2
    NODE = 3
    HEAD = 4
    PROOF = 5


@dataclass(frozen=True, slots=True)
class Slowest:
    """The node that has acknowledged least, among those that were seen within the longest absence."""

    node_id: str
    name: str
    acknowledged: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a database. ``head``: the last group's position, 0 for none. ``runs``: of its epoch's published
    runs that reach beyond the floor, in order, what each proved: (after, upto]. ``compacted_from``: where the
    first run of any epoch began; None where it was never compacted. ``slowest``: None where no node was seen within
    the longest absence."""

    now_ms: int
    floor: int
    head: int
    retention_days: int
    absence_days: int
    compacted_from: int | None
    runs: Sequence[tuple[int, int]]
    slowest: Slowest | None


@dataclass(frozen=True, slots=True)
class Bound:
    """The floor may be at ``position``, and no further. ``detail`` says why, in words."""

    hold: Hold
    position: int
    detail: str


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """``target``: where the floor may be put, at least where it is. ``bounds``: the strictest first. ``kept_since_ms``:
    verdicts and tombstones from before that may go, as far as the log that they belong to has gone.
    ``absent_since_ms``: nodes that were last seen before that may be forgotten, since they hold nothing back any more.
    ``leftover_before_ms``: second stays in the inbox that began before that may end."""

    target: int
    bounds: tuple[Bound, ...]
    kept_since_ms: int
    absent_since_ms: int
    leftover_before_ms: int


def absent_before_ms(now_ms: int, absence_days: int) -> int:
    """Nodes last seen before that don't hold the floor."""
    return now_ms - absence_days * _DAY_MS


def proven_until(floor: int, runs: Iterable[tuple[int, int]]) -> int:
    """How far runs that go on where the one before ended, the first of them at the floor or before, reach."""
    reached = floor
    for after, upto in runs:
        if after > reached:
            break
        reached = max(reached, upto)
    return reached


def plan(facts: Facts) -> RetentionPlan:
    """What may go."""
    window = facts.now_ms - facts.retention_days * _DAY_MS
    bounds = [
        Bound(Hold.WINDOW, window, f"the log is kept for {facts.retention_days} days"),
        Bound(Hold.HEAD, facts.head, "the newest group"),
    ]
    if facts.compacted_from is not None:
        proven = proven_until(facts.floor, facts.runs)
        bounds.append(Bound(Hold.COMPACTION, proven, "the compactor's published runs reach no further"))
    if facts.slowest is not None:
        node = facts.slowest
        who = f"{node.name} ({node.node_id})" if node.name else node.node_id
        detail = f"node {who} was seen within {facts.absence_days} days and has acknowledged no more"
        bounds.append(Bound(Hold.NODE, node.acknowledged, detail))
    bounds.sort(key=lambda bound: (bound.position, bound.hold))
    kept_since_ms = facts.now_ms - max(LEAST_KEPT_DAYS, facts.retention_days) * _DAY_MS
    return RetentionPlan(
        max(facts.floor, bounds[0].position),
        tuple(bounds),
        kept_since_ms,
        min(kept_since_ms, absent_before_ms(facts.now_ms, facts.absence_days)),
        facts.now_ms - LEFTOVER_MS,
    )
