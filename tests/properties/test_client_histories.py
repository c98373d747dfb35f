"""The device's file against the rules themselves: random histories of two devices and a server in memory.

After every step of every history: what is shown is the base with the pending changes on it, the kept sums are those of
the rows, and only rows that a batch of the queue touches have a base image. At the end, with everybody online: both
devices show exactly the server's rows, both queues are empty, and every batch ever made is in the log or in a dead
queue (promises 5 and 6, and the overlay of the client).
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.canonical import table_sum
from anabranch.client import CallFailed, Change, RowExists, RowMissing, SyncedDb
from anabranch.client import pendings as pendings_module
from anabranch.client.payload import PayloadCache
from anabranch.client.pendings import Pendings
from anabranch.client.rebase import overlaid, read_bases
from anabranch.client.sums import base_rows
from anabranch.merge import Policy
from anabranch.schema import Column, Kind, Table
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable

TABLES = [
    Table(
        "todo",
        (
            Column("id", Kind.STRING, "text"),
            Column("title", Kind.STRING, "text"),
            Column("n", Kind.INT64, "bigint", policy="counter"),
            Column("seen", Kind.INT64, "bigint", policy="max"),
        ),
        ("id",),
    ),
    Table("note", (Column("id", Kind.STRING, "text"), Column("body", Kind.STRING, "text")), ("id",)),
]
COLUMNS: dict[str, dict[str, Any]] = {
    "todo": {"id": None, "title": None, "n": None, "seen": None},
    "note": {"id": None, "body": None},
}
POLICY = {"todo": {"n": "counter", "seen": "max"}, "note": {}}

keys = st.sampled_from(["x", "y", "z"])
values = st.integers(-3, 9)
changes = st.tuples(st.sampled_from(["todo", "note"]), st.sampled_from(["insert", "update", "delete"]), keys, values)
write = st.tuples(st.just("write"), st.integers(0, 1), st.lists(changes, min_size=1, max_size=3))
other = st.tuples(
    st.sampled_from(["flush", "read", "lose", "offline", "online", "cut", "behind", "reopen"]),
    st.integers(0, 1),
    st.integers(1, 3),
)
histories = st.lists(write | other, min_size=1, max_size=14)


def the_server(order: str, delete: str) -> MemoryServer:
    policies = {name: Policy(order=order, delete=delete, columns=columns) for name, columns in POLICY.items()}
    server = MemoryServer(
        {name: MemoryTable(columns) for name, columns in COLUMNS.items()}, policies["note"], park_ms=50
    )
    server.policy_of = lambda table: policies[table]
    server.preset("todo", "x", {"id": "x", "title": "there before", "n": 1, "seen": 1})
    server.preset("note", "y", {"id": "y", "body": "there before"})
    return server


class World:
    """Two devices, each with its own way to the one server."""

    def __init__(self, folder: Path, order: str, delete: str) -> None:
        self.now = 1_700_000_000_000
        self.server = the_server(order, delete)
        self.server.head = self.now - 1
        self.remotes = [MemoryRemote(self.server, TABLES, lambda: self.now) for _ in range(2)]
        self.remotes[1]._sums = self.remotes[0]._sums
        self.paths = [folder / "a.db", folder / "b.db"]
        self.devices = [self.open(0), self.open(1)]
        self.made: list[str] = []
        self.told: list[list[Change]] = [[], []]
        self.mirrors: list[dict[tuple[str, str], Any]] = [{}, {}]
        for i, device in enumerate(self.devices):
            device.start(background=False)
            self.mirrors[i] = shown(device)

    def open(self, i: int) -> SyncedDb:
        device = SyncedDb(self.paths[i], self.remotes[i], "d", f"node {i}", now_ms=lambda: self.now)
        device.on_change(lambda change: self.mirror(i, change))
        return device

    def mirror(self, i: int, change: Change) -> None:
        if not hasattr(self, "mirrors"):
            return
        row = (change.table, change.key[0])
        if change.type == "delete":
            assert self.mirrors[i].pop(row, None) is not None, f"deleted what was not there: {change}"
        elif change.type == "insert":
            assert row not in self.mirrors[i], f"inserted what was there: {change}"
            self.mirrors[i][row] = dict(change.row or {})
        else:
            assert change.columns, f"nothing changed: {change}"
            assert row in self.mirrors[i], f"updated what was not there: {change}"
            self.mirrors[i][row] = dict(change.row or {})

    def step(self, action: str, i: int, argument: Any) -> None:
        self.now += 7
        device, remote = self.devices[i], self.remotes[i]
        if action == "write":
            self.write(device, argument)
        elif action in ("flush", "read"):
            try:
                device.flush(0.05) if action == "flush" else device.read()
            except CallFailed as error:
                if not error.again:
                    raise
        elif action == "lose":
            remote.lose_answers = argument
        elif action == "offline":
            remote.offline = True
        elif action == "online":
            remote.offline = False
        elif action == "cut":
            remote.cut_pull_after = argument
        elif action == "behind":
            remote.floor = self.server.head
        else:
            device.close()
            self.devices[i] = self.open(i)
            self.devices[i].start(background=False)

    def write(self, device: SyncedDb, wanted: list[tuple[str, str, str, int]]) -> None:
        with device.batch() as batch:
            for table, kind, key, value in wanted:
                columns = {"title": str(value), "n": value, "seen": value} if table == "todo" else {"body": str(value)}
                synced = device.table(table)
                try:
                    if kind == "insert":
                        synced.insert({"id": key, **columns})
                    elif kind == "update":
                        dropped = list(columns)[value % len(columns)]
                        synced.update({"id": key, **{c: v for c, v in columns.items() if c == dropped}})
                    else:
                        synced.delete(key)
                except (RowMissing, RowExists):
                    pass  # What is shown decides whether the change can be made; the batch goes on without it.
        if batch.id:
            self.made.append(batch.id)

    def settle(self) -> None:
        for remote in self.remotes:
            remote.offline, remote.lose_answers, remote.cut_pull_after = False, 0, None
        for _ in range(4):
            for device in self.devices:
                self.now += 60
                device.flush(0.05)
                self.now += 60
                self.remotes[0].commit()
                device.read()


def shown(device: SyncedDb) -> dict[tuple[str, str], Any]:
    out: dict[tuple[str, str], Any] = {}
    for table, columns in COLUMNS.items():
        for row in device.execute(f'SELECT {", ".join(columns)} FROM "{table}"'):
            out[table, row[0]] = dict(zip(columns, row, strict=True))
    return out


def check_invariants(device: SyncedDb) -> None:
    pendings = Pendings(PayloadCache(), lambda: 1)
    with device._file.transaction() as tx, pytest.MonkeyPatch.context() as patch:
        # Every change itself, one after the other.
        patch.setattr(pendings_module, "_MANY", 2**31)
        for table in tx.tables.values():
            kept = {k for (k,) in tx.conn.execute("SELECT key FROM _db_base WHERE tbl = ?", (table.name,))}
            touched = {k for (k,) in tx.conn.execute("SELECT key FROM _db_pending_rows WHERE tbl = ?", (table.name,))}
            assert kept == touched
            bases = read_bases(tx.conn, table, kept)
            parts = pendings.load(tx, table.name, kept)
            for key in kept:
                now = overlaid(table, bases[key], parts[key])
                rows = table.read(tx.conn, [(key,)])
                assert rows == ([] if now is None else [table.codec.store(now)])
            count, total = table_sum(table.encoder, base_rows(tx.conn, table))
            stage, sum_count, digest = tx.conn.execute(
                "SELECT stage, count, hash FROM _db_tables WHERE name = ?", (table.name,)
            ).fetchone()
            if stage != "new":
                assert (sum_count, digest) == (count, total.to_bytes(16, "big"))


@pytest.mark.parametrize("many", [16, 1], ids=["as it is", "every row squeezed"])
@pytest.mark.parametrize("order", ["server", "edit"])
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories, delete=st.sampled_from(["rejects", "wins"]))
def test_every_history_ends_with_equal_rows_and_nothing_lost(
    order: str, many: int, history: list[tuple[str, int, Any]], delete: str
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pendings_module, "_MANY", many)
        world = World(Path(folder), order, delete)
        try:
            for action, i, argument in history:
                world.step(action, i, argument)
                check_invariants(world.devices[i])
                assert world.mirrors[i] == shown(world.devices[i])
            world.settle()
            live = {key: dict(row) for key, row in world.server.live().items()}
            in_log = {logged.id for logged in world.server.log}
            dead = set()
            for i, device in enumerate(world.devices):
                check_invariants(device)
                assert shown(device) == live
                assert world.mirrors[i] == live
                status = device.status()
                assert (status.queued, status.disagreeing) == (0, ())
                assert device.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
                dead |= {letter.id for letter in device.dead_letters()}
            assert set(world.made) == in_log | dead
            assert not in_log & dead
        finally:
            for device in world.devices:
                device.close()


def counted(function: Callable[..., Any], times: list[int]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        times[0] += 1
        return function(*arguments)

    return call


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_are_written_often_show_the_same_squeezed(seed: int, tmp_path: Path) -> None:
    """Long histories of few rows, of which some batches go while others stay."""
    chance = random.Random(seed)
    world = World(tmp_path, "server", "rejects")
    squeezed = [0]

    def write(i: int) -> None:
        table, key = chance.choice([("todo", "x"), ("note", "y")])
        kind = chance.choice(["update"] * 15 + ["delete", "insert"])
        # Of "todo" the title or the counter; the third column is one that is not squeezed.
        value = chance.choice([v for v in range(-3, 9) if table == "note" or v % 3 != 2 or chance.random() < 0.02])
        world.step("write", i, [(table, kind, key, value)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pendings_module, "_MANY", 1)
        for device in world.devices:
            pendings = device._sender._pendings
            patch.setattr(pendings, "_kept_parts", counted(pendings._kept_parts, squeezed))
        for _ in range(120):
            i = chance.randint(0, 1)
            action = chance.choice(["write"] * 5 + ["read", "read", "some", "flush", "lose"])
            if action == "write":
                write(i)
            elif action == "some":
                device = world.devices[i]
                unsent = device.execute(
                    "SELECT id FROM _db_mutations_queue WHERE server_timestamp_ms IS NULL ORDER BY id LIMIT ?",
                    (chance.randint(1, 3),),
                )
                with contextlib.suppress(CallFailed):
                    device._sender.flush(0.05, only=[batch_id for (batch_id,) in unsent.fetchall()])
            else:
                world.step(action, i, 1)
            check_invariants(world.devices[i])
            assert world.mirrors[i] == shown(world.devices[i])
        world.settle()
    assert squeezed[0] > 5, "rows were squeezed, and more than once"
    live = {key: dict(row) for key, row in world.server.live().items()}
    for device in world.devices:
        check_invariants(device)
        assert shown(device) == live
        device.close()


def test_the_check_of_invariants_can_fail(tmp_path: Path) -> None:
    world = World(tmp_path, "server", "rejects")
    world.devices[0].table("todo").update({"id": "x", "title": "mine"})
    check_invariants(world.devices[0])
    with sqlite3.connect(world.paths[0]) as conn:
        conn.execute("UPDATE todo SET title = 'broken'")
    with pytest.raises(AssertionError):
        check_invariants(world.devices[0])
    for device in world.devices:
        device.close()
