"""``anabranch up`` as a person uses it: first run, second run, deaths, refusals, a clean end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from tests.integration.resolver.hostile import HOSTILE

from anabranch.cli.up import PORT_NAMES
from anabranch.ports import free_port, is_free
from anabranch.runtime.fleet import SERVICES
from anabranch.runtime.health import probe
from anabranch.testkit.echo import bearer
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.waiting import until
from anabranch.v1 import snapshot_pb2, snapshot_pb2_grpc

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("up")]  # its processes are shared by its tests

COMMAND = [sys.executable, "-c", "from anabranch.cli.app import app; app()"]
START_TIMEOUT_S = 90.0


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


class Up:
    """A running ``anabranch up``, and what it has said."""

    def __init__(self, data_dir: Path, *more: str, environment: dict[str, str] | None = None) -> None:
        self.data_dir = data_dir
        self._lines: list[str] = []
        self._changed = threading.Condition()
        self.process = subprocess.Popen(
            [*COMMAND, "up", "--data-dir", str(data_dir), *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={name: value for name, value in os.environ.items() if name != "ANABRANCH_POSTGRES_URL"}
            | (environment or {}),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
        with self._changed:
            self._lines.append("(its output ended)")
            self._changed.notify_all()

    def wait_said(self, text: str, timeout_s: float = START_TIMEOUT_S) -> None:
        with self._changed:
            found = self._changed.wait_for(lambda: any(text in line for line in self._lines), timeout_s)
            assert found, f"{text!r} was not said:\n{self.said}"

    @property
    def said(self) -> str:
        return "".join(self._lines)

    @property
    def endpoints(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.data_dir / "endpoints.json").read_text())
        return content

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Send the signal and wait; its exit code. Nothing of it may be left."""
        family = self.descendants()
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(10)
        _, alive = psutil.wait_procs(family, timeout=5)
        assert not alive, f"left behind: {alive}"
        return code


@contextmanager
def running(data_dir: Path, *more: str, environment: dict[str, str] | None = None) -> Iterator[Up]:
    up = Up(data_dir, *more, environment=environment)
    try:
        up.wait_said("ready, Ctrl-C stops")
        yield up
    finally:
        if up.process.poll() is None:
            up.stop()


