"""The peak memory of a program and everything that it started, sampled while it runs.

Pages that several processes share are counted once, by Linux's proportional set size: Spark's workers are
forked from one process, and have most of what they hold in common.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

_PAUSE_S = 0.2
_MIB = 2**20


@dataclass(slots=True)
class Peak:
    """The most that was seen, in bytes: of all processes together, of the one Java process, of all others together.
    Zero until the program has begun, and no longer changed once the block that watches has ended."""

    whole: int = 0
    java: int = 0
    others: int = 0

    def as_mib(self) -> dict[str, int]:
        """For a bench's details."""
        return {"all": self.whole // _MIB, "java": self.java // _MIB, "python": self.others // _MIB}


def _look(peak: Peak, module: str) -> None:
    java = others = 0
    for child in psutil.Process().children():
        try:
            if module not in child.cmdline():
                continue
            family = [child, *child.children(recursive=True)]
        except psutil.Error:
            continue  # It has just ended.
        for process in family:
            try:
                held, is_java = int(process.memory_full_info().pss), process.name() == "java"
            except (psutil.Error, OSError):
                continue
            if is_java:
                java += held
            else:
                others += held
    peak.whole = max(peak.whole, java + others)
    peak.java, peak.others = max(peak.java, java), max(peak.others, others)


@contextmanager
def peak_of(module: str) -> Iterator[Peak]:
    """The peak memory of ``python -m module``, which the block starts, and of everything that it starts. It is sampled
    several times a second, so that a shorter peak may be missed."""
    peak, ended = Peak(), threading.Event()

    def watch() -> None:
        while not ended.wait(_PAUSE_S):
            _look(peak, module)

    watcher = threading.Thread(target=watch, name="anabranch-bench-memory", daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()
