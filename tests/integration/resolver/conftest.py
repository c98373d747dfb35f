"""A rig whose groups are committed by the resolver's own code, in this process, and a resolver beside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from tests.integration.resolver import commits
from tests.integration.resolver.calls import Service, resolver_process

from anabranch.clock import Clock
from anabranch.store.inbox.claim import session_options
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.functions.child import Functions
from anabranch_conflict_resolver.group.commit import commit_group
from anabranch_conflict_resolver.group.outcome import GroupLimits
from anabranch_conflict_resolver.loop.known import Known
from anabranch_conflict_resolver.loop.seal_keys import SealKeys
from anabranch_conflict_resolver.loop.sessions import Sessions
from anabranch_conflict_resolver.loop.wakeups import Wakeups
from anabranch_conflict_resolver.loop.worker import Worker
from anabranch_conflict_resolver.loop.writers import Writers

TODO = "create table todo (id text primary key, title text, done boolean)"


@pytest.fixture(scope="package", autouse=True)
def plain_logs() -> Iterator[None]:
    """Tracebacks without the values of all variables, as a resolver writes them: with these, one takes seconds of the
    thread that works."""
    before = structlog.get_config()["processors"]
    console = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*before[:-1], console])
    yield
    structlog.configure(processors=before)


@pytest.fixture
def make_rig(migrated_url: str) -> Iterator[Any]:
    """Makes rigs on one new database, whose groups are committed as a resolver does: as a writer. ``make_rig()`` has
    table todo."""
    commit = commits.AsWriters(migrated_url)
    rigs: list[ResolverRig] = []

    def make(tables: str = TODO, names: Any = None, **more: Any) -> ResolverRig:
        rig = ResolverRig(migrated_url, tables, names or {"todo": None}, commit=commit, **more)
        rigs.append(rig)
        commit.open(rig.database.id)
        return rig

    yield make
    for rig in rigs:
        rig.close()
    commit.close()


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    """A rig with table todo (id, title, done)."""
    made: ResolverRig = make_rig()
    return made


@pytest.fixture
def worker_of(migrated_url: str) -> Iterator[Any]:
    """Starts workers for a rig's database, each in a thread of its own; all are stopped in the end."""
    options = session_options(statement_timeout_ms=5_000, lock_timeout_ms=250, idle_timeout_ms=2_000)
    stopping = threading.Event()
    threads: list[threading.Thread] = []
    waited_for: list[Wakeups] = []

    def start(rig: ResolverRig, most_batches: int = 500, rest_ms: int = 20) -> Worker:
        wakeups = Wakeups()
        waited_for.append(wakeups)
        worker = Worker(
            Sessions(Writers(migrated_url), options),
            partial(commit_group, limits=GroupLimits(busy_ms=20), functions=Functions(500)),
            Clock(),
            wakeups,
            Known(SealKeys(migrated_url)),
            stopping,
            most_batches=most_batches,
            target_ms=250,
            rest_ms=rest_ms,
        )
        threads.append(threading.Thread(target=worker.run))
        threads[-1].start()
        wakeups.wake(rig.database.id)
        return worker

    yield start
    stopping.set()
    for wakeups in waited_for:
        wakeups.end()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture
def service(rig: ResolverRig, migrated_url: str, tmp_path: Path) -> Iterator[Service]:
    """A resolver process on the rig's database."""
    with resolver_process(rig, migrated_url, tmp_path) as made:
        yield made
