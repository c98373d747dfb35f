"""A device killed with SIGKILL at any moment loses nothing, repeats nothing, and goes on (promises 3, 5 and 6).

ANABRANCH_TEST_KILLS sets how often; the default keeps the run short.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anabranch import faults
from anabranch.client import SyncedDb
from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.remote import remote_of
from anabranch.testkit.stack import Stack

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("ANABRANCH_TEST_KILLS", "12"))
PROCESS = Path(__file__).with_name("device_process.py")


@pytest.fixture(scope="module")
def stack(databases: TestDatabases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    url = databases.fresh()
    with Stack(url, folder=tmp_path_factory.mktemp("stack")) as running:
        yield running
    databases.release(url)


def make_database(stack: Stack, name: str, rows: int) -> None:
    with connect(stack.database_url, application_name="test", autocommit=True) as conn:
        conn.execute(f'create schema "{name}"'.encode())
        for table in ("todo", "note"):
            conn.execute(f'create table "{name}".{table} (id text primary key, body text)'.encode())
            conn.execute(
                f"""insert into "{name}".{table}
                    select 'k' || lpad(g::text, 2, '0'), 'body ' || g from generate_series(0, {rows - 1}) g""".encode()
            )
        registration.create_database(conn, name, name)
        for table in ("todo", "note"):
            registration.add_table(conn, name, table)


class Process:
    """A device process, and what it has said. Its output is read by a thread, so that it never waits."""

    def __init__(self, stack: Stack, name: str, file: Path, key: str, seed: int, fault_file: Path) -> None:
        a = stack.addresses
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [
                *(sys.executable, str(PROCESS), str(file), name),
                *(a["ingest"], a["snapshot"], a["conflict-resolver"], key, str(seed)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "ANABRANCH_FAULT_FILE": str(fault_file)},
        )
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.strip())
                self._changed.notify_all()

    def wait_for(self, word: str, count: int, timeout_s: float = 30.0) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: sum(x.startswith(word) for x in self.lines) >= count, timeout_s)
        assert came, f"no {word!r} came from the device: {self.lines[-5:]}"

    def made(self) -> set[str]:
        return {line.split()[1] for line in self.lines if line.startswith("made ")}

    def end(self) -> None:
        """Wait for its end, however it comes."""
        self.process.wait(30)
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def check_end(stack: Stack, name: str, file: Path, key: str, made: set[str]) -> None:
    device = SyncedDb(file, remote_of(stack.addresses, key), name)
    device.start(background=False)
    try:
        for _ in range(3):
            assert device.sync()
        assert device.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert (device.status().queued, device.status().disagreeing) == (0, ())
        dead = {letter.id for letter in device.dead_letters()}
        with connect(stack.database_url, application_name="test", autocommit=True) as conn:
            for table in ("todo", "note"):
                theirs = conn.execute(f'select id, body from "{name}".{table} order by id collate "C"'.encode())
                ours = device.execute(f"SELECT id, body FROM {table} ORDER BY id")
                assert ours.fetchall() == theirs.fetchall()
            logged: list[Any] = conn.execute(
                """select l.batch_id, count(distinct l.position) from anabranch.log l
                   join anabranch.databases d on d.id = l.database_id where d.name = %s group by 1""",
                (name,),
            ).fetchall()
        assert all(times == 1 for _, times in logged), "a batch stands in the log twice"
        in_log = {batch for batch, _ in logged}
        assert not in_log & dead
        lost = made - in_log - dead
        assert not lost, f"made, and neither in the log nor in the dead queue: {lost}"
        kept = device.execute("SELECT count(*) FROM _db_base").fetchone()
        assert kept == (0,)
    finally:
        device.close()


def test_killed_at_random_moments(stack: Stack, tmp_path: Path) -> None:
    make_database(stack, "random_kills", 40)
    key = stack.new_key("device", database="random_kills")
    chance = random.Random(7)
    made: set[str] = set()
    moments: list[float] = []
    for i in range(KILLS):
        process = Process(stack, "random_kills", tmp_path / "d.db", key, i, tmp_path / "faults")
        if i >= 2:
            # The first two may die in the middle of the first pull.
            process.wait_for("started", 1)
        moment = chance.uniform(0.0, 1.2) if i >= 2 else chance.uniform(0.4, 0.9)
        time.sleep(moment)
        process.process.kill()
        process.end()
        made |= process.made()
        moments.append(round(moment, 2))
    print(f"killed a device {KILLS} times, after {moments} s; it had made {len(made)} batches")
    assert len(made) > KILLS
    check_end(stack, "random_kills", tmp_path / "d.db", key, made)


@pytest.mark.parametrize("point", ["after_local_commit", "before_apply", "after_apply"])
def test_killed_at_a_fault_point(stack: Stack, tmp_path: Path, point: str) -> None:
    name = f"at_{point}"
    make_database(stack, name, 40)
    key = stack.new_key("device", database=name)
    fault_file = tmp_path / "faults"
    made: set[str] = set()
    for seed in range(2):
        process = Process(stack, name, tmp_path / "d.db", key, seed, fault_file)
        process.wait_for("round", 1)
        faults.arm(fault_file, point)
        process.end()
        assert process.process.returncode == -9
        assert faults.armed(fault_file) == []
        made |= process.made()
    check_end(stack, name, tmp_path / "d.db", key, made)
