"""The janitor's parts put together: the loop, and sweeps that are asked for. One sweep at a time in a process; which
process sweeps is settled in Postgres."""

from __future__ import annotations

import asyncio
import threading

import structlog

from anabranch.clock import Clock
from anabranch.merge.retention import Hold
from anabranch.runtime import metrics
from anabranch.store.session.availability import is_unavailable
from anabranch_retention_janitor.config import JanitorSettings
from anabranch_retention_janitor.sweep import ClockError, SweepMemory, Swept, run_once

_log = structlog.get_logger()


class Janitor:
    """``run`` beside the calls, ``close`` last."""

    def __init__(self, settings: JanitorSettings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.last_sweep_ms = 0
        self._memory = SweepMemory(settings)
        self._turn = asyncio.Lock()
        self._stopping = threading.Event()

    async def sweep(self, name: str | None = None) -> list[Swept] | None:
        """Do one sweep of all databases, or of one. None where another janitor is sweeping.

        Raises:
            ClockError: this machine's clock is far ahead.
            psycopg.Error: Postgres is not available.
            StoppedError: this process is about to end.
        """
        async with self._turn:
            now_ms = self.clock.now_ms()
            swept = await asyncio.to_thread(run_once, self._memory, now_ms, self._stopping, name)
            if swept is None:
                metrics.count("anabranch_sweeps", outcome="another")
                return None
            self.last_sweep_ms = self.clock.now_ms()
            for one in swept:
                _publish(one, now_ms)
            metrics.count("anabranch_sweeps", outcome="unfinished" if any(s.unfinished for s in swept) else "done")
            return swept

    async def run(self) -> None:
        """Sweep again and again, until it is cancelled."""
        try:
            while True:
                await self._sweep_all()
                await asyncio.sleep(self.settings.sweep_interval_ms / 1000)
        finally:
            # A sweep that is under way in its thread ends after its step.
            self._stopping.set()

    async def _sweep_all(self) -> None:
        try:
            await self.sweep()
        except ClockError as error:
            metrics.count("anabranch_sweeps", outcome="failed")
            _log.error("no sweep", detail=error)
        except Exception as error:
            if not is_unavailable(error):
                raise
            metrics.count("anabranch_sweeps", outcome="failed")
            _log.warning("a sweep ended early", error=type(error).__name__, detail=error)

    async def close(self) -> None:
        """Have a sweep that was asked for end after its step."""
        self._stopping.set()


def _publish(swept: Swept, now_ms: int) -> None:
    removed = {what: rows for what, rows in swept.removed.items() if rows}
    for what, rows in swept.removed.items():
        # Also where there was nothing: a rate needs a beginning.
        metrics.count("anabranch_retention_removed", rows, database=swept.name, what=what)
    metrics.gauge("anabranch_floor_age", max(0, now_ms - swept.floor) / 1000 if swept.floor else 0, database=swept.name)
    broken = any(bound.hold is Hold.PROOF for bound in swept.bounds)
    metrics.gauge("anabranch_proof_broken", int(broken), database=swept.name)
    if removed or swept.floor != swept.floor_before:
        _log.info("swept", database=swept.name, floor=swept.floor, unfinished=swept.unfinished, **removed)