def describe(endpoints: dict[str, Any]) -> grpc.StatusCode:
    """The code of a call with the key, for a database that does not exist."""
    with grpc.insecure_channel(endpoints["addresses"]["snapshot"]) as channel:
        request = snapshot_pb2.DescribeRequest(db_name="none")
        with pytest.raises(grpc.RpcError) as caught:
            snapshot_pb2_grpc.SnapshotServiceStub(channel).Describe(
                request, timeout=10, metadata=bearer(endpoints["key"])
            )
        return caught.value.code()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One that runs for several tests."""
    with running(tmp_path_factory.mktemp("up") / "data") as made:
        yield made
        assert made.stop() == 0
        assert "stopped" in made.said


def test_the_first_run_makes_a_key_and_says_where_everything_is(up: Up) -> None:
    endpoints = up.endpoints
    assert set(endpoints["addresses"]) == set(SERVICES)
    assert {probe(address, 2.0) for address in endpoints["addresses"].values()} == {"SERVING"}
    assert describe(endpoints) is grpc.StatusCode.NOT_FOUND, "the key is good, there is no such database"
    for name in ("endpoints.json", "admin.key"):
        assert stat.S_IMODE((up.data_dir / name).stat().st_mode) == 0o600
    assert (up.data_dir / "admin.key").read_text().strip() == endpoints["key"]
    assert endpoints["key"] not in up.said, "it is in a file, not on the screen"


def test_what_listens_where_is_said_once_in_a_line_each(up: Up) -> None:
    """Nothing stands before it but that something is being started, and nothing is wrapped."""
    said = up.said.splitlines()
    start = said[: said.index("ready, Ctrl-C stops") + 1]
    assert start[0] == f"starting Postgres and {len(SERVICES)} services in {up.data_dir} …"
    name_to_place = {"Postgres": f"127.0.0.1:{up.endpoints['embedded_postgres_port']}", **up.endpoints["addresses"]}
    assert [line.split()[:2] for line in start[1 : 1 + len(name_to_place)]] == [list(x) for x in name_to_place.items()]
    for name, place in name_to_place.items():
        assert sum(place in line for line in said) == 1, name
    for place in up.endpoints["metrics_addresses"].values():
        assert sum(place in line for line in said) == 1
    assert start[-3:-1] == [
        f"addresses, admin key and Postgres URL: {up.data_dir / 'endpoints.json'}",
        f"logs: {up.data_dir / 'logs'}",
    ]
    assert len(start) == 1 + len(name_to_place) + 3, "and no more"
    assert "made a key" in (up.data_dir / "logs" / "up.log").read_text(), "how it went is in the log"


def test_a_second_up_on_the_folder_is_refused(up: Up) -> None:
    refused = run("up", "--data-dir", str(up.data_dir))
    assert refused.returncode == 1
    assert f"runs in {up.data_dir} already (process {up.process.pid})" in refused.stderr
    assert probe(up.endpoints["addresses"]["ingest"], 2.0) == "SERVING", "the first is not disturbed"


def test_everything_listens_on_loopback_only(up: Up) -> None:
    listening = []
    for process in [psutil.Process(up.process.pid), *up.descendants()]:
        # Workers of Postgres come and go; who has gone listens nowhere.
        with contextlib.suppress(psutil.NoSuchProcess):
            listening += [
                connection.laddr.ip.removeprefix("::ffff:")
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
    assert len(listening) >= len(PORT_NAMES)
    assert set(listening) == {"127.0.0.1"}


def test_a_service_that_dies_is_started_again_and_that_is_said(up: Up) -> None:
    next(p for p in up.descendants() if "anabranch_snapshot" in p.cmdline()).kill()
    up.wait_said("snapshot was ended by SIGKILL; starting it again", 20)
    up.wait_said("snapshot was started again", 20)
    wait_serving(up)
    assert "snapshot was started again" in (up.data_dir / "logs" / "up.log").read_text()


def test_a_postgres_that_dies_is_started_again_and_that_is_said(up: Up) -> None:
    next(p for p in up.descendants() if p.name() == "postgres" and p.ppid() == up.process.pid).kill()
    up.wait_said("Postgres had died and was started again", 60)
    wait_serving(up)
    assert describe(up.endpoints) is grpc.StatusCode.NOT_FOUND


def wait_serving(up: Up) -> None:
    deadline = time.monotonic() + 60
    while {probe(address, 2.0) for address in up.endpoints["addresses"].values()} != {"SERVING"}:
        assert time.monotonic() < deadline, up.said


def test_keys_are_made_listed_and_revoked_and_status_tells(up: Up) -> None:
    where = ("--data-dir", str(up.data_dir))
    unknown = run("key", "create", "gate-7", "--database", "flights", *where)
    assert unknown.returncode == 1
    assert "there is no database 'flights'" in unknown.stderr
    assert run("database", "create", "flights", "--schema", "public", *where).returncode == 0
    made = run("key", "create", "gate-7", "--database", "flights", "--expires-days", "3", *where)
    key = made.stdout.strip()
    assert re.fullmatch(r"ak_[0-9a-f]{16}_[0-9a-f]{64}", key)
    listed = {entry["subject"]: entry for entry in json.loads(run("key", "list", "--json", *where).stdout)}
    assert listed["admin"]["role"] == "admin"
    assert (listed["gate-7"]["role"], listed["gate-7"]["database"]) == ("device", "flights")
    assert listed["gate-7"]["expires_ms"] - listed["gate-7"]["created_ms"] == 3 * 86_400_000
    assert key.rpartition("_")[2] not in run("key", "list", *where).stdout
    assert run("key", "revoke", listed["gate-7"]["id"], *where).returncode == 0
    assert run("key", "revoke", key, *where).returncode == 1, "it was revoked before"
    status = json.loads(run("status", "--json", *where).stdout)
    assert {service["state"] for service in status["services"].values()} == {"SERVING"}
    (database,) = status["databases"]
    assert (database["name"], database["head"], database["ready"], database["nodes"]) == ("flights", 0, 0, [])
    text = run("status", *where).stdout
    assert "flights" in text
    assert "SERVING" in text


def test_groups_are_committed_as_no_superuser(up: Up) -> None:
    rig = ResolverRig(up.endpoints["postgres_url"], "create table todo (id text primary key)", {"todo": None})
    rig.sql(HOSTILE)
    rig.sql("create role mallory; alter function app.steal() owner to mallory; alter table app.todo owner to mallory")
    made = rig.node("a").insert("todo", {"id": "1"})
    until(lambda: rig.outcome(made) != "PENDING")
    assert rig.outcome(made) == ["APPLIED"]
    assert {got for _, got in rig.sql("select what, got from app.loot")} == {"refused"}
    rig.close()


def test_the_folder_keeps_everything_whatever_ends_it(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with running(data_dir) as up:
        first = up.endpoints
        assert up.stop(signal.SIGTERM) == 0
        assert "stopped" in up.said
    assert run("status", "--data-dir", str(data_dir)).returncode == 1, "Postgres is gone with it"
    with running(data_dir) as up:
        assert up.endpoints == {**first, "pid": up.process.pid}, "same key, same ports"
        family = up.descendants()
        assert len(family) > len(SERVICES)
        up.process.kill()
        up.process.wait(10)
        _, alive = psutil.wait_procs(family, timeout=30)
        assert not alive, "nothing outlives an up that is killed"
    with running(data_dir) as up:
        assert up.endpoints["key"] == first["key"]
        assert describe(up.endpoints) is grpc.StatusCode.NOT_FOUND


def test_ports_and_postgres_are_those_asked_for(tmp_path: Path, database_url: str) -> None:
    base = free_base()
    environment = {"ANABRANCH_POSTGRES_URL": database_url}
    with running(tmp_path / "data", "--port-base", str(base), environment=environment) as up:
        ports = [int(address.rpartition(":")[2]) for address in up.endpoints["addresses"].values()]
        assert ports == list(range(base, base + len(SERVICES)))
        assert up.endpoints["postgres_url"] == database_url
        assert not (tmp_path / "data" / "postgres").exists()
        assert describe(up.endpoints) is grpc.StatusCode.NOT_FOUND
        refused = run("up", "--data-dir", str(tmp_path / "other"), "--port-base", str(base))
        assert refused.returncode == 1
        assert f"in use by another process: port {base} (ingest)" in refused.stderr


def test_a_postgres_that_is_not_there_is_told_in_a_line(tmp_path: Path) -> None:
    failed = Up(tmp_path / "data", environment={"ANABRANCH_POSTGRES_URL": "postgresql://127.0.0.1:9/x"})
    assert failed.process.wait(60) == 1
    failed.wait_said("failed: ", 5)
    assert "Traceback" not in failed.said


def free_base() -> int:
    """A port that, with those after it, is free now."""
    for _ in range(50):
        base = free_port()
        if all(is_free(base + offset) for offset in range(len(PORT_NAMES))):
            return base
    raise AssertionError("no free ports in a row")


def test_commands_say_where_they_look(tmp_path: Path) -> None:
    told = run("status", "--data-dir", str(tmp_path))
    assert (told.returncode, told.stdout) == (1, "")
    assert f"{tmp_path}/endpoints.json does not exist" in told.stderr
    (tmp_path / "endpoints.json").write_text("{}")
    told = run("status", "--data-dir", str(tmp_path))
    assert (told.returncode, told.stdout) == (1, "")
    assert "endpoints.json is not what `anabranch up` writes" in told.stderr
    told = run("up", "--data-dir", str(tmp_path / "endpoints.json" / "within"))
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == f"anabranch: {tmp_path}/endpoints.json/within can't be made: Not a directory\n"
    told = run("key", "list", "--postgres-url", "postgresql://127.0.0.1:9/x")
    assert told.returncode == 1
    assert told.stderr.startswith("anabranch: Postgres is not available")
