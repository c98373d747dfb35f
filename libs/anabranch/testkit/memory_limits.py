"""Holds services that tests start as processes to the memory that the chart gives their pods, as a kubelet does.

A service whose processes together are above its limit is killed, with all of them; the test that started it then fails
and says which service, how much, and its limit. What is counted is what is resident. It is looked at a few times a
second; the peak that Linux remembers of the service's own process shows what came and went between two looks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import yaml

from anabranch.errors import AnabranchError
from anabranch.testkit.process_memory import KNOWN, descendants, has_bytes, peak_bytes, share_bytes

LOOK_S = 0.25
TREE_S = 2.0
"""How often the children of services are looked for; that takes a look at all processes of the machine."""
SURE_S = 0.05
"""A process that has just been forked shares all memory with its parent, and is counted twice for a moment."""
MIB = 1024 * 1024
_VALUES = Path(__file__).resolve().parents[3] / "helm" / "anabranch" / "values.yaml"
_UNITS = {"Ki": 1024, "Mi": MIB, "Gi": 1024 * MIB}


class MemoryLimitError(AnabranchError):
    """A service was killed because it was above its limit."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A service that was killed, the bytes that it had, and those that it may have."""

    name: str
    bytes: int
    limit: int

    def __str__(self) -> str:
        return (
            f"{self.name} had {self.bytes / MIB:.0f} MiB of memory and was killed; "
            f"its limit is {self.limit / MIB:.0f} MiB"
        )


class Kept(Protocol):
    """A process that is kept, as ``runtime.children.Child`` is."""

    @property
    def pid(self) -> int | None:
        """Its process id; None while there is no process."""

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal."""


def chart_limits(names: Iterable[str]) -> dict[str, int]:
    """The chart's limits in bytes, by name: of services, of such with a number at their end, and of the compactor. None
    where the chart is not beside this file, as in an installed wheel."""
    if not _VALUES.exists():
        return {}
    values = yaml.safe_load(_VALUES.read_text(encoding="utf-8"))
    return {name: _limit(values, name) for name in names}


def _limit(values: Mapping[str, Any], name: str) -> int:
    first, *more = name.rstrip("0123456789").rstrip("-").split("-")
    block = first + "".join(map(str.capitalize, more))
    if block == "compactor":
        text = values["compactor"]["resources"]["limits"]["memory"]
    else:
        services = values["services"]
        own = services[block].get("resources", {}).get("limits", {}).get("memory")
        text = own or services["defaults"]["resources"]["limits"]["memory"]
    return int(text[:-2]) * _UNITS[text[-2:]]


class MemoryWatch:
    """Watches ``kept`` while its block lasts. ``limits`` may change meanwhile; one who has none is not watched.

    Leaving the block fails with MemoryLimitError where a service was killed, unless ``take`` was called since; where it
    is left by another exception, that one gets a note.
    """

    def __init__(
        self,
        kept: Mapping[str, Kept],
        limits: MutableMapping[str, int],
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
    ) -> None:
        self.limits = limits
        self.greatest: dict[str, int] = {}
        """The most bytes of each, by name, that were seen."""
        self._kept = kept
        self._say = say
        self._excesses: list[Excess] = []
        self._killed: set[int] = set()
        self._trees: Mapping[int, list[int]] = {}
        self._trees_s = -TREE_S
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to watch; where this can't be done, say so."""
        if not KNOWN or not self.limits:
            why = "no chart says what they are" if KNOWN else "this machine does not report a process's memory"
            self._say(f"memory limits are not enforced: {why}")
            return
        self._thread = threading.Thread(target=self._watch, name="memory-limits", daemon=True)
        self._thread.start()

    def stop(self, error: BaseException | None = None) -> None:
        """Look once more, and end. ``error``: what the block is left by.

        Raises:
            MemoryLimitError: a service was killed, and there is no other error.
        """
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join()
        self._thread = None
        self._look()
        if not self._excesses:
            return
        text = "; ".join(map(str, self.take()))
        if error is None:
            raise MemoryLimitError(text)
        error.add_note(text)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(error)

    def take(self) -> list[Excess]:
        """The services that were killed; they don't fail the block any more."""
        taken, self._excesses = self._excesses, []
        return taken

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_S):
            self._look()

    def _look(self) -> None:
        if time.monotonic() - self._trees_s >= TREE_S:
            self._trees, self._trees_s = descendants(), time.monotonic()
        for name, kept in self._kept.items():
            pid, limit = kept.pid, self.limits.get(name)
            if pid is None or limit is None or pid in self._killed:
                continue
            # A process that ends meanwhile has nothing.
            with contextlib.suppress(OSError, LookupError):
                size = self._size(pid, limit)
                if size > limit:
                    time.sleep(SURE_S)
                    size = self._size(pid, limit)
                self.greatest[name] = max(self.greatest.get(name, 0), size)
                if size > limit:
                    self._kill(kept, pid)
                    self._excesses.append(excess := Excess(name, size, limit))
                    self._say(str(excess))

    def _size(self, pid: int, limit: int) -> int:
        """The bytes of a process with all below it; exact where it matters."""
        below = self._trees.get(pid, [])
        total = has_bytes(pid) + sum(_if_there(has_bytes, one) for one in below)
        if below and total > limit:
            # Pages that several of them share were counted several times.
            total = share_bytes(pid) + sum(_if_there(share_bytes, one) for one in below)
        return max(total, peak_bytes(pid))

    def _kill(self, kept: Kept, pid: int) -> None:
        self._killed.add(pid)
        # Found anew: an id of a while ago may be another process's by now.
        for one in descendants().get(pid, []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        kept.send(signal.SIGKILL)


def _if_there(read: Callable[[int], int], pid: int) -> int:
    try:
        return read(pid)
    except (OSError, LookupError):
        return 0
