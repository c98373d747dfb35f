"""A device that has chosen some of the synced tables: what is in its file, and what becomes of the rest."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import BatchState, CallFailed, Change, FileDamaged, NotChosen, NotReady, State, SyncedDb
from anabranch.client.file import choice, layout
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.letters.offline import DeadQueue
from anabranch.client.reading import sums
from anabranch.client.reading.effects import Folded, Folder
from anabranch.client.remote import RemoteDb, Stream
from anabranch.merge import MutationType, Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.testkit.waiting import until
from anabranch.v1 import change_pb2, position_pb2, resolver_pb2, value_pb2, verdict_pb2
from anabranch.values import Column, Kind, Table

NAMES = ("todo", "note", "log")
SECRET = "a value of a table that is not wanted"


def table(name: str) -> Table:
    return Table(name, (Column("id", Kind.STRING, "text"), Column("body", Kind.STRING, "text")), ("id",))


class Server(MemoryRemote):
    """Tells of the tables in ``synced``, and of ``conflicts``."""

    def __init__(self) -> None:
        tables = {name: MemoryTable({"id": None, "body": None}) for name in NAMES}
        server = MemoryServer(tables, Policy(), park_ms=1000)
        server.head = 1_000
        super().__init__(server, [table(name) for name in NAMES], lambda: time.time_ns() // 1_000_000)
        self.version = 1
        self.synced: tuple[str, ...] = NAMES
        self.verdicts: dict[str, verdict_pb2.Verdict] = {}
        self.conflicts: list[resolver_pb2.Conflict] = []
        for name in NAMES:
            for i in range(5):
                body = f"{name} {i}" if name == "todo" else f"{SECRET}: {name} {i}"
                server.preset(name, f"k{i}", {"id": f"k{i}", "body": body})

    def become(self, *names: str) -> None:
        self.synced = names
        self.version += 1

    def state(self) -> position_pb2.ServerState:
        state = super().state()
        state.schema_version = self.version
        return state

    def describe(self, request: Any, timeout_s: float = 0) -> Any:
        response = super().describe(request, timeout_s)
        kept = [t for t in response.tables if t.name in self.synced]
        del response.tables[:]
        response.tables.extend(kept)
        return response

    def verdict(self, batch_id: str) -> verdict_pb2.Verdict:
        found = super().verdict(batch_id)
        found.MergeFrom(self.verdicts.get(batch_id, verdict_pb2.Verdict()))
        return found

    def list_conflicts(self, request: Any) -> Any:
        return resolver_pb2.ListConflictsResponse(conflicts=self.conflicts)

    def set(self, name: str, key: str, body: str) -> None:
        """A write by SQL."""
        values = {"id": key, "body": body}
        there = (name, key) in self.server.live()
        kind = MutationType.UPDATE if there else MutationType.INSERT
        assert self.write([(name, kind, key, {"body": body} if there else values)])


@pytest.fixture
def server() -> Server:
    return Server()


Open = Callable[..., SyncedDb]


@pytest.fixture
def opened(tmp_path: Path, server: Server) -> Iterator[Open]:
    made: list[SyncedDb] = []

    def open_file(tables: Any = None, name: str = "d", start: bool = True, **options: Any) -> SyncedDb:
        device = SyncedDb(tmp_path / f"{name}.db", server, "d", tables=tables, **options)
        made.append(device)
        if start:
            device.start(background=False)
        return device

    yield open_file
    for device in made:
        device.close()


def in_file(device: SyncedDb) -> set[str]:
    rows = device.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name for (name,) in rows if not name.startswith(("_db_", "sqlite_"))}


def bodies(device: SyncedDb, name: str) -> dict[str, str]:
    return dict(device.execute(f'SELECT id, body FROM "{name}"').fetchall())


def live(server: Server, name: str) -> dict[str, Any]:
    return {key: row["body"] for (there, key), row in server.server.live().items() if there == name}


def holds(device: SyncedDb, text: str) -> bool:
    """Whether the bytes of the text are anywhere in the file, free pages and the write-ahead log included."""
    folder = device._file.path.parent
    return any(text.encode() in path.read_bytes() for path in folder.glob(f"{device._file.path.name}*"))


def agrees(device: SyncedDb, server: Server, *names: str) -> None:
    """The device has exactly these tables, as the server has them, and nothing is left to do."""
    assert in_file(device) == set(names)
    for name in names:
        assert bodies(device, name) == live(server, name)
        assert device.verify(name) == ()
    status = device.status()
    assert (status.queued, status.disagreeing, status.awaited) == (0, (), ())
    assert status.cursor == server.server.head
    assert device.table_sums().keys() == set(names)


def test_rows_of_other_tables_are_never_in_the_file(opened: Open, server: Server) -> None:
    looked = [0]

    def look(point: str) -> None:
        looked[0] += 1
        assert device.status().chosen is None or not holds(device, SECRET), point

    device = opened(["todo"], start=False, reached=look)
    device.start(background=False)
    server.set("note", "k1", f"{SECRET}, changed")
    server.set("todo", "k1", "changed")
    server.set("log", "k9", f"{SECRET}, added")
    device.table("todo").update({"id": "k0", "body": "mine"})
    assert device.sync()
    assert looked[0] > 3
    assert not holds(device, SECRET)
    assert bodies(device, "todo")["k1"] == "changed"
    agrees(device, server, "todo")
    assert device.status().chosen == ("todo",)
    # The look can find something.
    device.choose_tables(None)
    device.read()
    assert holds(device, SECRET)
    agrees(device, server, *NAMES)
    assert device.status().chosen is None


def test_nothing_is_chosen_by_default(opened: Open, server: Server) -> None:
    agrees(opened(), server, *NAMES)


def test_effects_of_other_tables_are_passed_over_unread() -> None:
    def group(*effects: bytes) -> change_pb2.LoggedGroup:
        return change_pb2.LoggedGroup(position=7, batches=[change_pb2.LoggedBatch(id="b", effects=effects)])

    def effect(name: str) -> bytes:
        return change_pb2.Effect(
            table=name, type=change_pb2.EFFECT_TYPE_DELETE, columns=["id"], values=[value_pb2.Value(string_value="x")]
        ).SerializeToString()

    ours = {"todo": DeviceTable(table("todo"))}
    broken = change_pb2.Effect(table="todo2").SerializeToString() + b"\xff"
    wanted = effect("todo")
    # Written in another order, it is read to find out.
    name, rest = wanted[:6], wanted[6:]
    assert name == b"\x0a\x04todo"
    for data in (wanted, rest + name):
        folded = Folded()
        Folder(ours, {}, alone=True).fold(group(broken, effect("note"), data), folded)
        assert folded.patches["todo"].keys() == {Folder(ours, {})._tables["todo"].key_text(("x",))}
    with pytest.raises(Exception, match="parsing"):
        Folder(ours, {}).fold(group(broken), Folded())


def test_the_error_for_another_table_names_those_that_are_chosen(opened: Open, server: Server) -> None:
    device = opened(["todo", "log"])
    said = "note is not among the tables that this device has chosen: log, todo"
    calls: list[Callable[[], Any]] = [
        lambda: device.table("note").insert({"id": "x", "body": "y"}),
        lambda: device.table("note").update({"id": "k1", "body": "y"}),
        lambda: device.table("note").delete("k1"),
        lambda: device.verify("note"),
        lambda: device.repair("note"),
        lambda: device.conflicts("note"),
    ]
    for call in calls:
        with pytest.raises(NotChosen, match=said) as raised:
            call()
        assert isinstance(raised.value, ValueError)
    with device.batch():
        device.table("todo").update({"id": "k1", "body": "mine"})
        with pytest.raises(NotChosen):
            device.table("note").delete("k1")
    assert device.sync()
    assert live(server, "todo")["k1"] == "mine"


@pytest.mark.parametrize("wrong", ["todo", b"todo", [1], [""]])
def test_names_that_are_none_are_refused(tmp_path: Path, server: Server, wrong: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        SyncedDb(tmp_path / "d.db", server, "d", tables=wrong)
    assert not (tmp_path / "d.db").exists()


def test_what_is_given_up_is_dropped_and_comes_back_when_it_is_chosen_again(opened: Open, server: Server) -> None:
    device = opened(["todo", "note"])
    changes: list[Change] = []
    states: list[State] = []
    device.on_change(changes.append)
    device.on_state(states.append)
    device.choose_tables(["todo"])
    assert in_file(device) == {"todo"}
    assert {(c.table, c.type, c.key) for c in changes} == {("note", "delete", (f"k{i}",)) for i in range(5)}
    assert [(s.kind, s.detail) for s in states] == [("given_up", "note")]
    assert device.execute("SELECT count(*) FROM _db_tables").fetchone() == (1,)
    server.set("note", "k1", "changed meanwhile")
    server.set("todo", "k1", "changed meanwhile")
    described = server.calls["describe"]
    device.read()
    assert server.calls["describe"] == described, "it has nothing to ask for"
    agrees(device, server, "todo")
    changes.clear()
    device.choose_tables(["note", "todo", "log"])
    assert device.status().awaited == ("log", "note")
    for call in (
        lambda: device.table("note").delete("k1"),
        lambda: device.execute("SELECT * FROM note"),
        lambda: device.verify("log"),
    ):
        with pytest.raises(NotReady):
            call()
    device.read()
    agrees(device, server, *NAMES)
    assert {(c.table, c.type) for c in changes} == {("note", "insert"), ("log", "insert")}
    assert len(changes) == 10


def test_a_later_opening_may_choose_otherwise(opened: Open, server: Server) -> None:
    opened(["todo", "note"]).close()
    device = opened(["note", "log"], start=False)
    assert in_file(device) == {"note"}
    device.start(background=False)
    server.set("note", "k1", "changed")
    device.read()
    agrees(device, server, "note", "log")
    device.close()
    device = opened(None)
    device.read()
    agrees(device, server, *NAMES)
    device.close()
    # A look at the letters alone chooses nothing.
    device = opened(["log"])
    device.close()
    DeadQueue(device._file.path).close()
    with closing(sqlite3.connect(device._file.path)) as conn:
        assert conn.execute("SELECT chosen FROM _db_state").fetchone() == ('["log"]',)


def test_all_tables_may_be_exchanged(opened: Open, server: Server) -> None:
    device = opened(["todo"])
    queued = device.table("todo").update({"id": "k1", "body": "mine"})
    device.choose_tables(["note"])
    device.read()
    assert device.status().queued == 1
    assert device.sync()
    found = device.verdict(queued)
    assert found is not None
    assert found.status == "APPLIED"
    agrees(device, server, "note")
    assert live(server, "todo")["k1"] == "mine"


@pytest.mark.parametrize("sent", [False, True], ids=["sent after it is chosen again", "sent in between"])
def test_pending_writes_of_a_table_given_up_are_sent_and_shown_on_top_again(
    opened: Open, server: Server, sent: bool
) -> None:
    device = opened(["todo", "note"])
    with device.batch():
        device.table("note").update({"id": "k1", "body": "mine"})
        device.table("todo").update({"id": "k1", "body": "mine"})
        device.table("note").insert({"id": "new", "body": "mine"})
        device.table("note").delete("k2")
    device.table("note").update({"id": "k1", "body": "mine, later"})
    device.choose_tables(["todo"])
    assert device.status().unsent == 2
    assert bodies(device, "todo")["k1"] == "mine"
    assert device.execute("SELECT count(*) FROM _db_base WHERE tbl = 'note'").fetchone() == (0,)
    if sent:
        assert device.flush()
        assert device.status().unsent == 0
    server.set("note", "k1", "theirs")
    server.set("note", "k3", "theirs")
    device.close()
    device = opened(["todo", "note"], start=False)
    changes: list[Change] = []
    device.on_change(changes.append)
    device.start(background=False)
    if not sent:
        device._reader.prepare()
        shown = bodies(device, "note")
        assert shown == {
            "k0": f"{SECRET}: note 0",
            "k1": "mine, later",
            "k3": "theirs",
            "k4": shown["k4"],
            "new": "mine",
        }
        bases = dict(device.execute("SELECT key, row FROM _db_base WHERE tbl = 'note'").fetchall())
        assert len(bases) == 3
        assert bases.pop(device._file.tables()["note"].key_text(("new",))) is None
        assert {(c.table, c.type) for c in changes} == {("note", "insert")}
        assert {c.key[0]: (c.row or {})["body"] for c in changes} == shown
        assert device.verify("note") == ()
    assert device.sync()
    agrees(device, server, "todo", "note")


def test_a_rejection_while_the_table_is_not_there_leaves_a_readable_letter_without_the_servers_row(
    opened: Open, server: Server
) -> None:
    device = opened(["todo", "note"])
    queued = device.table("note").insert({"id": "x", "body": "my own"})
    server.set("note", "x", SECRET)
    refused = verdict_pb2.MutationVerdict(table="note", key=[value_pb2.Value(string_value="x")])
    refused.server_row.columns.extend(["id", "body"])
    refused.server_row.values.extend([value_pb2.Value(string_value="x"), value_pb2.Value(string_value=SECRET)])
    server.verdicts[queued] = verdict_pb2.Verdict(mutations=[refused])
    events: list[Any] = []
    device.on_conflict(events.append)
    device.choose_tables(["todo"])
    with closing(sqlite3.connect(device._file.path, isolation_level=None)) as conn:
        conn.execute("VACUUM")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert not holds(device, SECRET)
    assert device.sync()
    (letter,) = device.dead_letters()
    assert (letter.id, letter.reason, letter.server_row) == (queued, "ROW_EXISTS", None)
    assert letter.mutations == (("insert", "note", ({"id": "x", "body": "my own"},)),)
    assert [(e.outcome, e.server_row) for e in events] == [("rejected", None)]
    assert not holds(device, SECRET)
    with pytest.raises(NotChosen):
        device.replay(queued)
    assert len(device.dead_letters()) == 1
    device.choose_tables(["todo", "note"])
    with pytest.raises(NotReady):
        device.replay(queued)
    device.read()
    device.table("note").delete("x")
    device.replay(queued)
    assert device.sync()
    agrees(device, server, "todo", "note")
    assert bodies(device, "note")["x"] == "my own"


def test_rows_in_kept_verdicts_go_with_their_table(opened: Open, server: Server) -> None:
    device = opened()
    batches = {name: device.table(name).insert({"id": "x", "body": "mine"}) for name in ("note", "log")}
    for name, batch in batches.items():
        server.set(name, "x", f"the server's {name}")
        refused = verdict_pb2.MutationVerdict(table=name, key=[value_pb2.Value(string_value="x")])
        refused.server_row.columns.append("body")
        refused.server_row.values.append(value_pb2.Value(string_value=f"the server's {name}"))
        server.verdicts[batch] = verdict_pb2.Verdict(mutations=[refused])
    assert device.sync()
    assert {x.table: x.server_row for x in device.dead_letters()} == {
        name: {"body": f"the server's {name}"} for name in batches
    }
    device.choose_tables(["log"])
    assert {x.table: x.server_row for x in device.dead_letters()} == {"log": {"body": "the server's log"}, "note": None}
    kept = device.execute("SELECT verdict FROM _db_mutations_queue_dead ORDER BY id").fetchall()
    assert [b"the server's note" in data for (data,) in kept] == [False, False]


def test_a_rejection_during_the_pull_of_the_table_shows_nothing_of_the_batch(opened: Open, server: Server) -> None:
    device = opened(["todo", "note"])
    first = device.table("note").insert({"id": "x", "body": "mine"})
    device.table("note").update({"id": "x", "body": "mine, later"})
    server.set("note", "x", "theirs")
    device.choose_tables(["todo"])
    device.choose_tables(["todo", "note"])
    server.cut_pull_after = 1
    with pytest.raises(CallFailed):
        device.read()
    assert device._sender.flush(5.0, only=[first])
    assert [letter.reason for letter in device.dead_letters()] == ["ROW_EXISTS"]
    assert bodies(device, "note") == {}
    assert device.execute("SELECT count(*) FROM _db_base").fetchone() == (0,)
    device.read()
    assert bodies(device, "note")["x"] == "mine, later"
    assert device.sync()
    agrees(device, server, "todo", "note")


@pytest.mark.parametrize("whole", [True, False], ids=["the first pull", "a pull of added tables"])
def test_a_table_given_up_during_its_pull_leaves_it_and_stops_no_other(
    opened: Open, server: Server, whole: bool
) -> None:
    device = opened(NAMES if whole else ["todo"], start=False)
    if not whole:
        device.start(background=False)
        device.choose_tables(NAMES)
    told: list[str] = []

    def progress(now: Any) -> None:
        told.append(now.table)
        if now.table == "note" and told.count("note") == 1:
            device.choose_tables(["todo", "log"])

    device._reader.prepare(progress)
    assert told.count("note") == 1
    assert told.count("log") == 3
    assert told.count("todo") == (3 if whole else 0)
    device.read()
    agrees(device, server, "todo", "log")
    assert not device.execute("SELECT name FROM sqlite_master WHERE name LIKE '\\_db\\_pull%' ESCAPE '\\'").fetchall()


def test_everything_given_up_during_the_pull_leaves_a_device_at_the_servers_position(
    opened: Open, server: Server
) -> None:
    device = opened(["note"], start=False)
    device.start(background=False, progress=lambda now: device.choose_tables([]))
    assert in_file(device) == set()
    assert device.status().cursor == server.server.head
    assert device.status().pulls == 1


def test_a_name_that_the_server_does_not_have_is_told_and_waits(opened: Open, server: Server) -> None:
    server.become("todo", "log")
    states: list[State] = []
    device = opened(["todo", "note"], start=False)
    device.on_state(states.append)
    device.start(background=False)
    assert [(s.table, s.kind) for s in states if s.kind == "not_synced"] == [("note", "not_synced")]
    assert device.status().awaited == ("note",)
    for call in (lambda: device.table("note").delete("k1"), lambda: device.execute("SELECT 1 FROM note")):
        with pytest.raises(NotReady, match="the server has no synced table of that name"):
            call()
    with pytest.raises(NotChosen):
        device.table("log").delete("k1")
    server.become("todo", "note", "log")
    device.read()
    agrees(device, server, "todo", "note")


@pytest.mark.parametrize("tables", [["note"], []], ids=["a name that waits", "none"])
def test_a_device_without_any_table_keeps_up_and_gets_its_tables_later(
    opened: Open, server: Server, tables: list[str]
) -> None:
    server.become("todo")
    device = opened(["todo"])
    queued = device.table("todo").update({"id": "k1", "body": "mine"})
    assert device.flush()
    device.choose_tables(tables)
    server.set("todo", "k2", "theirs")
    server.floor = server.server.head
    states: list[State] = []
    device.on_state(states.append)
    device.read()
    assert device.status().cursor == server.server.head
    assert device.sync()
    assert not [s for s in states if s.kind == "error"], "the log has passed nothing that it should have shown"
    found = device.verdict(queued)
    assert found is not None
    assert found.status == "APPLIED"
    assert device.status().queued == 0
    server.set("todo", "k3", "theirs")
    device.close()
    device = opened(tables, name="new")
    assert device.status().pulls == 1
    server.set("todo", "k4", "theirs")
    device.read()
    server.become("todo", "note")
    device.choose_tables([*tables, "todo"])
    device.read()
    agrees(device, server, "todo", *tables)


def test_tables_that_come_and_go_on_the_server_follow_the_choice(opened: Open, server: Server) -> None:
    server.become("todo", "note")
    some, all_of_them = opened(["todo", "note"], name="some"), opened(None, name="all")
    pending = some.table("note").update({"id": "k1", "body": "mine"})
    server.become("todo", "log")
    server.set("log", "k1", "changed")
    states: list[State] = []
    some.on_state(states.append)
    for device in (some, all_of_them):
        device.read()
    assert in_file(some) == {"todo"}
    assert some.status().awaited == ("note",)
    assert [s.table for s in states if s.kind == "not_synced"] == ["note"]
    agrees(all_of_them, server, "todo", "log")
    server.become("todo", "note", "log")
    some.read()
    assert bodies(some, "note")["k1"] == "mine", "the queue's write is on top of it again"
    assert some.verify("note") == ()
    assert some.sync()
    assert some.verdict(pending) is not None
    agrees(some, server, "todo", "note")
    all_of_them.read()
    agrees(all_of_them, server, *NAMES)


def test_behind_the_floor_only_chosen_tables_are_pulled(opened: Open, server: Server) -> None:
    device = opened(["todo", "log"])
    device.table("todo").update({"id": "k1", "body": "mine"})
    server.set("note", "k1", SECRET)
    server.set("todo", "k2", "theirs")
    server.floor = server.server.head
    states: list[State] = []
    device.on_state(states.append)
    device.read()
    assert [s.detail for s in states if s.kind == "pulled"] == ["todo, log"]
    assert device.sync()
    agrees(device, server, "todo", "log")


@pytest.mark.parametrize("on_rewind", ["resupply", "dead_letter"])
def test_a_rewind_keeps_the_choice_and_the_batches_of_a_table_given_up(
    opened: Open, server: Server, on_rewind: str
) -> None:
    server.on_rewind = on_rewind
    device = opened(["todo", "note"])
    assert device.sync()
    backup = (dict(server.server.rows), server.server.head)
    lost = device.table("note").update({"id": "k1", "body": "mine"})
    assert device.sync()
    device.choose_tables(["todo"])
    server.server.rows, server.server.head = dict(backup[0]), backup[1]
    server.server.log.clear()
    server.server.verdicts.clear()
    server.epoch = "epoch-2"
    device.read()
    agrees_but_for_the_queue = in_file(device) == {"todo"} and bodies(device, "todo") == live(server, "todo")
    assert agrees_but_for_the_queue
    if on_rewind == "dead_letter":
        (letter,) = device.dead_letters()
        assert (letter.id, letter.reason) == (lost, "REWOUND")
        assert letter.mutations[0][2] == ({"id": "k1", "body": "mine"},)
        assert device.sync()
        agrees(device, server, "todo")
        return
    assert device.status().unsent == 1
    device.choose_tables(["todo", "note"])
    device.read()
    assert bodies(device, "note")["k1"] == "mine"
    assert device.sync()
    agrees(device, server, "todo", "note")
    assert live(server, "note")["k1"] == "mine"


def test_a_rewind_during_the_pull_of_a_table_chosen_again(opened: Open, server: Server) -> None:
    server.on_rewind = "resupply"
    device = opened(["todo", "note"])
    assert device.sync()
    backup = (dict(server.server.rows), server.server.head)
    device.table("note").update({"id": "k1", "body": "mine"})
    assert device.sync()
    device.choose_tables(["todo"])
    device.choose_tables(["todo", "note"])
    server.cut_pull_after = 1
    with pytest.raises(CallFailed):
        device.read()
    server.server.rows, server.server.head = dict(backup[0]), backup[1]
    server.server.log.clear()
    server.server.verdicts.clear()
    server.epoch = "epoch-2"
    server.cut_pull_after = 1
    with pytest.raises(CallFailed):
        device.read()
    assert device.status().unsent == 1, "it is queued again"
    assert device.execute("SELECT count(*) FROM _db_base").fetchone() == (0,)
    device.read()
    assert bodies(device, "note")["k1"] == "mine"
    assert device.verify() == ()
    assert device.sync()
    agrees(device, server, "todo", "note")


def test_clear_keeps_the_choice(opened: Open, server: Server) -> None:
    device = opened(["todo"])
    device.table("todo").update({"id": "k1", "body": "mine"})
    device.clear()
    assert device.status().chosen == ("todo",)
    device.start(background=False)
    assert device.status().queued == 0
    agrees(device, server, "todo")


def test_a_file_of_the_format_before_has_all_tables_until_it_chooses(opened: Open, server: Server) -> None:
    device = opened()
    queued = device.table("note").update({"id": "k1", "body": "mine"})
    device.close()
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        for column in ("chosen", "describe_due"):
            conn.execute(f"ALTER TABLE _db_state DROP COLUMN {column}")
        conn.execute("PRAGMA user_version = 6")
    device = opened()
    assert device.execute("PRAGMA user_version").fetchone() == (layout.FORMAT,)
    assert (device.status().chosen, in_file(device)) == (None, set(NAMES))
    device.close()
    device = opened(["todo"])
    assert in_file(device) == {"todo"}
    assert device.status().unsent == 1
    assert device.sync()
    assert device.verdict(queued) is not None
    agrees(device, server, "todo")


def test_a_copy_of_the_file_chooses_for_itself(opened: Open, server: Server, tmp_path: Path) -> None:
    device = opened(["todo", "note"])
    device.close()
    shutil.copy(tmp_path / "d.db", tmp_path / "copy.db")
    copy, device = opened(["note", "log"], name="copy"), opened(["todo", "note"])
    server.set("note", "k1", "theirs")
    for one in (copy, device):
        one.read()
    agrees(copy, server, "note", "log")
    agrees(device, server, "todo", "note")


def test_a_chosen_table_is_repaired_and_conflicts_of_others_are_not_shown(opened: Open, server: Server) -> None:
    device = opened(["todo"])
    with device._file.transaction() as tx, tx.writing("todo", 1):
        tx.conn.execute("UPDATE todo SET body = 'another' WHERE id = 'k1'")
    assert device.verify() == ("todo",)
    assert device.repair("todo").rows == 1
    agrees(device, server, "todo")
    losing = [value_pb2.Value(string_value=text).SerializeToString() for text in (SECRET, "lost")]
    server.conflicts = [
        resolver_pb2.Conflict(table="note", column="body", losing_value=losing[0][:5], losing_value_incomplete=True),
        resolver_pb2.Conflict(table="note", column="body", losing_value=losing[0][5:]),
        resolver_pb2.Conflict(table="todo", column="body", losing_value=losing[1]),
    ]
    assert [(c.table, c.losing_value) for c in device.conflicts()] == [("todo", "lost")]


def test_a_table_given_up_while_its_rows_are_read_is_left_out(opened: Open, server: Server) -> None:
    device = opened(["todo", "note"])
    with device._file.transaction() as tx, tx.writing("note", 1):
        tx.conn.execute("UPDATE note SET body = 'another' WHERE id = 'k1'")
    asked: list[None] = []

    def stopped() -> bool:
        asked.append(None)
        if len(asked) == 3:
            device.choose_tables(["todo"])
        return False

    assert sums.verify(device._file, "note", 5, stopped) is None
    assert len(asked) == 5
    assert device.status().disagreeing == ()
    agrees(device, server, "todo")


def test_a_damaged_batch_of_a_table_given_up_sets_nothing_aside(opened: Open, server: Server) -> None:
    device = opened(["todo", "note"])
    queued = device.table("note").update({"id": "k1", "body": "mine"})
    device.choose_tables(["todo"])
    with device._file.transaction() as tx:
        tx.conn.execute("UPDATE _db_mutations_queue SET value = x'ff'")
    states: list[State] = []
    device.on_state(states.append)
    assert device.sync()
    (letter,) = device.dead_letters()
    assert (letter.id, letter.reason, letter.still_shown) == (queued, "MALFORMED", False)
    assert not [s for s in states if s.kind == "set_aside"]
    agrees(device, server, "todo")


@pytest.mark.parametrize("wrong", ["[1]", "{}", "nothing"])
def test_a_choice_that_is_damaged_in_the_file_is_named(opened: Open, wrong: str) -> None:
    device = opened(["todo"])
    device.close()
    with closing(sqlite3.connect(device._file.path)) as conn, conn:
        conn.execute("UPDATE _db_state SET chosen = ?", (wrong,))
    with pytest.raises(FileDamaged, match="the tables that it has chosen"):
        opened(["todo"], start=False)


# Deaths at any moment


@pytest.mark.parametrize("failing", ["give_up", "_forget_rows"])
def test_a_change_that_fails_leaves_the_choice_before(
    opened: Open, server: Server, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    device = opened()
    device.table("note").update({"id": "k1", "body": "mine"})
    done = getattr(choice, failing)

    def fail(tx: Any, name: str) -> None:
        done(tx, name)
        if name == "log":
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(choice, failing, fail)
    with pytest.raises(sqlite3.OperationalError):
        device.choose_tables(["todo"])
    assert device.status().chosen is None
    assert in_file(device) == set(NAMES)
    assert bodies(device, "note")["k1"] == "mine"
    device.close()
    with pytest.raises(sqlite3.OperationalError):
        opened(["todo"], start=False)
    device = opened()
    assert device.sync()
    agrees(device, server, *NAMES)


DIES = """
import os, sys
from anabranch.client import RemoteDb, SyncedDb
from anabranch.client.file import choice, device_file

