"""Looks at all databases every now and then, for the metrics: nodes, epochs, what holds the floor, and how far the
compactor is behind, which must be known above all where it does not run. Every janitor does so, whoever sweeps."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from anabranch.clock import Clock
from anabranch.merge.retention import Hold, plan
from anabranch.runtime import metrics
from anabranch.store import retention
from anabranch.store.availability import is_unavailable
from anabranch.store.census import count_epochs, count_nodes
from anabranch_retention_janitor.config import JanitorSettings
from anabranch_retention_janitor.sweep import open_session

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Counted:
    """What was found. ``nodes`` by database and time of the last call, ``bounds``, in milliseconds, by database and
    hold, the others by database; ``behind`` only where the log is compacted, in milliseconds."""

    nodes: dict[tuple[str, str], int]
    epochs: dict[str, int]
    bounds: dict[tuple[str, str], int]
    behind: dict[str, int]


def count(settings: JanitorSettings, now_ms: int) -> Counted:
    """Look at all databases. Raises psycopg.Error."""
    bounds: dict[tuple[str, str], int] = {}
    behind: dict[str, int] = {}
    with open_session(settings, "census") as conn:
        kept = retention.databases(conn)
        names = [one.name for one in kept]
        for one in kept:
            facts, _ = retention.read_facts(conn, one, now_ms)
            for bound in plan(facts).bounds if facts.head else ():
                bounds[one.name, bound.hold.name.lower()] = max(0, now_ms - bound.position)
                if bound.hold is Hold.COMPACTION:
                    behind[one.name] = max(0, facts.head - bound.position)
        return Counted(count_nodes(conn, names, now_ms), count_epochs(conn, names), bounds, behind)


def tell(counted: Counted) -> None:
    """Put it into the metrics."""
    metrics.gauges("anabranch_nodes", {(name, seen): number for (name, seen), number in counted.nodes.items()})
    metrics.gauges("anabranch_epochs_ended", {(name,): number for name, number in counted.epochs.items()})
    metrics.gauges("anabranch_floor_bound_age", {labels: ms / 1000 for labels, ms in counted.bounds.items()})
    metrics.gauges("anabranch_compaction_lag", {(name,): ms / 1000 for name, ms in counted.behind.items()})


class Census:
    """``run`` beside the sweeps."""

    def __init__(self, settings: JanitorSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    async def run(self) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            try:
                tell(await asyncio.to_thread(count, self._settings, self._clock.now_ms()))
            except Exception as error:
                if not is_unavailable(error):
                    raise
                _log.warning("a census failed", error=type(error).__name__, detail=str(error))
            await asyncio.sleep(self._settings.census_interval_ms / 1000)
