"""One service alone, as real processes on a Postgres of the test's: common to the rigs of ingest and snapshot."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc

from anabranch.ports import free_port
from anabranch.runtime.children import Child, Program
from anabranch.runtime.health import PROBE_OPTIONS, becomes_ready
from anabranch.testkit import preforked
from anabranch.testkit.memory_limits import MemoryWatch, chart_limits

STOP_PATIENCE_S = 15.0
READY_TIMEOUT_S = 30.0


class ServiceRig:
    """``count`` processes of ``service`` ("ingest") on the migrated database at ``url``; ``environment`` is added for
    each. ``addresses`` and ``metrics_addresses``: host:port of each. One that has more memory than the chart gives it
    is killed, and leaving the block then fails."""

    def __init__(
        self, service: str, url: str, folder: Path, *, count: int = 1, environment: Mapping[str, str] | None = None
    ) -> None:
        self.url = url
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self.metrics_addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self.clock_file = folder / "clock"
        self.fault_files = [folder / f"{service}-{number}.faults" for number in range(count)]
        self._service = service
        self.children: list[Child] = []
        for number in range(count):
            program = Program(
                name=f"{service}-{number}",
                arguments=(sys.executable, "-m", f"anabranch_{service}"),
                environment={
                    **os.environ,
                    "ANABRANCH_POSTGRES_URL": url,
                    "ANABRANCH_LISTEN_ADDRESS": self.addresses[number],
                    "ANABRANCH_METRICS_ADDRESS": self.metrics_addresses[number],
                    "ANABRANCH_END_WITH_STDIN": "true",
                    "ANABRANCH_READY_INTERVAL_MS": "50",
                    "ANABRANCH_CLOCK_FILE": str(self.clock_file),
                    "ANABRANCH_FAULT_FILE": str(self.fault_files[number]),
                    **(environment or {}),
                },
                log=folder / f"{service}-{number}.log",
            )
            said = partial(print, file=sys.stderr)
            self.children.append(Child(program, restarts=False, say=said, launch=preforked.launch))
        kept = {child.program.name: child for child in self.children}
        self.memory = MemoryWatch(kept, chart_limits(kept))

    def __enter__(self) -> Self:
        self.memory.start()
        try:
            for child in self.children:
                child.start()
            for number in range(len(self.children)):
                self.wait_ready(number)
        except BaseException as error:
            self._stop(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop(error)

    def _stop(self, error: BaseException | None) -> None:
        try:
            self.memory.stop(error)
        finally:
            for child in self.children:
                child.stop(STOP_PATIENCE_S)

    def wait_ready(self, number: int = 0) -> None:
        """Wait until a process reports that it is ready. Raises TimeoutError with the end of its log."""
        child = self.children[number]
        deadline = time.monotonic() + READY_TIMEOUT_S
        with grpc.insecure_channel(self.addresses[number], options=PROBE_OPTIONS) as channel:
            while child.pid is not None and time.monotonic() < deadline:
                if becomes_ready(channel, 1.0):
                    return
        raise TimeoutError(f"{self._service} is not ready:\n{child.log_tail()}")

    def start(self, number: int = 0) -> None:
        """Start a process that died, and wait until it is ready."""
        self.children[number].stop(STOP_PATIENCE_S)
        self.children[number].start()
        self.wait_ready(number)

    def kill(self, number: int = 0) -> None:
        """SIGKILL a process, and start it again."""
        self.children[number].kill()
        self.children[number].start()
        self.wait_ready(number)

    def log(self, number: int = 0) -> str:
        """All that a process has logged."""
        return self.children[number].program.log.read_text(errors="replace")
