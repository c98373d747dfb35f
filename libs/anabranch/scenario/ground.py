"""The ground of scenarios: one Postgres, the services on it, and the process that starts nodes.

The services run for many scenarios, one after the other: each has a database of its own, and may kill services and move
their clocks, because it has them to itself. After each scenario the ground is repaired: dead services are started
again, fault points disarmed, clocks put back. A scenario that takes the whole server back in time gets a ground of its
own.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jwt

from anabranch.embedded import UNSYNCED
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.scenario.node import Nursery
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.stack import Stack
from anabranch.testkit.warm_compactor import WarmCompactor

_TOKEN_YEARS = 60
_YEAR_S = 366 * 24 * 3600
_COPY_S = 60.0
_LOOK_S = 0.02
_PULL_CHUNK_BYTES = "4096"
"""Small enough that a pull of a hundred rows has chunks between which it can be cut."""


class Ground:
    """Postgres and the services in ``folder``; ``nursery`` starts the nodes, ``compactor`` runs when a story says so.
    ``environment`` is added for every service (``ANABRANCH_…`` settings)."""

    def __init__(
        self,
        folder: Path,
        nursery: Nursery,
        compactor: WarmCompactor,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.nursery = nursery
        self.compactor = compactor
        self._environment = environment or {}
        self._secret = secrets.token_urlsafe(48)
        self._postgres = EmbeddedPostgres(folder / "postgres", settings=UNSYNCED)
        self._stack: Stack | None = None
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self._postgres.start()
        try:
            self._start_stack()
        except BaseException:
            self._postgres.stop("immediate")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._stack is not None:
                self._stack.__exit__(None, None, None)
        finally:
            self._postgres.stop("immediate")

    def _start_stack(self) -> None:
        folder = self.folder / "services"
        folder.mkdir(exist_ok=True)
        environment = {
            "ANABRANCH_JWT_HS256_SECRET": self._secret,
            "ANABRANCH_PULL_BATCH_BYTES": _PULL_CHUNK_BYTES,
            **self._environment,
        }
        stack = Stack(self._postgres.url, folder=folder, environment=environment)
        stack.__enter__()
        self._stack = stack

    @property
    def stack(self) -> Stack:
        """The services."""
        assert self._stack is not None, "the ground was entered"
        return self._stack

    def next_name(self) -> str:
        """A name for a scenario's database and schema."""
        return f"scenario{next(self._numbers)}"

    def session(self) -> Session:
        """A session that belongs to none of the services."""
        return connect(self._postgres.url, application_name="anabranch-scenario", autocommit=True)

    def token(self, principal: str, database: str, claims: Mapping[str, Any] | None = None) -> str:
        """Credentials that show their principal on the device, too, with ``claims`` beside those that services need."""
        until_s = int(time.time()) + _TOKEN_YEARS * _YEAR_S
        named = {**(claims or {}), "sub": principal, "exp": until_s, "anabranch_database": database}
        return jwt.encode(named, self._secret, algorithm="HS256")

    def dead_services(self) -> list[str]:
        """The services that have no process."""
        return [name for name in self.stack.addresses if self.stack.pid(name) is None]

    def restart_dead(self) -> None:
        """Start dead services, and wait until they are ready. Raises FleetError."""
        dead = self.dead_services()
        for name in dead:
            self.stack.start(name)
        for name in dead:
            self.stack.wait_ready(name)

    def tidy(self) -> None:
        """Leave the services as the next scenario expects them."""
        for name in self.stack.addresses:
            self.stack.disarm(name)
        self.stack.set_clock_offset(0)
        self.restart_dead()

    # The whole server, there and back

    def save(self, label: str) -> None:
        """Keep Postgres as it is now."""
        self._postgres.stop()
        _copy(self._cluster, self._kept(label))
        self._back()

    def rewind(self, label: str) -> None:
        """Restore Postgres from the copy kept under ``label``, and start the services anew on it."""
        for name in self.stack.addresses:
            self.stack.terminate(name)
        self._postgres.stop()
        shutil.rmtree(self._cluster)
        _copy(self._kept(label), self._cluster)
        self._back()

    def fail_over(self) -> None:
        """Let a standby that has everything take over: the same cluster on a new timeline, while the services run."""
        self._postgres.stop()
        owner = self._cluster.stat()
        with (self._cluster / "postgresql.auto.conf").open("a") as file:
            file.write("restore_command = 'false'\n")
        signal = self._cluster / "recovery.signal"
        signal.touch()
        os.chown(signal, owner.st_uid, owner.st_gid)
        self._postgres.start()
        deadline = time.monotonic() + _COPY_S
        with self.session() as conn:
            while conn.execute("select pg_is_in_recovery()").fetchone() != (False,):
                assert time.monotonic() < deadline, "the standby does not take over"
                time.sleep(_LOOK_S)
        for name in self.stack.addresses:
            self.stack.wait_ready(name)

    @property
    def _cluster(self) -> Path:
        return self._postgres.data_dir / "cluster"

    def _kept(self, label: str) -> Path:
        return self.folder / f"kept-{label.encode().hex()}"

    def _back(self) -> None:
        self._postgres.start()
        self.restart_dead()
        for name in self.stack.addresses:
            self.stack.wait_ready(name)


def _copy(source: Path, target: Path) -> None:
    """Copy a folder with its owners and modes, which Postgres checks."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True, timeout=_COPY_S)