def dies(function, when):
    calls = []
    def call(*arguments):
        calls.append(1)
        if when == "before" and len(calls) == 2:
            os._exit(9)
        function(*arguments)
        if when == "after" and len(calls) == 2:
            os._exit(9)
    return call

where = sys.argv[2]
if where == "committed":
    SyncedDb(sys.argv[1], RemoteDb("localhost:1"), "d", tables=["todo"])
    os._exit(9)
choice.give_up = dies(choice.give_up, where)
SyncedDb(sys.argv[1], RemoteDb("localhost:1"), "d", tables=["todo"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("where", "after"), [("before", NAMES), ("after", NAMES), ("committed", ("todo",))])
def test_a_process_that_dies_leaves_the_old_choice_or_the_new_one(
    opened: Open, server: Server, where: str, after: tuple[str, ...]
) -> None:
    device = opened()
    device.table("note").update({"id": "k1", "body": "mine"})
    device.close()
    died = subprocess.run([sys.executable, "-c", DIES, str(device._file.path), where], env=os.environ, check=False)
    assert died.returncode == 9
    with closing(sqlite3.connect(device._file.path)) as conn:
        (chosen,) = conn.execute("SELECT chosen FROM _db_state").fetchone()
        assert chosen == (None if after == NAMES else '["todo"]')
        there = {name for (name,) in conn.execute("SELECT name FROM _db_tables")}
        tables = {name for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert there == set(after) == tables & set(NAMES)
    device = opened(None if after == NAMES else after)
    assert device.status().unsent == 1
    assert device.sync()
    agrees(device, server, *after)


class Died(Exception):
    """The process is gone."""


@pytest.mark.parametrize("point", ["before_apply", "after_apply", "between dropping and pulling", "in the pull"])
def test_a_death_on_the_way_to_another_choice_loses_nothing(opened: Open, server: Server, point: str) -> None:
    armed: list[str] = []

    def reached(at: str) -> None:
        if at in armed:
            raise Died

    device = opened(["todo", "note"], reached=reached)
    device.table("note").update({"id": "k1", "body": "mine"})
    device.table("todo").update({"id": "k1", "body": "mine"})
    server.set("log", "k1", "theirs")
    server.set("note", "k1", "theirs")
    server.set("todo", "k2", "theirs")
    device.choose_tables(["todo", "log"])
    if point == "in the pull":
        server.cut_pull_after = 2
        with pytest.raises(CallFailed):
            device.read()
    elif point != "between dropping and pulling":
        armed.append(point)
        with pytest.raises(Died):
            device.read()
    device._file.close()
    device._lease.release()
    device = opened(["todo", "log"])
    assert device.status().unsent == 2
    assert in_file(device) <= {"todo", "log"}
    assert device.sync()
    agrees(device, server, "todo", "log")
    device.close()
    device = opened()
    device.read()
    agrees(device, server, *NAMES)
    assert live(server, "todo")["k1"] == live(server, "note")["k1"] == "mine"


def test_another_process_that_chooses_is_heeded(opened: Open, server: Server, tmp_path: Path) -> None:
    device = opened(["todo", "note"])
    other = SyncedDb(tmp_path / "d.db", RemoteDb("localhost:1"), "d", tables=["todo", "log"])
    other.close()
    assert in_file(device) == {"todo"}
    with pytest.raises(NotChosen):
        device.table("note").delete("k1")
    server.set("todo", "k1", "theirs")
    device.read()
    agrees(device, server, "todo", "log")


class Quiet(Stream[change_pb2.SubscribeResponse]):
    """Answers once, and says nothing more until it is cancelled."""

    def __init__(self, answer: change_pb2.SubscribeResponse) -> None:
        self.answer: change_pb2.SubscribeResponse | None = answer
        self.cancelled = threading.Event()

    def __next__(self) -> change_pb2.SubscribeResponse:
        answer, self.answer = self.answer, None
        if answer is not None:
            return answer
        self.cancelled.wait(60.0)
        raise CallFailed("CANCELLED", "", "it was cancelled here", again=True)

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.mark.slow
def test_a_background_that_hears_nothing_pulls_at_once_what_is_chosen(opened: Open, server: Server) -> None:
    server.subscribe = lambda request: Quiet(change_pb2.SubscribeResponse(state=server.state()))  # type: ignore[method-assign]
    states: list[State] = []
    device = opened(["todo"], start=False)
    device.on_state(states.append)
    device.start()
    until(lambda: any(s.kind == "online" for s in states), timeout_s=20.0)
    device.choose_tables(["todo", "note"])
    until(lambda: device.status().awaited == (), timeout_s=20.0)
    assert bodies(device, "note") == live(server, "note")
    assert not [s for s in states if s.kind in ("offline", "error")]


def test_a_choice_inside_a_batch_is_refused(opened: Open) -> None:
    device = opened()
    with device.batch(), pytest.raises(BatchState):
        device.choose_tables(["todo"])
    assert device.status().chosen is None
