"""Snapshot alone, as real processes: for tests of the read side."""

from __future__ import annotations

import os
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
from ulid import ULID

from anabranch.runtime.children import Child, Program
from anabranch.runtime.fleet import free_port
from anabranch.runtime.health import PROBE_OPTIONS, becomes_ready
from anabranch.store import api_keys
from anabranch.store.engine import connect
from anabranch.testkit.snapshot_reader import Reader

STOP_PATIENCE_S = 15.0
READY_TIMEOUT_S = 30.0


class SnapshotRig:
    """``count`` snapshot processes on the migrated database at ``url``; ``environment`` is added for each."""

    def __init__(self, url: str, folder: Path, *, count: int = 1, environment: Mapping[str, str] | None = None) -> None:
        self.url = url
        self.addresses: list[str] = []
        self._metrics_addresses: list[str] = []
        self.children: list[Child] = []
        for number in range(count):
            address, metrics = (f"127.0.0.1:{free_port()}" for _ in range(2))
            program = Program(
                name=f"snapshot-{number}",
                arguments=(sys.executable, "-m", "anabranch_snapshot"),
                environment={
                    **os.environ,
                    "ANABRANCH_POSTGRES_URL": url,
                    "ANABRANCH_LISTEN_ADDRESS": address,
                    "ANABRANCH_METRICS_ADDRESS": metrics,
                    "ANABRANCH_END_WITH_STDIN": "true",
                    "ANABRANCH_READY_INTERVAL_MS": "50",
                    **(environment or {}),
                },
                log=folder / f"snapshot-{number}.log",
            )
            self.addresses.append(address)
            self._metrics_addresses.append(metrics)
            self.children.append(Child(program, restarts=False, say=lambda text: print(text, file=sys.stderr)))

    def __enter__(self) -> Self:
        try:
            for child in self.children:
                child.start()
            for number in range(len(self.children)):
                self.wait_ready(number)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for child in self.children:
            child.stop(STOP_PATIENCE_S)

    def wait_ready(self, number: int = 0) -> None:
        """Wait until a process says that it is ready. Raises TimeoutError with the end of its log."""
        child = self.children[number]
        deadline = time.monotonic() + READY_TIMEOUT_S
        with grpc.insecure_channel(self.addresses[number], options=PROBE_OPTIONS) as channel:
            while child.pid is not None and time.monotonic() < deadline:
                if becomes_ready(channel, 1.0):
                    return
        raise TimeoutError(f"snapshot is not ready:\n{child.log_tail()}")

    def kill(self, number: int = 0) -> None:
        """SIGKILL a process, and start it again."""
        self.children[number].kill()
        self.children[number].start()
        self.wait_ready(number)

    def reader(self, db_name: str, *, subject: str = "", number: int = 0, database: str | None = None) -> Reader:
        """A reader with a key and a node of its own, of a principal of its own unless ``subject`` says whose."""
        with connect(self.url, application_name="test", autocommit=True) as conn:
            subject = subject or f"user-{ULID()}"
            key = api_keys.create(conn, subject=subject, role="device", database=database, now_ms=1)
        return Reader(self.addresses[number], key, db_name)

    def metric(self, name: str, number: int = 0, **labels: str) -> float:
        """What the Prometheus endpoint shows of a metric; 0 where it shows nothing."""
        with urllib.request.urlopen(f"http://{self._metrics_addresses[number]}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = [line for line in lines if line.startswith(f"{name}{{") and all(label in line for label in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in found)
