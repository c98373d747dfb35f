"""A great many rows changed at once, by a device's delete that cascades and by one transaction of SQL, go through every
part within bounded memory, and are one thing to every reader.

What each process grew to is printed (``-s``); the figures of a run are in the resolver's README.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import pytest

from anabranch.client import CallFailed, SyncedDb
from anabranch.store.catalog import databases as catalog
from anabranch.store.catalog import registration
from anabranch.store.catalog.sums import scan_sum, sum_to_bytes
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.process_memory import KNOWN, forget_peak, has_bytes, peak_bytes
from anabranch.testkit.remote import remote_of
from anabranch.testkit.stack import Stack

pytestmark = pytest.mark.slow

MIB = 2**20
TABLES = """
create schema large;
create table large.list (id text primary key, name text);
create table large.todo (id text primary key, list_id text references large.list (id) on delete cascade, title text);
create table large.note (id text primary key, todo_id text references large.todo (id) on delete cascade, body text);
create table large.pin (id text primary key, note_id text references large.note (id) on delete set null, label text);
create index on large.todo (list_id);
create index on large.note (todo_id);
create index on large.pin (note_id)
"""
NAMES = ("list", "todo", "note", "pin")
FILL = (
    "insert into large.list values ('l', 'large'), ('m', 'other')",
    "insert into large.todo select 't' || i, 'l', 'a title of ' || i from generate_series(1, %s) i",
    "insert into large.note select 'n' || i, 't' || i, 'a note about ' || i from generate_series(1, %s) i",
    "insert into large.pin select 'p' || i, 'n' || i, 'a pin on ' || i from generate_series(1, %s) i",
)
DEVICE = Path(__file__).with_name("large_device.py")
SERVICES = ("ingest", "conflict-resolver", "snapshot")


class Large:
    """A stack with ``rows`` rows below one row, and a device that follows."""

    def __init__(self, url: str, folder: Path, rows: int) -> None:
        self.each = rows // 3
        self.full = 2 + 2 * self.each
        """Rows that the device counts: the pins are there in any case."""
        self.folder = folder
        self.conn: Session = connect(url, application_name="a backend", autocommit=True)
        # A busy machine is no reason to give up: how long it takes is told, and not judged.
        self.stack = Stack(url, folder=folder, environment={"ANABRANCH_GROUP_ALONE_TIMEOUT_MS": "1800000"})
        self.patience_s = 120 + rows / 500
        self.conn.execute(f"set statement_timeout = {round(self.patience_s * 1000)}".encode())
        self.device: subprocess.Popen[str] | None = None
        self.answers: Queue[Any] = Queue()

    def start(self) -> None:
        """Rows that no log knows, then the services and the device, which pulls them."""
        self.conn.execute(TABLES.encode())
        self.fill()
        registration.create_database(self.conn, "large", "large")
        for name in NAMES:
            registration.add_table(self.conn, "large", name)
        addresses = [self.stack.addresses[name] for name in ("ingest", "snapshot", "conflict-resolver")]
        arguments = [sys.executable, str(DEVICE), str(self.folder / "a.db"), "large", *addresses, self.stack.key]
        self.device = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._listen, args=[self.device], daemon=True).start()
        assert self.answer() == "ready"

    def _listen(self, device: subprocess.Popen[str]) -> None:
        assert device.stdout is not None
        for line in device.stdout:
            self.answers.put(json.loads(line))

    def ask(self, what: object) -> None:
        """Say a line to the device."""
        assert self.device is not None
        assert self.device.stdin is not None
        self.device.stdin.write(f"{what}\n")
        self.device.stdin.flush()

    def fill(self) -> None:
        """All rows, in one transaction. Afterwards Postgres is told: this session has plans of cascades for tables that
        were small."""
        with self.conn.transaction():
            for statement in FILL:
                self.conn.execute(statement.encode(), [self.each] if "%s" in statement else None)
        self.conn.execute(f"analyze {', '.join(f'large.{name}' for name in NAMES)}".encode())

    def answer(self) -> Any:
        """The next message of the device."""
        try:
            return self.answers.get(timeout=self.patience_s)
        except Empty:
            raise AssertionError("the device says nothing") from None

    def watch(self, what: str, there: int, wanted: int, act: Any) -> dict[str, float]:
        """Have something happen; until the device has ``wanted`` rows it sees those that were ``there`` and nothing in
        between. Gives by how many MiB each process grew at most."""
        before = {}
        pids = {name: self.stack.pid(name) or 0 for name in SERVICES}
        for name, pid in pids.items():
            forget_peak(pid)
            before[name] = has_bytes(pid)
        self.ask(wanted)
        assert self.answer() == "watching"
        started = time.monotonic()
        act()
        seen, grown = self.answer()
        took_s = time.monotonic() - started
        assert set(seen) <= {there}, "a part of it was seen"
        figures = {name: (peak_bytes(pid) - before[name]) / MIB for name, pid in pids.items()}
        figures["device"] = grown / MIB
        told = ", ".join(f"{name} {mib:.0f}" for name, mib in figures.items())
        print(f"{3 * self.each:,} rows, {what}: {took_s:.1f} s, grown by MiB: {told}")
        return figures

    def check(self, changes: int) -> None:
        """The device's sums are those of the server's rows, and each of so many large ``changes`` was one group."""
        self.ask("sums")
        sums, disagreeing = self.answer()
        database = catalog.load_database(self.conn, "large")
        for name, table in database.tables.items():
            with self.conn.transaction():
                count, total = scan_sum(self.conn, "large", table)
            assert sums[name] == [count, sum_to_bytes(total).hex()], name
        assert not disagreeing
        groups = self.conn.execute("select batches, changes from anabranch.groups order by position").fetchall()
        whole = 1 + 3 * self.each
        assert [batches for batches, logged in groups if logged >= whole] == [1] * changes
        assert self.conn.execute("select count(*) from anabranch.captured").fetchone() == (0,)

    def close(self) -> None:
        """End the device and the session."""
        if self.device is not None:
            assert self.device.stdin is not None
            self.device.stdin.close()
            try:
                self.device.wait(30)
            except subprocess.TimeoutExpired:
                self.device.kill()
                self.device.wait()
        self.conn.close()


@pytest.fixture
def large(request: pytest.FixtureRequest, databases: TestDatabases, tmp_path: Path) -> Iterator[Large]:
    """Of as many rows as the test asks for."""
    if not KNOWN:
        pytest.skip("what a process grows to is known on Linux only")
    url = databases.fresh()
    made = Large(url, tmp_path, request.param)
    try:
        with made.stack:
            made.start()
            yield made
    finally:
        made.close()
    databases.release(url)


MANY = int(os.environ.get("ANABRANCH_TEST_ROWS", "1000000"))
"""A million take a quarter of an hour; fewer are for a look in between."""
SIZES = pytest.mark.parametrize(
    ("large", "most_mib"),
    [
        pytest.param(50_000, 64, marks=pytest.mark.timeout(600), id="50,000"),
        pytest.param(MANY, 256, marks=[pytest.mark.long, pytest.mark.timeout(5_400)], id=f"{MANY:,}"),
    ],
    indirect=["large"],
)


@SIZES
def test_many_rows_at_once_pass_through_bounded_memory_as_one_thing(large: Large, most_mib: float) -> None:
    remote = remote_of(large.stack.addresses, large.stack.new_key("another", database="large"))
    with SyncedDb(large.folder / "b.db", remote, "large") as other:

        def deletes() -> None:
            batch_id = other.table("list").delete("l")
            end = time.monotonic() + large.patience_s
            while other.status().unsent:
                assert time.monotonic() < end, "the batch has no verdict"
                try:
                    other.flush(10.0)
                except CallFailed as error:
                    # No call waits for as long as this takes; the batch is asked for again, or sent again.
                    if not error.again:
                        raise
            verdict = other.verdict(batch_id)
            assert verdict is None or verdict.status == "APPLIED", verdict

        figures = [large.watch("deleted by a device", large.full, 1, deletes)]
    rest = b"delete from large.pin; delete from large.list"
    deleted = b"delete from large.list where id = 'l'"
    figures.append(large.watch("the rest deleted by SQL", 1, 0, lambda: large.conn.execute(rest)))
    figures.append(large.watch("inserted by SQL", 0, large.full, large.fill))
    figures.append(large.watch("deleted by SQL", large.full, 1, lambda: large.conn.execute(deleted)))
    large.check(3)
    for grown in figures:
        assert all(mib < most_mib for mib in grown.values()), grown


@SIZES
def test_tables_that_are_truncated_are_empty_on_a_device_at_once(large: Large, most_mib: float) -> None:
    everything = b"truncate large.list, large.todo, large.note, large.pin"
    grown = large.watch("truncated", large.full, 0, lambda: large.conn.execute(everything))
    large.check(1)
    assert all(mib < most_mib for mib in grown.values()), grown
