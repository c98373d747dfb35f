"""The device's file against the rules themselves: random histories of two devices, a server in memory, and somebody who
writes there by plain SQL.

The devices of some histories choose their tables anew now and then: each has those that it has chosen, whole, and
nothing of the others; what it had queued is sent and decided all the same.

After every step of every history: what is shown is the base with the pending changes on it, the kept sums are those of
the rows, and only rows that a batch of the queue touches have a base image. At the end, with everybody online: both
devices show exactly the server's rows, both queues are empty, and every batch ever made is in the log or in a dead
queue (promises 5 and 6, and the overlay of the client).
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.client import CallFailed, Change, NotChosen, NotReady, RowExists, RowMissing, SyncedDb
from anabranch.client.overlay import pendings as pendings_module
from anabranch.client.overlay.pendings import Pendings
from anabranch.client.overlay.rebase import overlaid, read_bases
from anabranch.client.reading.sums import base_rows
from anabranch.client.writes.payload import PayloadCache
from anabranch.merge import SERVER_NODE, MutationType, Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.testkit.own_folder import MEMORY
from anabranch.testkit.torture.functions import FUNCTIONS
from anabranch.testkit.unseen import write_unseen
from anabranch.values import Column, Kind, Table
from anabranch.values.canonical import table_sum

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
POLICY: dict[str, dict[str, str]] = {"todo": {"n": "counter", "seen": "max"}, "note": {}}
TITLES = ["lww", "reject", *(f"function:{name}" for name in FUNCTIONS)]
UNIQUE = ("body",)
"""Of notes: what constraints refuse."""

"""Where a file's commits cost no disk: what survives a crash is for other tests."""
FEW_EXAMPLES, EXAMPLES, MANY_EXAMPLES = 12, 300, 2_500
WANTED = (
    *("APPLIED", "MERGED", "OVERWROTE", "ROW_EXISTS", "ROW_DELETED", "CONCURRENT_UPDATE"),
    *("by SQL", "dead letters", "behind the floor"),
)
TITLE, ANOTHER_TITLE, N = 0, 3, 7
"""As the value of an update of ``todo``: by its remainder by 3, which column is set (`World.write`)."""
WITH_ALL_WANTED: list[tuple[str, int, Any]] = [
    ("write", 0, [("todo", "update", "x", TITLE)]),
    ("write", 1, [("todo", "update", "x", ANOTHER_TITLE)]),  # OVERWROTE
    ("write", 0, [("todo", "update", "x", N)]),
    ("write", 1, [("todo", "update", "x", N)]),  # MERGED
    ("flush", 0, 1),
    ("flush", 1, 1),
    ("write", 0, [("todo", "insert", "y", 1)]),  # APPLIED
    ("write", 1, [("todo", "insert", "y", 2)]),  # ROW_EXISTS
    ("flush", 0, 1),
    ("flush", 1, 1),
    ("read", 0, 1),
    ("read", 1, 1),
    ("write", 0, [("todo", "update", "x", TITLE)]),
    ("write", 1, [("todo", "delete", "x", 0)]),  # CONCURRENT_UPDATE where a delete is rejected
    ("write", 0, [("todo", "delete", "y", 0)]),
    ("write", 1, [("todo", "update", "y", TITLE)]),  # ROW_DELETED
    ("flush", 0, 1),
    ("flush", 1, 1),
    ("sql", 0, [("note", "insert", "z", 5)]),
    ("behind", 1, 1),
    ("read", 1, 1),
]
"""Which histories are drawn is chance, and in CI the same ones each time; this one is told in every test."""

keys = st.sampled_from(["x", "y", "z"])
values = st.sampled_from([-1, 0, 2, 5, 7])
changes = st.tuples(st.sampled_from(["todo", "note"]), st.sampled_from(["insert", "update", "delete"]), keys, values)
write = st.tuples(st.just("write"), st.integers(0, 1), st.lists(changes, min_size=1, max_size=3))
other = st.tuples(
    st.sampled_from(["flush", "read", "lose", "offline", "online", "cut", "behind", "reopen"]),
    st.integers(0, 1),
    st.integers(1, 3),
)
by_sql = st.tuples(st.just("sql"), st.just(0), st.lists(changes, min_size=1, max_size=3))
histories = st.lists(write | write | other | by_sql, min_size=5, max_size=14)
choose = st.tuples(
    st.just("choose"), st.integers(0, 1), st.sampled_from([("todo",), ("note",), ("todo", "note"), (), None])
)
histories_of_choices = st.lists(write | write | other | by_sql | choose | choose, min_size=6, max_size=16)


