"""Promise 7 while Postgres is away: all services, 150 callers who go on calling, and whatever can become of a Postgres.

Health tells the truth meanwhile. Once Postgres is back every service is ready, and takes and answers calls, within
``BACK_S``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from anabranch.embedded import UNSYNCED
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.ports import HOST
from anabranch.runtime.fleet import SERVICES
from anabranch.runtime.health import probe
from anabranch.store import migrate
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.session.engine import connect
from anabranch.testkit.callers import KINDS, Callers
from anabranch.testkit.gate import Gate
from anabranch.testkit.stack import Stack
from anabranch.testkit.waiting import load, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("outages"), pytest.mark.timeout(600)]

BACK_S = 5.0
BUSY_S = 5.0
"""The most that a busy machine may add to it, where as many want a processor as there are."""
NOTICED_S = 10.0
"""From when on a service may no longer say that it is ready while Postgres is away."""
PATIENCE_S = 60.0


@dataclass
class Place:
    """Postgres behind a gate, the services, and those who call them."""

    postgres: EmbeddedPostgres
    gate: Gate
    stack: Stack
    callers: Callers


def through(gate: Gate, url: str) -> str:
    """The URL of a database, by way of the gate."""
    host, _, port = gate.address.rpartition(":")
    return make_conninfo(url, host=host, port=port)


def port_of(postgres: EmbeddedPostgres) -> str:
    """Its port."""
    return str(conninfo_to_dict(postgres.url)["port"])


def target_of(postgres: EmbeddedPostgres) -> str:
    """host:port of a server."""
    return f"{HOST}:{port_of(postgres)}"


@contextmanager
def a_place(folder: Path, postgres: EmbeddedPostgres) -> Iterator[Place]:
    """The services on a server that runs, by way of a gate."""
    with ExitStack() as block:
        with connect(postgres.url, application_name="test", autocommit=True) as conn:
            conn.execute("create schema app")
            conn.execute('create table app.note (id text collate "C" primary key, body text)')
            migrate.upgrade(postgres.url)
            create_database(conn, "notes", "app")
            add_table(conn, "notes", "note")
        gate = block.enter_context(Gate(target_of(postgres)))
        stack = block.enter_context(Stack(through(gate, postgres.url), folder=folder / "stack"))
        callers = block.enter_context(Callers(stack.addresses, stack.key, "notes"))
        yield Place(postgres, gate, stack, callers)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("outages")
    with EmbeddedPostgres(folder / "postgres", settings={**UNSYNCED, "max_connections": "100"}) as postgres:
        try:
            with a_place(folder, postgres) as made:
                yield made
        finally:
            postgres.thaw()


def states(stack: Stack) -> dict[str, str]:
    return {name: probe(stack.addresses[name], 2.0) for name in SERVICES}


@contextmanager
def frozen(place: Place) -> Iterator[None]:
    """SIGSTOP: everything is connected, and nothing answers."""
    place.postgres.freeze()
    try:
        yield
    finally:
        place.postgres.thaw()


@contextmanager
def killed(place: Place) -> Iterator[None]:
    """SIGKILL, and a new start."""
    place.postgres.kill()
    try:
        yield
    finally:
        place.postgres.start()


@contextmanager
def cut_off(place: Place) -> Iterator[None]:
    """Nothing passes between services and Postgres, and nobody is told."""
    place.gate.silence()
    try:
        yield
    finally:
        place.gate.open()


@contextmanager
def crowded(place: Place) -> Iterator[None]:
    """The services' sessions are ended, and others take their places before they can."""
    url, over = place.postgres.url, threading.Event()

    def crowd() -> None:
        sessions: list[psycopg.Connection] = []
        try:
            while not over.is_set():
                try:
                    sessions.append(psycopg.connect(url, application_name="crowd"))
                except psycopg.OperationalError:
                    over.wait(0.02)
        finally:
            for session in sessions:
                session.close()

    with connect(url, application_name="test", autocommit=True) as conn:
        threads = [threading.Thread(target=crowd) for _ in range(4)]
        for thread in threads:
            thread.start()
        try:
            deadline = time.monotonic() + PATIENCE_S
            crowded_out = False
            while not crowded_out:
                assert time.monotonic() < deadline, "others don't get in between"
                conn.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity "
                    "where application_name like 'anabranch%' and pid <> pg_backend_pid()"
                )
                time.sleep(0.1)  # for the crowd to take the places
                # Not one of ours, and no place left for one.
                ((crowded_out,),) = conn.execute(
                    "select not bool_or(application_name like 'anabranch%') "
                    "and count(*) >= current_setting('max_connections')::int "
                    "from pg_stat_activity where backend_type = 'client backend'"
                ).fetchall()
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()


