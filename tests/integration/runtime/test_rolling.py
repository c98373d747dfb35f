"""Services are exchanged one after the other while devices write and streams follow: a restart, and an upgrade whose
migration runs meanwhile. Each is what a Deployment does: the new one has to be ready, then connections are led to it,
then the old one is told to end."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from tests.integration.runtime.rolling_load import DATABASE, STREAMS, Load
from tests.notes import prepare

from anabranch.runtime.fleet import SERVICES, Fleet
from anabranch.runtime.health import probe
from anabranch.store import revisions
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.gate import Gate
from anabranch.testkit.next_release import REVISION, NextRelease
from anabranch.testkit.stack import Stack
from anabranch.testkit.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("rolling"),
    pytest.mark.timeout(300),
]  # each keeps both cores busy

READY_S = 60.0
MOST_FAILED = 0.01
"""Share of the calls that may fail while a service is exchanged."""
TABLES = """
select relname from pg_class
where relnamespace = 'anabranch'::regnamespace and relkind in ('r', 'p') and not relispartition
  and relname not in ('schema_revision', 'code_revisions')
"""
MORE = "alter table anabranch.{} add column next_release text not null default 'x';"


def next_release(url: str, folder: Path, seconds: int) -> NextRelease:
    """Its migration takes so long, and then gives every table a column more."""
    with psycopg.connect(url) as conn:
        tables = [name for (name,) in conn.execute(TABLES).fetchall()]
    assert len(tables) > 10
    more = "".join(MORE.format(name) for name in tables) + "create table anabranch.next_release (id int primary key)"
    return NextRelease(folder, f"select pg_sleep({seconds})", tables, more, works_from=revisions.head())


@pytest.fixture
def url(databases: TestDatabases) -> Iterator[str]:
    made = databases.prepared("rolled", lambda new: prepare(new, DATABASE, "item"))
    yield made
    databases.release(made)


class Rolled:
    """A stack behind gates, under load."""

    def __init__(self, url: str, folder: Path, stack: Stack, gates: dict[str, Gate]) -> None:
        self.url = url
        self.folder = folder
        self.stack = stack
        self.gates = gates
        self.load = Load({name: gate.address for name, gate in gates.items()}, stack.key, folder)

    def head(self) -> int:
        with psycopg.connect(self.url) as conn:
            row = conn.execute("select max(position) from anabranch.groups").fetchone()
        assert row is not None
        return int(row[0])

    def see_more(self, more: int = 20) -> None:
        """Wait until so many batches more have their verdict."""
        goal, deadline = len(self.load.pushed) + more, time.monotonic() + READY_S
        while len(self.load.pushed) < goal:
            assert time.monotonic() < deadline, self.load.calls
            time.sleep(0.02)

    def exchange(self, new: Fleet, name: str) -> None:
        """Lead to the new one, which is ready, and end the old one."""
        new.wait_ready(name, READY_S)
        self.gates[name].target = new.addresses[name]
        self.stack.terminate(name)
        self.see_more()

    def judge(self) -> None:
        """Nothing was lost, nothing doubled, and nobody was cut off."""
        load = self.load
        with psycopg.connect(self.url) as conn:
            rows = [name for (name,) in conn.execute("select id from public.item").fetchall()]
            logged = [
                (p, b) for p, b in conn.execute("select position, batch_id from anabranch.log order by 1, 2").fetchall()
            ]
            refused = conn.execute("select count(*) from anabranch.batches where status <> 1").fetchone()
        assert refused == (0,)
        assert sorted(rows) == sorted([*load.pushed, *load.made])
        assert len({batch for _, batch in logged}) == len(logged) == len(rows)
        for seen in load.streams:
            assert len(set(seen)) == len(seen)
            assert sorted(seen) == sorted(batch for _, batch in logged)
        for device in load.devices:
            shown = [name for (name,) in device.execute("select id from item")]
            assert sorted(shown) == sorted(rows)
            assert device.dead_letters() == []
            assert device.status().disagreeing == ()
        # A stream that ends is told to go elsewhere.
        assert set(load.moved) == {("UNAVAILABLE", "UNAVAILABLE")}, load.moved
        assert load.moved.total() >= STREAMS
        failed = load.calls.total() - load.calls["OK"]
        assert failed <= MOST_FAILED * load.calls.total(), load.calls


@contextmanager
def rolled(url: str, folder: Path) -> Iterator[Rolled]:
    with ExitStack() as block:
        stack = block.enter_context(Stack(url, folder=folder / "old"))
        gates = {name: block.enter_context(Gate(stack.addresses[name])) for name in SERVICES}
        made = Rolled(url, folder, stack, gates)
        block.callback(made.load.close)
        yield made


@contextmanager
def fleet(url: str, folder: Path, **environment: str) -> Iterator[Fleet]:
    """Processes beside those of the stack; none is started."""
    made = Fleet(
        postgres_url=url,
        folder=folder,
        restarts=True,
        say=print,
        environment={"ANABRANCH_READY_INTERVAL_MS": "100", **environment},
    )
    try:
        yield made
    finally:
        made.stop()


def test_a_rolling_restart_loses_and_doubles_nothing(url: str, tmp_path: Path) -> None:
    """P11: 50 streams and 20 batches a second beside two devices."""
    with rolled(url, tmp_path) as old, fleet(url, tmp_path / "new") as new:
        with old.load.running(old.head):
            old.see_more()
            for name in SERVICES:
                new.child(name).start()
                old.exchange(new, name)
        old.judge()


class Watch:
    """Asks every service for its health all the time: by name, what it said, without repetitions. ``served_s``: when
    the first one was found to be ready."""

    def __init__(self, addresses: dict[str, str]) -> None:
        self.states: dict[str, list[str]] = {name: [] for name in addresses}
        self.served_s: float | None = None
        self._addresses = addresses
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            for name, address in self._addresses.items():
                state = probe(address, 5.0)
                if state == "SERVING" and self.served_s is None:
                    self.served_s = time.monotonic()
                if self.states[name][-1:] != [state]:
                    self.states[name].append(state)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize(
    "seconds", [5, pytest.param(120, marks=[pytest.mark.long, pytest.mark.timeout(400)])], ids="{}s".format
)
def test_an_upgrade_with_a_long_migration_under_traffic(url: str, tmp_path: Path, seconds: int) -> None:
    """P02: old services stay ready on the schema before and after, new ones are ready only after; then they are
    exchanged."""
    release = next_release(url, tmp_path / "release", seconds)
    with rolled(url, tmp_path) as old, fleet(url, tmp_path / "new", **release.environment) as new:
        with old.load.running(old.head):
            old.see_more()
            for name in SERVICES:
                new.child(name).start()
            until(lambda: all("migrations have not run" in said(new, name) for name in SERVICES), READY_S)
            with Watch(dict(old.stack.addresses)) as watch:
                with Watch(dict(new.addresses)) as before, release.migrate(url) as migration:
                    not_yet_s = asked_s = time.monotonic()
                    while migration.poll() is None and revision(url) != REVISION:
                        not_yet_s = asked_s
                        old.see_more(1)
                        asked_s = time.monotonic()
                    until(lambda: before.served_s is not None, READY_S)
                output, _ = migration.communicate(timeout=30)
                assert migration.returncode == 0, output
                old.see_more(100)
            assert watch.states == {name: ["SERVING"] for name in SERVICES}, "old services work with the new schema"
            assert before.served_s is not None
            assert before.served_s > not_yet_s, "a new service was ready before its schema"
            for name in SERVICES:
                old.exchange(new, name)
        old.judge()
        assert seconds < 60 or new.child("ingest").deaths, "who waits too long for the schema says so and ends"


def said(new: Fleet, name: str) -> str:
    log = new.child(name).program.log
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return " ".join(line.get("detail", "") for line in lines)


def revision(url: str) -> str:
    with psycopg.connect(url) as conn:
        row = conn.execute(f"select version_num from anabranch.{revisions.VERSION_TABLE}").fetchone()
    assert row is not None
    return str(row[0])
