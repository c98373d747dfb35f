"""Node and reader processes of the fault run: commands go to their input, answers come from their output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HEAR_S = 200.0


class Node:
    """A process ``python -m MODULE CONFIG``. ``folder`` takes its record, its fault file and its clock's file; each
    start gives it another seed, so that it does not repeat itself."""

    def __init__(self, module: str, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        self.name = name
        self.record = folder / f"{name}.record"
        self.faults = folder / f"{name}.faults"
        self.clock = folder / f"{name}.clock"
        self._module = module
        self._config = {**config, "record": str(self.record)}
        self._starts = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it and wait until it reports that it has begun."""
        self._starts += 1
        config = {**self._config, "seed": self._config["seed"] * 1_000 + self._starts}
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "ANABRANCH_FAULT_FILE": str(self.faults),
                "ANABRANCH_CLOCK_FILE": str(self.clock),
            },
        )
        if self.hear() != "started":
            raise AssertionError(f"{self.name} does not start")

    def tell(self, line: str) -> None:
        """Write a line to its input."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self, timeout_s: float = HEAR_S) -> str:
        """The next line of its output. Raises AssertionError where it ends, or prints nothing in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        guard = threading.Timer(timeout_s, self._process.kill)
        guard.start()
        line = self._process.stdout.readline().strip()
        guard.cancel()
        if not line:
            raise AssertionError(f"{self.name} ended, or said nothing for {timeout_s} s; {self.name}.record.log")
        return line

    def hear_until(self, line: str) -> None:
        """Wait for a line. Raises AssertionError where another one comes, or none."""
        if (heard := self.hear()) != line:
            raise AssertionError(f"{self.name} said {heard!r}, not {line!r}")

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        assert self._process is not None
        self._process.kill()
        self._ended()

    def await_death(self, timeout_s: float) -> None:
        """Wait until it has ended by itself. Raises AssertionError."""
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not die within {timeout_s} s") from None
        self._ended()

    def close(self) -> None:
        """End it in any state."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        deadline = time.monotonic() + 5
        while self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)  # until it has seen the end of its input
        if self._process.poll() is None:
            self._process.kill()
        self._ended()

    def lines(self) -> list[dict[str, Any]]:
        """The lines of its record."""
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    def _ended(self) -> None:
        assert self._process is not None
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        self._process = None
