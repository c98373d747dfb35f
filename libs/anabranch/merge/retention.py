"""The part of a database's past that may be removed: facts in, plan out.

The floor is the largest position that every bound allows; it never moves back, and a bound that no longer applies is
left out. Times and positions are in milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

_DAY_MS = 86_400_000
LEAST_KEPT_DAYS = 30
"""Days for which verdicts and tombstones are kept at least, whatever the retention window is."""
LEFTOVER_MS = 3_600_000
"""A batch with a verdict that is still in the inbox was sent twice; its second stay ends after so many milliseconds."""


class Hold(IntEnum):
    """The causes that may hold the floor back: numbers of ``anabranch.v1.FloorHold``."""

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
    """The facts on a database. ``head``: the last group's position, 0 for none. ``runs``: the stretch (after, upto]
    that each published run of its epoch proved, for runs that reach beyond the floor, in order. ``compacted_from``: the
    position where the first run of any epoch began; None where there was none. ``slowest``: None where no node was seen
    within the longest absence."""

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
    """``target``: the position to which the floor may move, at least its present one. ``bounds``: the strictest first.
    ``kept_since_ms``: verdicts and tombstones older than this time may be removed, as far as their part of the log has
    been. ``absent_since_ms``: nodes last seen before this time may be forgotten, since they no longer hold the floor.
    ``leftover_before_ms``: second stays in the inbox that began before this time may end."""

    target: int
    bounds: tuple[Bound, ...]
    kept_since_ms: int
    absent_since_ms: int
    leftover_before_ms: int


def absent_before_ms(now_ms: int, absence_days: int) -> int:
    """The time in milliseconds since 1970; nodes that were last seen before it don't hold the floor."""
    return now_ms - absence_days * _DAY_MS


def proven_until(floor: int, runs: Iterable[tuple[int, int]]) -> int:
    """The position up to which runs reach without a gap, the first of them from the floor or before."""
    reached = floor
    for after, upto in runs:
        if after > reached:
            break
        reached = max(reached, upto)
    return reached


def plan(facts: Facts) -> RetentionPlan:
    """The plan: the new floor, its bounds, and the times before which other records may be removed."""
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