def the_server(order: str, delete: str, resurrect: bool, title: str) -> MemoryServer:
    columns = {**POLICY, "todo": {**POLICY["todo"], **({} if title == "lww" else {"title": title})}}
    policies = {name: Policy(order, resurrect, delete, found) for name, found in columns.items()}
    tables = {"todo": MemoryTable(COLUMNS["todo"]), "note": MemoryTable(COLUMNS["note"], unique=UNIQUE)}
    server = MemoryServer(tables, policies["note"], park_ms=50)
    server.policy_of = lambda table: policies[table]
    server.functions = FUNCTIONS
    server.preset("todo", "x", {"id": "x", "title": "there before", "n": 1, "seen": 1})
    server.preset("note", "y", {"id": "y", "body": "there before"})
    return server


class World:
    """Two devices, each with its own way to the one server."""

    def __init__(
        self, folder: Path, order: str, delete: str = "rejects", resurrect: bool = False, title: str = "lww"
    ) -> None:
        self.now = 1_700_000_000_000
        self.server = the_server(order, delete, resurrect, title)
        self.server.head = self.now - 1
        self.remotes = [MemoryRemote(self.server, TABLES, lambda: self.now) for _ in range(2)]
        self.remotes[1]._sums = self.remotes[0]._sums
        self.paths = [folder / "a.db", folder / "b.db"]
        self.chosen: list[tuple[str, ...] | None] = [None, None]
        self.devices = [self.open(0), self.open(1)]
        self.made: list[str] = []
        self.told: list[list[Change]] = [[], []]
        self.mirrors: list[dict[tuple[str, str], Any]] = [{}, {}]
        for i, device in enumerate(self.devices):
            device.start(background=False)
            self.mirrors[i] = shown(device)

    def open(self, i: int) -> SyncedDb:
        device = SyncedDb(
            self.paths[i], self.remotes[i], "d", f"node {i}", now_ms=lambda: self.now, tables=self.chosen[i]
        )
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
        elif action == "sql":
            self.remotes[0].write([by_sql_one(*change) for change in argument])
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
        elif action == "choose":
            self.chosen[i] = argument
            device.choose_tables(argument)
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
                except (RowMissing, RowExists, NotChosen, NotReady):
                    pass  # The rows shown decide whether the change can be made; the batch goes on without it.
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


def by_sql_one(table: str, kind: str, key: str, value: int) -> tuple[str, MutationType, str, dict[str, Any]]:
    columns: dict[str, Any] = (
        {"title": f"sql {value}", "n": value, "seen": value} if table == "todo" else {"body": str(value)}
    )
    if kind == "update" and table == "todo":
        columns = dict([list(columns.items())[value % 3]])
    if kind == "insert":
        columns["id"] = key
    return table, MutationType[kind.upper()], key, {} if kind == "delete" else columns


def shown(device: SyncedDb) -> dict[tuple[str, str], Any]:
    out: dict[tuple[str, str], Any] = {}
    for table in device._file.tables():
        columns = COLUMNS[table]
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
            (stage,) = tx.conn.execute("SELECT stage FROM _db_tables WHERE name = ?", (table.name,)).fetchone()
            if stage == "new":
                # The queue may touch it because it was here before: the pull's end shows that.
                assert not kept
                continue
            assert kept == touched
            bases = read_bases(tx.conn, table, kept)
            parts = pendings.load(tx, table.name, kept)
            for key in kept:
                now = overlaid(table, bases[key], parts[key])
                rows = table.read(tx.conn, [(key,)])
                assert rows == ([] if now is None else [table.codec.store(now)])
            count, total = table_sum(table.encoder, base_rows(tx.conn, table))
            kept_sum = tx.conn.execute("SELECT count, hash FROM _db_tables WHERE name = ?", (table.name,)).fetchone()
            assert kept_sum == (count, total.to_bytes(16, "big"))
        choice = tx.state.choice
        wanted = COLUMNS.keys() if choice is None else choice
        here = {name for (name,) in tx.conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert here & COLUMNS.keys() == tx.tables.keys() <= wanted
        assert {t for (t,) in tx.conn.execute("SELECT tbl FROM _db_base")} <= tx.tables.keys()


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("many", [16, 1], ids=["as it is", "every row coalesced"])
@pytest.mark.parametrize("order", ["server", "edit"])
def test_every_history_ends_with_equal_rows_and_nothing_lost(order: str, many: int) -> None:
    tell_histories(order, many, FEW_EXAMPLES)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("many", [16, 1], ids=["as it is", "every row coalesced"])
@pytest.mark.parametrize("order", ["server", "edit"])
def test_hundreds_of_histories_end_so(order: str, many: int) -> None:
    tell_histories(order, many, EXAMPLES)


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("many", [16, 1], ids=["as it is", "every row coalesced"])
@pytest.mark.parametrize("order", ["server", "edit"])
def test_thousands_of_histories_end_so(order: str, many: int) -> None:
    tell_histories(order, many, MANY_EXAMPLES)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("order", ["server", "edit"])
def test_every_history_ends_so_where_devices_choose_their_tables(order: str) -> None:
    tell_histories(order, 1, FEW_EXAMPLES, histories_of_choices)


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("many", [16, 1], ids=["as it is", "every row coalesced"])
@pytest.mark.parametrize("order", ["server", "edit"])
def test_hundreds_of_histories_end_so_where_devices_choose_their_tables(order: str, many: int) -> None:
    tell_histories(order, many, EXAMPLES, histories_of_choices)


def tell_histories(order: str, many: int, examples: int, histories: Any = histories) -> None:
    drawn: Counter[str] = Counter()

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        history=histories,
        delete=st.sampled_from(["rejects", "wins"]),
        resurrect=st.booleans(),
        title=st.sampled_from(TITLES),
    )
    def tell(history: list[tuple[str, int, Any]], delete: str, resurrect: bool, title: str) -> None:
        drawn.update(tell_one(history, many, order, delete, resurrect, title))

    given_first = tell_one(WITH_ALL_WANTED, many, order)
    assert not [what for what in WANTED if not given_first[what]], given_first
    tell()
    print(drawn)