FAULTS = {"frozen": frozen, "killed": killed, "cut off": cut_off, "crowded": crowded}
SPANS = [1, pytest.param(10, marks=pytest.mark.long), pytest.param(120, marks=pytest.mark.long)]


def everything_works_after(place: Place, back: float) -> None:
    """All services are ready, and calls that are made from ``back`` on come through, both soon."""
    within = place.callers.first_after(back, PATIENCE_S)
    serving = dict.fromkeys(SERVICES, "SERVING")
    until(lambda: states(place.stack) == serving, PATIENCE_S, lambda: str(states(place.stack)))
    ready_s = time.monotonic() - back
    assert set(within) == set(KINDS)
    assert max(within.values()) < BACK_S + BUSY_S * load(), within
    assert ready_s < BACK_S + BUSY_S * load() + 1.0, ready_s


@pytest.mark.parametrize("away_s", SPANS)
@pytest.mark.parametrize("kind", FAULTS)
def test_services_come_back_with_postgres(place: Place, kind: str, away_s: float) -> None:
    place.callers.first_after(time.monotonic(), PATIENCE_S)
    before = {name: place.stack.pid(name) for name in SERVICES}
    began = time.monotonic()
    with FAULTS[kind](place):
        while time.monotonic() < began + away_s:
            time.sleep(0.1)
            if time.monotonic() > began + NOTICED_S:
                assert "SERVING" not in states(place.stack).values()
    everything_works_after(place, time.monotonic())
    assert {name: place.stack.pid(name) for name in SERVICES} == before, "nobody had to start anew"


def test_what_was_told_to_be_applied_is_there(place: Place) -> None:
    """After whatever the tests above have done."""
    place.callers.first_after(time.monotonic(), PATIENCE_S)
    applied = list(place.callers.applied)
    with connect(place.postgres.url, application_name="test") as conn:
        ids = {row for (row,) in conn.execute("select id from app.note")}
    assert applied
    assert set(applied) <= ids


@contextmanager
def standby_of(postgres: EmbeddedPostgres, folder: Path) -> Iterator[EmbeddedPostgres]:
    """A standby that every commit waits for."""
    to = conninfo_to_dict(postgres.url)
    folder.mkdir(mode=0o700)
    cluster = folder / "cluster"
    postgres.stop()
    subprocess.run(["cp", "-a", str(postgres.data_dir / "cluster"), str(cluster)], check=True, timeout=60)
    shutil.copy2(postgres.data_dir / "password", folder / "password")
    postgres.start()
    owner = cluster.stat()
    primary = f"host={to['host']} port={to['port']} user={to['user']} password={to['password']}"
    with (cluster / "postgresql.auto.conf").open("a") as file:
        file.write(f"primary_conninfo = '{primary} application_name=standby'\n")
    signal = cluster / "standby.signal"
    signal.touch()
    os.chown(signal, owner.st_uid, owner.st_gid)
    with EmbeddedPostgres(folder, settings=UNSYNCED) as standby:
        with connect(postgres.url, application_name="test", autocommit=True) as conn:
            conn.execute("alter system set synchronous_standby_names = 'standby'")
            conn.execute("select pg_reload_conf()")
        yield standby


@pytest.mark.parametrize("away_s", SPANS)
def test_services_follow_postgres_to_another_address(tmp_path: Path, away_s: float) -> None:
    """The old server is not gone: it is stopped, and holds every connection that was made to it."""
    with ExitStack() as block:
        first = block.enter_context(EmbeddedPostgres(tmp_path / "first", settings=UNSYNCED))
        block.callback(first.thaw)
        second = block.enter_context(standby_of(first, tmp_path / "second"))
        several = make_conninfo(first.url, host=f"{HOST},{HOST}", port=f"{port_of(second)},{port_of(first)}")
        with connect(several, application_name="test") as conn:
            assert conn.execute("select pg_is_in_recovery()").fetchone() == (False,), "of several, the one that writes"
        place = block.enter_context(a_place(tmp_path, first))
        place.callers.first_after(time.monotonic(), PATIENCE_S)
        first.freeze()
        time.sleep(away_s)
        with psycopg.connect(second.url, autocommit=True) as conn:
            conn.execute("select pg_promote()")
            conn.execute("alter system set synchronous_standby_names = ''")
            conn.execute("select pg_reload_conf()")
        place.gate.target = target_of(second)
        everything_works_after(place, time.monotonic())
        applied = list(place.callers.applied)
        with connect(second.url, application_name="test") as conn:
            ids = {row for (row,) in conn.execute("select id from app.note")}
        assert set(applied) <= ids
