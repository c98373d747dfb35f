"""Pulls, floors and rewinds of a device that has chosen some of the synced tables."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.unit.client.choosing.tables import NAMES, SECRET, Open, Server, agrees, bodies, in_file, live

from anabranch.client import CallFailed, NotChosen, NotReady, State
from anabranch.client.remote import Stream
from anabranch.testkit.waiting import until
from anabranch.v1 import change_pb2


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