def tell_one(history: list[tuple[str, int, Any]], many: int, *rules: Any) -> Counter[str]:
    """Tell one history, and count its events, by the rules that `World` takes."""
    with TemporaryDirectory(dir=MEMORY) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(pendings_module, "_MANY", many)
        world = World(Path(folder), *rules)
        try:
            tell_history(world, history)
            return counted_of(world)
        finally:
            for device in world.devices:
                device.close()


def tell_history(world: World, history: list[tuple[str, int, Any]]) -> None:
    for action, i, argument in history:
        world.step(action, i, argument)
        check_invariants(world.devices[i])
        assert world.mirrors[i] == shown(world.devices[i])
    world.settle()
    live = {key: dict(row) for key, row in world.server.live().items()}
    in_log = {logged.id for logged in world.server.log if logged.node != SERVER_NODE}
    dead: set[str] = set()
    for i, device in enumerate(world.devices):
        check_invariants(device)
        names = COLUMNS.keys() if (chosen := world.chosen[i]) is None else set(chosen)
        assert device._file.tables().keys() == names
        wanted = {row: values for row, values in live.items() if row[0] in names}
        assert shown(device) == wanted
        assert world.mirrors[i] == wanted
        status = device.status()
        assert (status.queued, status.disagreeing, status.awaited) == (0, (), ())
        assert device.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        reasons = {letter.id: letter.reason for letter in device.dead_letters()}
        assert reasons == {batch_id: world.server.verdicts[batch_id].reason for batch_id in reasons}
        dead |= reasons.keys()
    assert set(world.made) == in_log | dead
    assert not in_log & dead


def counted_of(world: World) -> Counter[str]:
    """The events of a history, counted."""
    found = Counter(verdict.reason or max(verdict.outcomes).name for verdict in world.server.verdicts.values())
    found["histories"] = 1
    found["by SQL"] = sum(logged.node == SERVER_NODE for logged in world.server.log)
    found["dead letters"] = sum(len(device.dead_letters()) for device in world.devices)
    found["behind the floor"] = sum(remote.behind for remote in world.remotes)
    found["answers lost"] = sum(remote.lost for remote in world.remotes)
    return found


def counted(function: Callable[..., Any], times: list[int]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        times[0] += 1
        return function(*arguments)

    return call


@pytest.mark.parametrize("seed", range(6))
def test_rows_that_are_written_often_show_the_same_coalesced(seed: int, tmp_path: Path) -> None:
    """Long histories of few rows, of which some batches go while others stay."""
    chance = random.Random(seed)
    world = World(tmp_path, "server", "rejects")
    coalesced = [0]

    def write(i: int) -> None:
        table, key = chance.choice([("todo", "x"), ("note", "y")])
        kind = chance.choice(["update"] * 15 + ["delete", "insert"])
        # Of "todo" the title or the counter; the third column is one that is not coalesced.
        value = chance.choice([v for v in range(-3, 9) if table == "note" or v % 3 != 2 or chance.random() < 0.02])
        world.step("write", i, [(table, kind, key, value)])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pendings_module, "_MANY", 1)
        for device in world.devices:
            pendings = device._sender._pendings
            patch.setattr(pendings, "_kept_parts", counted(pendings._kept_parts, coalesced))
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
    assert coalesced[0] > 5, "rows were coalesced, and more than once"
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
        write_unseen(conn, "UPDATE todo SET title = 'broken'")
    with pytest.raises(AssertionError):
        check_invariants(world.devices[0])
    for device in world.devices:
        device.close()
