"""Reads all databases at intervals, for the metrics: nodes, epochs, the holds of the floor, and facts that matter most
where the responsible service does not run: how far the compactor is behind, what waits for the resolver, schema changes
too, and which tables are not synced. Every janitor does so, whichever of them sweeps."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

import structlog

from anabranch.clock import Clock
from anabranch.merge.retention import Hold, plan
from anabranch.runtime import metrics
from anabranch.store.capture.backlog import CapturedBacklog, Moments, captured_backlogs
from anabranch.store.catalog.census import (
    WaitingBatches,
    count_dead_letters,
    count_epochs,
    count_nodes,
    count_unsynced,
    count_waiting,
)
from anabranch.store.ddl.backlog import MarkerMoments, SchemaBacklog, schema_backlogs
from anabranch.store.retention import floor
from anabranch.store.session.availability import is_unavailable
from anabranch_retention_janitor.config import JanitorSettings
from anabranch_retention_janitor.sweep import open_session

_log = structlog.get_logger()
_COUNT_AT_MOST = 1_000_000


@dataclass(frozen=True, slots=True)
class Counted:
    """The numbers found. ``nodes`` by database and time of the last call, ``bounds``, in milliseconds, by database and
    hold, the others by database; ``behind`` only where the log is compacted, in milliseconds."""

    nodes: dict[tuple[str, str], int]
    epochs: dict[str, int]
    waiting: dict[str, WaitingBatches]
    captured: list[CapturedBacklog]
    unsynced: dict[tuple[str, str], int]
    dead_letters: dict[tuple[str, str], int]
    now_ms: int
    bounds: dict[tuple[str, str], int]
    behind: dict[str, int]
    schema: list[SchemaBacklog] = field(default_factory=list)


def count(
    settings: JanitorSettings,
    now_ms: int,
    moments: Moments | None = None,
    marker_moments: MarkerMoments | None = None,
) -> Counted:
    """Look at all databases. ``moments`` and ``marker_moments`` are kept from look to look. Raises psycopg.Error."""
    bounds: dict[tuple[str, str], int] = {}
    behind: dict[str, int] = {}
    with open_session(settings, "census") as conn:
        kept = floor.databases(conn)
        names = [one.name for one in kept]
        for one in kept:
            facts, _ = floor.read_facts(conn, one, now_ms)
            for bound in plan(facts).bounds if facts.head else ():
                bounds[one.name, bound.hold.name.lower()] = max(0, now_ms - bound.position)
                if bound.hold is Hold.COMPACTION:
                    behind[one.name] = max(0, facts.head - bound.position)
        return Counted(
            nodes=count_nodes(conn, names, now_ms),
            epochs=count_epochs(conn, names),
            waiting=count_waiting(conn, names),
            captured=captured_backlogs(conn, {} if moments is None else moments, time.monotonic(), _COUNT_AT_MOST),
            unsynced=count_unsynced(conn, names),
            dead_letters=count_dead_letters(conn, names),
            now_ms=now_ms,
            bounds=bounds,
            behind=behind,
            schema=schema_backlogs(conn, {} if marker_moments is None else marker_moments, time.monotonic()),
        )


def tell(counted: Counted) -> None:
    """Put it into the metrics."""
    metrics.gauges("anabranch_nodes", {(name, seen): number for (name, seen), number in counted.nodes.items()})
    metrics.gauges("anabranch_epochs_ended", {(name,): number for name, number in counted.epochs.items()})
    waiting = counted.waiting
    metrics.gauges("anabranch_inbox_backlog", {(name,): one.ready for name, one in waiting.items()})
    metrics.gauges("anabranch_inbox_parked", {(name,): one.parked for name, one in waiting.items()})
    ages = {name: 0 if one.oldest_ms is None else counted.now_ms - one.oldest_ms for name, one in waiting.items()}
    metrics.gauges("anabranch_inbox_age", {(name,): max(0, ms) / 1000 for name, ms in ages.items()})
    metrics.gauges("anabranch_captured_backlog", {(one.name,): one.changes for one in counted.captured})
    metrics.gauges("anabranch_captured_age", {(one.name,): one.age_s for one in counted.captured})
    metrics.gauges("anabranch_schema_version", {(one.name,): one.version for one in counted.schema})
    metrics.gauges("anabranch_schema_changes_waiting", {(one.name,): one.markers for one in counted.schema})
    metrics.gauges("anabranch_schema_change_age", {(one.name,): one.age_s for one in counted.schema})
    metrics.gauges("anabranch_tables_not_synced", {(name, why): one for (name, why), one in counted.unsynced.items()})
    letters = counted.dead_letters.items()
    metrics.gauges("anabranch_device_dead_letters", {(name, reason): one for (name, reason), one in letters})
    metrics.gauges("anabranch_floor_bound_age", {labels: ms / 1000 for labels, ms in counted.bounds.items()})
    metrics.gauges("anabranch_compaction_lag", {(name,): ms / 1000 for name, ms in counted.behind.items()})


class Census:
    """``run`` beside the sweeps."""

    def __init__(self, settings: JanitorSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._moments: Moments = {}
        self._marker_moments: MarkerMoments = {}

    async def run(self) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            try:
                now_ms, moments = self._clock.now_ms(), (self._moments, self._marker_moments)
                tell(await asyncio.to_thread(count, self._settings, now_ms, *moments))
            except Exception as error:
                if not is_unavailable(error):
                    raise
                _log.warning("a census failed", error=type(error).__name__, detail=error)
            await asyncio.sleep(self._settings.census_interval_ms / 1000)
