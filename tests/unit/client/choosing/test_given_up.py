"""A table that a device gives up, with what it has queued for it, and takes back."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from tests.unit.client.choosing.tables import NAMES, SECRET, Open, Server, agrees, bodies, holds, in_file, live

from anabranch.client import Change, NotChosen, NotReady, State
from anabranch.client.reading import sums
from anabranch.v1 import resolver_pb2, value_pb2, verdict_pb2


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


@pytest.mark.parametrize("again", [("todo", "note"), None], ids=["these", "all"])
def test_a_rejection_while_the_table_is_not_there_leaves_a_readable_letter_without_the_servers_row(
    opened: Open, server: Server, again: tuple[str, ...] | None
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
    device.choose_tables(again)
    with pytest.raises(NotReady):
        device.replay(queued)
    with pytest.raises(NotReady):
        device.execute("SELECT * FROM note")
    with pytest.raises(sqlite3.OperationalError, match="no such column"):
        device.execute("SELECT elsewhere FROM todo")
    device.read()
    device.table("note").delete("x")
    device.replay(queued)
    assert device.sync()
    agrees(device, server, *(again or NAMES))
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


def test_clear_keeps_the_choice(opened: Open, server: Server) -> None:
    device = opened(["todo"])
    device.table("todo").update({"id": "k1", "body": "mine"})
    device.clear()
    assert device.status().chosen == ("todo",)
    device.start(background=False)
    assert device.status().queued == 0
    agrees(device, server, "todo")


def test_a_chosen_table_is_repaired_and_conflicts_of_others_are_not_shown(opened: Open, server: Server) -> None:
    device = opened(["todo"])
    with device._file.transaction() as tx, tx.writing(tx.tables["todo"], 1):
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
    with device._file.transaction() as tx, tx.writing(tx.tables["note"], 1):
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
