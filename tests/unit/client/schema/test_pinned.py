"""An app that is tied to the schema version that it was built for: its names stay, whatever the server does."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tests.unit.client.schema.altered import (
    NOTE,
    TODO,
    VISIT,
    Open,
    agrees,
    columns,
    in_file,
    is_consistent,
    rows,
    states,
    told,
)

from anabranch.client import AppOutdated, CallFailed, Change, SyncedDb
from anabranch.testkit.memory_messages import AnswerStream
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_schema import Ddl
from anabranch.v1 import batch_pb2, change_pb2
from anabranch.values import Kind, Table


def every_change(ddl: Ddl) -> None:
    ddl.rename_table("todo", "task")
    ddl.rename_column("todo", "title", "subject")
    ddl.drop_column("todo", "n")
    ddl.add_column("todo", "priority", Kind.INT64, "bigint", initial=3)
    ddl.create(VISIT, [{"id": "v", "at": 1}])


def sees_version_1(device: SyncedDb, remote: MemoryRemote, pulls: int = 1) -> None:
    """The app sees tables and columns as they were, and the rows that there are now."""
    is_consistent(device)
    assert in_file(device) == {"todo", "note"}
    assert [c for c in columns(device, "todo") if not c.startswith("_DB_")] == ["id", "title", "n"]
    live = {key: row for (name, key), row in remote.server.live().items() if name == "todo"}
    wanted = [(key, row["title"], row.get("n")) for key, row in sorted(live.items())]
    assert rows(device, "todo", "id", "title", "n") == wanted
    status = device.status()
    assert (status.queued, status.disagreeing, status.pulls) == (0, (), pulls)
    assert (status.cursor, status.needs_schema_version) == (remote.server.head, 0)
    assert device.verify() == ()
    theirs = {s.table: (s.count, s.hash) for s in remote.sums()}
    assert device.table_sums() == {name: theirs[name] for name in ("todo", "note")}


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.5])
def test_a_version_is_a_number_from_1_on(opened: Open, version: Any) -> None:
    with pytest.raises(ValueError, match="a schema version is a number"):
        opened(schema_version=version)


@pytest.mark.parametrize("first", ["before", "after"])
def test_it_reads_and_writes_by_the_names_of_then(opened: Open, remote: MemoryRemote, first: str) -> None:
    if first == "before":
        device = opened(schema_version=1)
        device.table("todo").update({"id": "k1", "title": "mine", "n": 8})
        remote.alter(every_change)
        assert device.sync()
    else:
        remote.alter(every_change)
        device = opened(schema_version=1)
        device.table("todo").update({"id": "k1", "title": "mine", "n": 8})
        assert device.sync()
    sees_version_1(device, remote)
    assert remote.lost_values == [("todo", "k1", "n", 8)]
    device.table("todo").insert({"id": "new", "title": "t", "n": 9})
    device.table("todo").update({"id": "k2", "n": 10})
    device.table("todo").delete("k0")
    is_consistent(device)
    assert rows(device, "todo", "id", "title", "n")[-1] == ("new", "t", None)
    assert device.sync()
    sees_version_1(device, remote)
    assert remote.lost_values[1:] == [("todo", "new", "n", 9), ("todo", "k2", "n", 10)]
    assert remote.server.live()["todo", "new"]["priority"] is None
    with pytest.raises(ValueError, match="todo has no column 'priority'"):
        device.table("todo").update({"id": "k2", "priority": 1})
    with pytest.raises(ValueError, match="todo has no column 'subject'"):
        device.table("todo").update({"id": "k2", "subject": "x"})
    assert device.dead_letters() == []


def test_it_is_told_of_nothing_that_it_does_not_know(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=1)
    remote.alter(every_change)
    device.read()
    changes: list[Change] = []
    device.on_change(changes.append)
    remote.alter(lambda ddl: ddl.update("todo", "k1", priority=9))
    remote.alter(lambda ddl: ddl.update("todo", "k2", priority=9, title="both"))
    remote.alter(lambda ddl: ddl.insert("todo", {"id": "x", "title": "new", "priority": 1}))
    remote.alter(lambda ddl: ddl.insert("visit", {"id": "w"}))
    device.read()
    assert changes == [
        Change("todo", "update", ("k2",), ("title",), {"id": "k2", "title": "both", "n": None}, "remote"),
        Change("todo", "insert", ("x",), ("id", "title"), {"id": "x", "title": "new", "n": None}, "remote"),
    ]
    sees_version_1(device, remote)
    device.table("todo").delete("k3")
    (value,) = device.execute("SELECT value FROM _db_mutations_queue").fetchone()
    (mutation,) = batch_pb2.DbMutationBatch.FromString(value).mutations
    assert list(mutation.undo.columns) == ["id", "title", "priority"]


def test_its_names_outlive_a_pull_and_a_broken_one(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=1)
    remote.alter(every_change)
    remote.alter(lambda ddl: ddl.add_column("todo", "more", initial="x"))
    device.table("todo").update({"id": "k1", "title": "mine", "n": 1})
    remote.floor = remote.server.head
    remote.cut_pull_after = 2
    with pytest.raises(Exception, match="cut"):
        device.read()
    assert device.sync()
    sees_version_1(device, remote, pulls=2)
    assert device.repair("todo").rows == 0


def test_a_dropped_table_goes_there_too(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=1)
    remote.alter(lambda ddl: ddl.drop_table("note"))
    device.read()
    assert in_file(device) == {"todo"}


def test_changes_up_to_its_version_are_followed_and_later_ones_are_not(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=2)
    remote.alter(lambda ddl: (ddl.rename_column("todo", "title", "subject"), ddl.create(VISIT)))
    device.read()
    assert columns(device, "todo") == ["id", "subject", "n"]
    assert in_file(device) == {"todo", "note", "visit"}
    remote.alter(lambda ddl: (ddl.rename_column("todo", "title", "name"), ddl.rename_table("visit", "call")))
    remote.alter(lambda ddl: ddl.create(Table("other", VISIT.columns, ("id",))))
    device.read()
    assert columns(device, "todo") == ["id", "subject", "n"]
    assert in_file(device) == {"todo", "note", "visit"}
    is_consistent(device)
    device.table("todo").update({"id": "k1", "subject": "mine"})
    device.table("visit").insert({"id": "v", "at": 4})
    assert device.sync()
    assert remote.server.live()["visit", "v"]["at"] == 4
    is_consistent(device)


@pytest.mark.parametrize("offline", [False, True])
def test_after_the_update_of_the_app_the_file_has_todays_names(
    opened: Open, remote: MemoryRemote, offline: bool
) -> None:
    device = opened(schema_version=1)
    remote.alter(every_change)
    device.read()
    device.table("todo").update({"id": "k1", "title": "queued by the old app", "n": 3})
    device.table("todo").insert({"id": "new", "title": "queued, too"})
    device.close()
    remote.offline = offline
    updated = opened(start=not offline)
    is_consistent(updated)
    assert set(columns(updated, "task")) == {"id", "subject", "priority"}
    assert rows(updated, "task", "id", "subject", "priority")[1] == ("k1", "queued by the old app", 3)
    updated.table("task").update({"id": "k2", "priority": 7})
    remote.offline = False
    if offline:
        updated.start(background=False)
    assert updated.sync()
    # The table that came later is pulled now.
    agrees(updated, remote, pulls=2)
    assert remote.lost_values == [("todo", "k1", "n", 3)]


def test_an_update_to_a_version_that_the_log_is_still_to_bring(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=1)
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    device.read()
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "name"))
    device.table("todo").update({"id": "k1", "title": "queued"})
    device.close()
    updated = opened(schema_version=3)
    assert columns(updated, "todo") == ["id", "subject", "n"]
    updated.read()
    assert columns(updated, "todo") == ["id", "name", "n"]
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "label"))
    assert updated.sync()
    assert columns(updated, "todo") == ["id", "name", "n"]
    assert remote.server.live()["todo", "k1"]["title"] == "queued"
    is_consistent(updated)


def test_a_version_that_the_file_has_come_beyond_is_asked_for(opened: Open, remote: MemoryRemote) -> None:
    """An app of before comes back to the file of a later one: it needs the network once."""
    device = opened()
    remote.alter(every_change)
    remote.alter(lambda ddl: ddl.rename_column("note", "body", "text"))
    device.read()
    device.table("task").update({"id": "k1", "subject": "by the new one"})
    device.close()
    back = opened(schema_version=1, start=False)
    assert "task" in in_file(back)
    back.start(background=False)
    assert back.sync()
    sees_version_1(back, remote)
    assert columns(back, "note") == ["id", "body"]
    assert remote.server.live()["todo", "k1"]["title"] == "by the new one"
    back.close()
    again = opened(schema_version=2)
    assert again.sync()
    assert in_file(again) == {"task", "note", "visit"}
    assert columns(again, "note") == ["id", "body"]
    is_consistent(again)


@pytest.mark.parametrize("breaking", ["retyped", "another key"])
def test_what_can_not_be_told_stops_the_sync_and_loses_nothing(
    opened: Open, remote: MemoryRemote, breaking: str
) -> None:
    device = opened(schema_version=1)
    events = told(device)
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "subject"))
    device.table("todo").update({"id": "k1", "title": "queued", "n": 4})
    if breaking == "retyped":
        remote.alter(lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", str))
    else:
        remote.alter(lambda ddl: ddl.make_anew(TODO, [{"id": "k1", "title": "t", "n": 1}]))
    with pytest.raises(AppOutdated, match="too old") as raised:
        device.read()
    assert raised.value.version == 3
    assert states(events) == ["app_outdated"]
    assert device.status().needs_schema_version == 3
    assert rows(device, "todo", "id", "title", "n")[1] == ("k1", "queued", 4)
    sends = remote.calls.get("send", 0)
    with pytest.raises(AppOutdated, match="needs 3 by now"):
        device.flush()
    with pytest.raises(AppOutdated):
        device.sync()
    assert remote.calls.get("send", 0) == sends
    assert states(events) == ["app_outdated"]
    device.table("todo").update({"id": "k2", "title": "goes on writing"})
    device.close()
    again = opened(schema_version=1)
    with pytest.raises(AppOutdated):
        again.read()
    assert again.status().queued == 2
    again.close()
    updated = opened()
    assert updated.sync()
    assert updated.status().needs_schema_version == 0
    assert (remote.server.live()["todo", "k1"]["title"]) == "queued"
    agrees(updated, remote, pulls=1 if breaking == "retyped" else 2)


def test_a_first_start_that_can_not_be_told_says_so(opened: Open, remote: MemoryRemote) -> None:
    remote.alter(lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", str))
    device = opened(schema_version=1, start=False)
    with pytest.raises(AppOutdated):
        device.start(background=False)
    device.close()
    again = opened(schema_version=2)
    agrees(again, remote)


def test_the_server_is_asked_for_both_descriptions_of_one_version(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=1)
    assert remote.described_for == [0]
    remote.alter(lambda ddl: ddl.rename_column("todo", "title", "a"))
    describe, altered = remote.describe, list[int]()

    def altering(request: Any, timeout_s: float = 0) -> Any:
        response = describe(request, timeout_s)
        if not request.app_version and not altered:
            altered.append(remote.alter(lambda ddl: ddl.rename_column("todo", "title", "b")))
        return response

    remote.describe = altering  # type: ignore[method-assign]
    device.read()
    device.read()
    sees_version_1(device, remote)


def test_the_node_says_which_version_its_app_has(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=1)
    assert device._file.current().reader_state.app_version == 1
    device.clear()
    assert device._file.current().app_version == 1
    device.start(background=False)
    remote.alter(every_change)
    assert device.sync()
    sees_version_1(device, remote)


def test_a_choice_goes_by_the_names_that_the_app_knows(opened: Open, remote: MemoryRemote) -> None:
    remote.alter(lambda ddl: ddl.rename_table("note", "remark"))
    remote.alter(lambda ddl: ddl.create(Table("note~2", NOTE.columns, ("id",), renamed="note"), [{"id": "2"}]))
    device = opened(schema_version=1, tables=["note"])
    assert in_file(device) == {"note"}
    assert rows(device, "note")[0] == ("k0", "body 0")
    assert device.status().awaited == ()
    device.table("note").update({"id": "k1", "body": "mine"})
    assert device.sync()
    assert remote.server.live()["note", "k1"]["body"] == "mine"


def test_dead_letters_of_an_old_app_are_in_its_words(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=1)
    remote.alter(every_change)
    device.read()
    remote.server.preset("todo", "new", {"id": "new", "priority": 1})
    device.table("todo").insert({"id": "new", "title": "mine", "n": 3})
    assert device.sync()
    (letter,) = device.dead_letters()
    assert letter.mutations == (("insert", "todo", ({"id": "new", "title": "mine", "n": 3},)),)
    device.replay(letter.id, {"id": "other", "n": 4})
    assert device.sync()
    assert remote.server.live()["todo", "other"]["title"] == "mine"
    assert remote.lost_values[-1] == ("todo", "other", "n", 4)


def test_the_background_stops_and_says_so_once(opened: Open, remote: MemoryRemote) -> None:
    device = opened(schema_version=1)
    events = told(device)
    stopped = threading.Event()
    device.on_state(lambda state: stopped.set() if state.kind == "app_outdated" else None)
    remote.alter(lambda ddl: ddl.retype("todo", "n", Kind.STRING, "text", str))
    device.table("todo").update({"id": "k1", "title": "queued"})

    def subscribe(request: Any) -> Any:
        parts = remote._parts(request.after, remote.view(request.node_state))
        pages = [change_pb2.Page(groups=parts, reached=remote.position(remote.server.head))]
        return AnswerStream(iter([change_pb2.SubscribeResponse(page=page, state=remote.state()) for page in pages]))

    remote.subscribe = subscribe  # type: ignore[method-assign]
    # The sender, which knows nothing of it yet, may be quicker.
    remote.send = lambda *_: (_ for _ in ()).throw(  # type: ignore[method-assign]
        CallFailed("UNAVAILABLE", "", "later", again=True)
    )
    device._lease.release()
    device.start()
    assert stopped.wait(30)
    loop = device._syncing._loop
    assert loop is not None
    for thread in loop._threads:
        thread.join(30)
        assert not thread.is_alive()
    assert states(events).count("app_outdated") == 1
    assert device.status().queued == 1
    assert rows(device, "todo", "title")[-1] == ("title 4",)
