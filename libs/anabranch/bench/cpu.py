"""Wall time and processor time: on a machine that others use, too, processor time says more than wall time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass(slots=True)
class Spent:
    """Seconds by the clock, and seconds of all processors together. Zero until the block that measures has ended."""

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def add(self, other: Spent) -> None:
        """Add another measurement."""
        self.wall_s += other.wall_s
        self.cpu_s += other.cpu_s

    def cpu_us(self, count: int) -> float:
        """Microseconds of processor time for each of ``count``."""
        return round(self.cpu_s / count * 1e6, 1)


def family_cpu_s() -> float:
    """Seconds that this process, those that it started and those that they started have used since their start, the
    ended ones included. A Postgres that another process started is not among them."""
    here = psutil.Process()
    total = 0.0
    for process in [here, *here.children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            # The process has just ended: its time is counted at its parent by now.
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


@contextmanager
def spent() -> Iterator[Spent]:
    """Measure the block's time, in this process and in all that it started."""
    found = Spent()
    cpu, wall = family_cpu_s(), time.perf_counter()
    yield found
    found.wall_s, found.cpu_s = time.perf_counter() - wall, family_cpu_s() - cpu
