"""Wall time and processor time: on a machine that others use, too, processor time says more than wall time."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

OURS, ENDED, DEVICES, POSTGRES = "bench", "ended", "devices", "postgres"
"""Names under which time is counted: this process; the processes that it started and that have ended; those that run
for it as devices (``anabranch.bench.device``); a Postgres, with its backends. A service has the name of its module, and
any other process that of its program."""


@dataclass(slots=True)
class Spent:
    """Seconds by the clock, seconds of all processors together, and these by process. Zero until the block that
    measures has ended."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    by_process: Mapping[str, float] = field(default_factory=dict)

    def add(self, other: Spent) -> None:
        """Add another measurement."""
        self.wall_s += other.wall_s
        self.cpu_s += other.cpu_s
        total = Counter(self.by_process)
        total.update(other.by_process)
        self.by_process = dict(total)

    def cpu_us(self, count: int) -> float:
        """Microseconds of processor time for each of ``count``."""
        return round(self.cpu_s / count * 1e6, 1)

    def cpu_us_by_process(self, count: int) -> dict[str, float]:
        """Microseconds of processor time for each of ``count``, by process, the most first; those without any are left
        out."""
        rounded = {name: round(cpu_s / count * 1e6, 2) for name, cpu_s in self.by_process.items()}
        return dict(sorted(((n, us) for n, us in rounded.items() if us > 0), key=lambda found: -found[1]))

    def details(self, count: int, of: str = "change") -> dict[str, Any]:
        """Both for a bench's details; ``of``: each of what ``count`` counts."""
        return {f"cpu_us_a_{of}": self.cpu_us(count), f"cpu_us_a_{of}_by_process": self.cpu_us_by_process(count)}


def process_name(program: str, arguments: Sequence[str]) -> str:
    """The name under which a process's time is counted."""
    if any("multiprocessing.spawn" in one for one in arguments):
        return DEVICES
    if "-m" in arguments[:-1]:
        return arguments[arguments.index("-m") + 1]
    return POSTGRES if program.startswith(POSTGRES) else program


def family_cpu() -> dict[str, float]:
    """Seconds that this process, those that it started and those that they started have used since their start, by name
    and the ended ones included. A Postgres that another process started is not among them."""
    here = psutil.Process()
    own = here.cpu_times()
    found = defaultdict(float, {OURS: own.user + own.system, ENDED: own.children_user + own.children_system})
    for process in here.children(recursive=True):
        try:
            times = process.cpu_times()
            name = process_name(process.name(), process.cmdline())
        except psutil.NoSuchProcess:
            # The process has just ended: its time is counted at its parent by now.
            continue
        found[name] += times.user + times.system + times.children_user + times.children_system
    return dict(found)


@contextmanager
def spent() -> Iterator[Spent]:
    """Measure the block's time, in this process and in all that it started."""
    found = Spent()
    before, wall = family_cpu(), time.perf_counter()
    yield found
    found.wall_s, after = time.perf_counter() - wall, family_cpu()
    found.by_process = {name: cpu_s - before.get(name, 0.0) for name, cpu_s in after.items()}
    found.cpu_s = sum(after.values()) - sum(before.values())
