"""The services of one installation on this machine, as child processes: for ``anabranch up`` and for tests.

Each service has an address of its own on loopback, one for its metrics, and a log in ``folder``.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from anabranch.errors import ServerError
from anabranch.ports import HOST, free_port
from anabranch.runtime.children import Child, Launch, Program, launch
from anabranch.runtime.health import PROBE_OPTIONS, becomes_ready

SERVICES: Mapping[str, str] = {
    "ingest": "anabranch_ingest",
    "snapshot": "anabranch_snapshot",
    "conflict-resolver": "anabranch_conflict_resolver",
    "retention-janitor": "anabranch_retention_janitor",
}
"""Name of a service to the module that runs it."""

READY_TIMEOUT_S = 30.0
STOP_PATIENCE_S = 15.0


class FleetError(ServerError):
    """A service did not get ready. The message has the end of its log."""


class Fleet:
    """The services as children.

    ``ports`` are those wanted, by service name, and of ``<name>-metrics``; a service that has none gets a free one.
    ``environment`` is added for all, ``own_environment`` by name. ``resolvers``: how many conflict-resolvers
    share the work; the second is ``conflict-resolver-2``. ``launch``: starts the processes.
    """

    def __init__(
        self,
        *,
        postgres_url: str,
        folder: Path,
        restarts: bool,
        say: Callable[[str], None],
        ports: Mapping[str, int] | None = None,
        environment: Mapping[str, str] | None = None,
        own_environment: Mapping[str, Mapping[str, str]] | None = None,
        resolvers: int = 1,
        launch: Launch = launch,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        modules = dict(SERVICES)
        for number in range(2, resolvers + 1):
            modules[f"conflict-resolver-{number}"] = SERVICES["conflict-resolver"]
        wanted = dict(ports or {})
        self.addresses: dict[str, str] = {}
        """host:port of each service, by name."""
        self.metrics_addresses: dict[str, str] = {}
        self._children: dict[str, Child] = {}
        for name, module in modules.items():
            self.addresses[name] = f"{HOST}:{wanted.get(name) or free_port()}"
            self.metrics_addresses[name] = f"{HOST}:{wanted.get(f'{name}-metrics') or free_port()}"
            program = Program(
                name=name,
                arguments=(sys.executable, "-m", module),
                environment={
                    **_inherited(),
                    **(environment or {}),
                    **(own_environment or {}).get(name, {}),
                    "ANABRANCH_POSTGRES_URL": postgres_url,
                    "ANABRANCH_LISTEN_ADDRESS": self.addresses[name],
                    "ANABRANCH_METRICS_ADDRESS": self.metrics_addresses[name],
                    "ANABRANCH_END_WITH_STDIN": "true",
                },
                log=folder / f"{name}.log",
            )
            self._children[name] = Child(program, restarts=restarts, say=say, launch=launch)

    @property
    def names(self) -> tuple[str, ...]:
        """The services, in the order in which they are started."""
        return tuple(self._children)

    def child(self, name: str) -> Child:
        """The process of a service. Raises KeyError for no service of that name."""
        return self._children[name]

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start all and wait until all are ready. Raises FleetError; then all are stopped."""
        try:
            for child in self._children.values():
                child.start()
            deadline = time.monotonic() + timeout_s
            for name in self._children:
                self.wait_ready(name, max(0.1, deadline - time.monotonic()))
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, name: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until a service says that it is ready. Raises FleetError where it dies or the time is up."""
        child = self._children[name]
        deaths = child.deaths
        deadline = time.monotonic() + timeout_s
        with grpc.insecure_channel(self.addresses[name], options=PROBE_OPTIONS) as channel:
            while child.pid is not None and child.deaths == deaths and time.monotonic() < deadline:
                if becomes_ready(channel, min(1.0, deadline - time.monotonic())):
                    return
        what = "is not ready in time" if child.pid is not None else "ended"
        raise FleetError(f"{name} {what}; the end of {child.program.log}:\n{child.log_tail()}")

    def stop(self) -> None:
        """Stop all at once. Raises TimeoutError where one survives SIGKILL."""
        with ThreadPoolExecutor(len(self._children)) as threads:
            for stopped in [threads.submit(child.stop, STOP_PATIENCE_S) for child in self._children.values()]:
                stopped.result()


def _inherited() -> dict[str, str]:
    """Return our environment without the variables that make services speak TLS: loopback does not need it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ANABRANCH_TLS_")}
