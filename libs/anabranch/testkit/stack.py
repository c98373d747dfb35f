"""A whole stack in a test: the services as real processes on one database, with a key, and faults to inject.

    with Stack(database_url, folder=tmp_path) as stack:
        channel = grpc.insecure_channel(stack.addresses["ingest"])
        stack.kill("conflict-resolver")
        stack.restart("conflict-resolver")

Names: ``ingest``, ``snapshot``, ``conflict-resolver``, ``retention-janitor``, and ``conflict-resolver-2`` where two
were asked for. A process that dies stays dead until ``restart``. One that has more memory than the chart gives it is
killed, and leaving the block then fails (``memory_limits``). Leaving the block ends every process that was started,
by its id; when it is left by an exception, the ends of all logs are printed first.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from anabranch import clock, faults
from anabranch.runtime.children import Launch
from anabranch.runtime.fleet import READY_TIMEOUT_S, SERVICES, Fleet
from anabranch.store import migrate
from anabranch.store.nodes import api_keys, key_administration
from anabranch.store.session.engine import connect
from anabranch.testkit import preforked
from anabranch.testkit.memory_limits import MemoryWatch, chart_limits

STOP_PATIENCE_S = 15.0
DEATH_TIMEOUT_S = 20.0


class Stack:
    """The services on the database at ``database_url``, whose schema is made current first.

    ``folder`` takes logs, fault files and the clock's file. ``environment`` is added for every service
    (``ANABRANCH_…`` settings), ``own_environment`` by name. ``memory_limits``: bytes by name, where a test wants others
    than the chart's. ``launch``: ``children.launch`` where a test is about what a service does before its first line.
    The key in ``key`` has the role admin and opens every database.
    """

    def __init__(
        self,
        database_url: str,
        *,
        folder: Path,
        resolvers: int = 1,
        environment: Mapping[str, str] | None = None,
        own_environment: Mapping[str, Mapping[str, str]] | None = None,
        ready_timeout_s: float = READY_TIMEOUT_S,
        memory_limits: Mapping[str, int] | None = None,
        launch: Launch = preforked.launch,
    ) -> None:
        self.database_url = database_url
        self.folder = folder
        self.key = ""
        self.killed: list[tuple[str, float]] = []
        """Each service that was killed by a test, and when (time.monotonic), for a test's report."""
        self._launch = launch
        self._ready_timeout_s = ready_timeout_s
        self._clock_file = folder / "clock"
        names = list(SERVICES)
        names += [f"conflict-resolver-{number}" for number in range(2, resolvers + 1)]
        self._fault_files = {name: folder / f"{name}.faults" for name in names}
        self._fleet = Fleet(
            postgres_url=database_url,
            folder=folder,
            restarts=False,
            say=lambda text: print(f"stack: {text}", file=sys.stderr),
            environment={
                "ANABRANCH_CLOCK_FILE": str(self._clock_file),
                "ANABRANCH_READY_INTERVAL_MS": "100",
                **(environment or {}),
            },
            own_environment={
                name: {"ANABRANCH_FAULT_FILE": str(file), **(own_environment or {}).get(name, {})}
                for name, file in self._fault_files.items()
            },
            resolvers=resolvers,
            launch=launch,
        )
        self.memory = MemoryWatch(
            {name: self._fleet.child(name) for name in names}, {**chart_limits(names), **(memory_limits or {})}
        )
        """The memory that the services have, and may have."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """host:port of each service, by name; it stays the same over restarts."""
        return self._fleet.addresses

    @property
    def metrics_addresses(self) -> Mapping[str, str]:
        """host:port of each service's Prometheus endpoint."""
        return self._fleet.metrics_addresses

    def __enter__(self) -> Self:
        if self._launch is preforked.launch:
            preforked.prepare(SERVICES.values())
        migrate.upgrade(self.database_url)
        self.key = self.new_key("stack", role="admin")
        self.memory.start()
        try:
            self._fleet.start(self._ready_timeout_s)
        except BaseException as error:
            self.memory.stop(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.print_logs()
        try:
            self.memory.stop(error)
        finally:
            self._fleet.stop()

    def new_key(self, subject: str, *, role: api_keys.Role = "device", database: str | None = None) -> str:
        """A new API key. Raises UnknownDatabaseError where ``database`` names none."""
        with connect(self.database_url, application_name="anabranch-stack", autocommit=True) as conn:
            now_ms = clock.Clock().now_ms()
            return key_administration.create(conn, subject=subject, role=role, database=database, now_ms=now_ms)

    def pid(self, name: str) -> int | None:
        """The process id of a service; None while it is dead."""
        return self._fleet.child(name).pid

    def kill(self, name: str) -> None:
        """SIGKILL a service and wait for its end."""
        self._fleet.child(name).kill()
        self.killed.append((name, time.monotonic()))

    def terminate(self, name: str) -> None:
        """SIGTERM a service and wait until it has drained and ended."""
        self._fleet.child(name).stop(STOP_PATIENCE_S)

    def stop_signal(self, name: str) -> None:
        """SIGSTOP a service: it keeps its connections and does nothing."""
        self._fleet.child(name).send(signal.SIGSTOP)

    def continue_signal(self, name: str) -> None:
        """SIGCONT a service."""
        self._fleet.child(name).send(signal.SIGCONT)

    def start(self, name: str) -> None:
        """Start a service that is dead, without waiting for it."""
        self._fleet.child(name).start()

    def restart(self, name: str) -> None:
        """Start a service that is dead, or end it (SIGTERM) first, and wait until it is ready."""
        self._fleet.child(name).stop(STOP_PATIENCE_S)
        self._fleet.child(name).start()
        self.wait_ready(name)

    def wait_ready(self, name: str) -> None:
        """Wait until a service is ready. Raises FleetError."""
        self._fleet.wait_ready(name, self._ready_timeout_s)

    def arm(self, name: str, point: str) -> int:
        """Have a service die at a fault point, once. Returns its deaths so far, for ``wait_died``."""
        faults.arm(self._fault_files[name], point)
        return self._fleet.child(name).deaths

    def armed(self, name: str) -> list[str]:
        """The fault points at which a service is still to die."""
        return faults.armed(self._fault_files[name])

    def disarm(self, name: str) -> list[str]:
        """Disarm the fault points that a service has not reached; return their names."""
        return faults.disarm(self._fault_files[name])

    def wait_died(self, name: str, deaths: int, timeout_s: float = DEATH_TIMEOUT_S) -> None:
        """Wait until a service has died more than ``deaths`` times. Raises TimeoutError."""
        self._fleet.child(name).wait_died(deaths, timeout_s)
        self.killed.append((name, time.monotonic()))

    def set_clock_offset(self, offset_ms: int) -> None:
        """Move the clocks of all services."""
        clock.set_offset(self._clock_file, offset_ms)

    @property
    def clock_file(self) -> Path:
        """The file that the services' clocks read: for a process beside them."""
        return self._clock_file

    def log(self, name: str) -> str:
        """All that a service has logged."""
        return self._fleet.child(name).program.log.read_text(errors="replace")

    def print_logs(self) -> None:
        """Print the end of every log, to explain a failure."""
        for name in self._fleet.names:
            print(f"--- the end of {name}'s log ---\n{self._fleet.child(name).log_tail()}", file=sys.stderr)
