"""Logs of services during an attack, read as they grow: one that has become large is put aside, then replaced."""

from __future__ import annotations

import threading
from pathlib import Path

from anabranch.testkit.attack.target import Findings

FAULT_WORDS = ("SERVER_FAULT", "Traceback (most recent call last)", "service failed")
LOOK_S = 2.0


class Logs:
    """The logs in ``folder``."""

    def __init__(self, folder: Path, found: Findings) -> None:
        self._folder = folder
        self._found = found
        self._read: dict[Path, int] = {}

    def follow(self, stop: threading.Event) -> None:
        """Read what comes, until ``stop``."""
        while not stop.wait(LOOK_S):
            self.read()

    def read(self) -> None:
        """Read what has come since; a line that says a fault is a breach."""
        for log in sorted(self._folder.glob("**/*.log")):
            start = self._read.get(log, 0)
            if log.stat().st_size < start:
                # It was put aside since, with lines that were not read yet.
                self._lines(log, log.with_name(f"{log.name}.1"), start)
                start = 0
            self._read[log] = self._lines(log, log, start)

    def _lines(self, log: Path, file: Path, start: int) -> int:
        """Look at the whole lines of a file from a place on; where they end."""
        with file.open("rb") as lines:
            lines.seek(start)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                start += len(line)
                text = line.decode(errors="replace")
                for word in FAULT_WORDS:
                    if word in text:
                        self._found.breach(f"{log.name} has {word}", text.rstrip())
        return start
