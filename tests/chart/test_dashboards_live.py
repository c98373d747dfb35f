"""Every panel's query, run by a real Prometheus that reads a running stack under load, gives data."""

from __future__ import annotations

import json
import math
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from tests.tools import load_tool

from anabranch.client import SyncedDb
from anabranch.ports import free_port
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.remote import remote_of
from anabranch.testkit.stack import Stack

from .conftest import CHART

DATABASE = "watched"
INTERVAL = "1s"
WINDOW = "10s"
NOT_UNDER_THIS_LOAD = frozenset(
    {
        # A job's metrics, which are there while it runs; this stack has none.
        "anabranch_compacted_changes_total",
        "anabranch_compaction_bytes_total",
        "anabranch_compaction_files_total",
        "anabranch_compaction_lag_seconds",
        # Looked at where there is a lake.
        "anabranch_base_broken",
    }
)
LOAD_TIMEOUT_S = 60.0


@pytest.fixture
def prometheus() -> Path:
    """A real Prometheus, where it is; a skip that says why, where it isn't."""
    tools = load_tool("cluster_tools")
    program: Path | None = tools.find("prometheus")
    if program is None:
        pytest.skip(tools.missing("prometheus"))
    return program


@contextmanager
def _scraping(program: Path, stack: Stack, folder: Path) -> Iterator[str]:
    """Prometheus on the stack's endpoints; gives its address."""
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [address]}]}
        for name, address in stack.metrics_addresses.items()
    ]
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": INTERVAL}, "scrape_configs": jobs}))
    address = f"127.0.0.1:{free_port()}"
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([str(program), *arguments], stdout=log, stderr=log)
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(30)


def _query(api: str, expression: str) -> list[dict[str, Any]]:
    url = f"{api}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        content = json.load(answer)
    assert content["status"] == "success"
    found: list[dict[str, Any]] = content["data"]["result"]
    return [one for one in found if not math.isnan(float(one["value"][1]))]


def _panels() -> list[tuple[str, str]]:
    found = []
    for file in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel.get("targets", []):
                expression = target["expr"].replace("$__rate_interval", WINDOW).replace("$database", DATABASE)
                found.append((f"{file.stem}: {panel['title']}", expression))
    return found


def _device(stack: Stack, file: Path, key: str) -> SyncedDb:
    return SyncedDb(file, remote=remote_of(stack.addresses, key), db_name=DATABASE, node_name=file.stem)


def _write_and_collide(stack: Stack, folder: Path, key: str, stop: threading.Event) -> None:
    """Load until told to stop: two devices that insert, change each other's rows, and insert what is refused."""
    devices = [_device(stack, folder / f"{name}.db", key) for name in ("a", "b")]
    a, b = devices
    try:
        for device in devices:
            device.start(background=False)
        number = 0
        while not stop.is_set():
            number += 1
            row = f"row-{number}"
            a.table("item").insert({"id": row, "body": "a", "amount": 1})
            a.sync()
            b.sync()
            a.table("item").update({"id": row, "body": "from a"})
            b.table("item").update({"id": row, "body": "from b"})
            b.table("item").insert({"id": f"bad-{number}", "body": "b", "amount": -1})
            a.sync()
            b.sync()
    finally:
        for device in devices:
            device.close()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_panel_shows_data_under_load(prometheus: Path, databases: TestDatabases, tmp_path: Path) -> None:
    url = databases.fresh()
    with Stack(url, folder=tmp_path, environment={"ANABRANCH_SWEEP_INTERVAL_MS": "1000"}) as stack:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("create schema watched")
            conn.execute("create table watched.item (id text primary key, body text, amount int check (amount > 0))")
            conn.execute("insert into watched.item select 'first-' || n, 'x', 1 from generate_series(1, 50) n")
        with connect(url, application_name="test", autocommit=True) as session:
            create_database(session, DATABASE, "watched")
            add_table(session, DATABASE, "item")
        key = stack.new_key("watcher", database=DATABASE)
        with _scraping(prometheus, stack, tmp_path) as api, _load(stack, tmp_path, key):
            lacking = _wait_for_data(api)
    assert not lacking, "\n".join(f"{where}: {expression}" for where, expression in lacking)
    databases.release(url)


@contextmanager
def _load(stack: Stack, folder: Path, key: str) -> Iterator[None]:
    """The devices' load, and one subscriber that follows; a failure in either fails the test."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            _write_and_collide(stack, folder, key, stop)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    follower = _device(stack, folder / "follower.db", stack.new_key("follower", database=DATABASE))
    try:
        follower.start()
        yield
    finally:
        stop.set()
        thread.join(60)
        follower.close()
    if failures:
        raise failures[0]


def _wait_for_data(api: str) -> list[tuple[str, str]]:
    """Ask until every panel has data; gives those that had none in time."""
    deadline = time.monotonic() + LOAD_TIMEOUT_S
    wanted = [entry for entry in _panels() if not any(name in entry[1] for name in NOT_UNDER_THIS_LOAD)]
    others = [entry for entry in _panels() if entry not in wanted]
    assert len(wanted) > 40
    assert len(others) == len(NOT_UNDER_THIS_LOAD)
    while True:
        try:
            wanted = [entry for entry in wanted if not _query(api, entry[1])]
        except OSError:
            if time.monotonic() > deadline:
                raise
        else:
            while others:
                _query(api, others.pop()[1])  # Well-formed, even if there is nothing to show.
        if not wanted or time.monotonic() > deadline:
            return wanted
        time.sleep(1.0)
