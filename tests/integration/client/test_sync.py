"""Devices against the real services."""

from __future__ import annotations

import sqlite3
import time
from functools import partial
from typing import Any

import pytest

from anabranch.client import Change, ConflictEvent, RowMissing, State, SyncedDb, SyncedElsewhere
from anabranch.store.catalog import registration
from anabranch.store.catalog.databases import load_database
from anabranch.store.session.engine import connect
from anabranch.testkit import waiting

until = partial(waiting.until, timeout_s=15.0)

TODO = {"todo": "id text primary key, title text, done boolean"}


def rows(device: SyncedDb, table: str = "todo") -> list[tuple[Any, ...]]:
    return device.execute(f'SELECT * FROM "{table}" ORDER BY 1').fetchall()


def sync_all(*devices: SyncedDb) -> None:
    for _ in range(2):
        for device in devices:
            assert device.sync()


def test_a_write_on_one_device_reaches_another(place: Any) -> None:
    here = place(TODO)
    a, b = here.device("a"), here.device("b")
    a.start(background=False)
    b.start(background=False)
    a.table("todo").insert({"id": "x", "title": "milk", "done": False})
    sync_all(a, b)
    assert rows(a) == rows(b) == [("x", "milk", 0)]
    assert here.sql("select * from todo") == [("x", "milk", False)]
    assert a.table_sums() == b.table_sums()
    assert (a.status().queued, a.status().disagreeing) == (0, ())


@pytest.mark.slow
def test_a_batch_that_awaits_a_row_says_so_and_holds_up_nobody(place: Any) -> None:
    here = place(TODO, policy={"park_ms": 300})
    a = here.device("a")
    a.start(background=False)
    insert = a.table("todo").insert({"id": "x", "title": "milk"})
    update = a.table("todo").update({"id": "x", "done": True})

    def awaits() -> bool:
        a._sender.flush(5.0, only=[update])
        found = a.verdict(update)
        assert found is not None
        return bool(found.reason == "AWAITS_ROW")

    until(awaits)
    told = a.verdict(update)
    assert told is not None
    assert told.status == "PENDING"
    assert "waits for row x of todo" in told.message
    # It is answered at once, and what comes after it is not held up.
    other = a.table("todo").insert({"id": "y", "title": "eggs"})
    began = time.monotonic()
    assert not a._sender.flush(20.0, only=[update, other])
    assert time.monotonic() - began < 10.0
    assert [a.verdict(one).status for one in (insert, update, other)] == ["PENDING", "PENDING", "APPLIED"]
    assert a._sender.has_work(), "the insert is to be sent"
    assert a.sync()
    assert [a.verdict(one).status for one in (insert, update, other)] == ["APPLIED"] * 3
    assert here.sql("select * from todo order by 1") == [("x", "milk", True), ("y", "eggs", None)]
    assert not a._sender.awaiting


@pytest.mark.slow
def test_a_background_asks_seldom_for_a_batch_that_awaits_a_row(place: Any) -> None:
    here = place(TODO, policy={"park_ms": 300})
    a = here.device("a")
    a.start(background=False)
    a.table("todo").insert({"id": "x", "title": "milk"})
    update = a.table("todo").update({"id": "x", "done": True})
    until(lambda: not a._sender.flush(5.0, only=[update]) and update in a._sender.awaiting)
    with a._file.transaction() as tx:
        tx.conn.execute("DELETE FROM _db_mutations_queue WHERE id <> ?", (update,))
    assert not a._sender.has_work()
    a._sender._asked_s = -1_000.0
    assert a._sender.has_work()


def test_a_first_start_pulls_every_row(place: Any) -> None:
    here = place(
        TODO, setup=["insert into todo select 'k' || g, 'title ' || g, g % 2 = 0 from generate_series(1, 5000) g"]
    )
    seen: list[Any] = []
    a = here.device("a")
    a.start(background=False, progress=seen.append)
    assert a.execute("SELECT count(*), sum(done) FROM todo").fetchone() == (5000, 2500)
    assert seen[-1].rows_done == 5000
    assert seen[-1].done
    assert a.status().pulls == 1
    a.read()
    assert a.status().disagreeing == ()


def test_a_rejected_batch_is_buried_and_later_ones_that_fit_are_kept(place: Any) -> None:
    here = place(TODO)
    a, b = here.device("a"), here.device("b", subject="b")
    events: list[Change] = []
    states: list[State] = []
    b.on_change(events.append)
    b.on_state(states.append)
    for device in (a, b):
        device.start(background=False)
    a.table("todo").insert([{"id": "x", "title": "milk", "done": False}, {"id": "y", "title": "eggs", "done": False}])
    sync_all(a, b)
    events.clear()
    todo = b.table("todo")
    todo.update({"id": "x", "title": "b1"})
    todo.update({"id": "y", "title": "b2"})
    todo.update({"id": "x", "done": True})
    todo.update({"id": "y", "done": True})
    a.table("todo").delete("x")
    assert a.sync()
    sync_all(b, a)
    assert rows(a) == rows(b) == [("y", "b2", 1)]
    letters = b.dead_letters()
    assert [(d.reason, d.table, d.key) for d in letters] == [("ROW_DELETED", "todo", ("x",))] * 2
    assert [s.kind for s in states].count("dead_letter") == 2
    shown: dict[str, Any] = {}
    assert [e.origin for e in events if e.origin == "local"] == ["local"] * 4
    for event in events:
        shown[event.key[0]] = event.row
    assert shown == {"x": None, "y": {"id": "y", "title": "b2", "done": 1}}
    with pytest.raises(RowMissing):
        b.replay(letters[0].id)
    b.discard(letters[0].id)
    b.table("todo").insert({"id": "x", "title": "anew", "done": False})
    b.replay(letters[1].id, set={"done": False})
    sync_all(b, a)
    assert b.dead_letters() == []
    assert rows(a) == rows(b) == [("x", "anew", 0), ("y", "b2", 1)]


def test_conflicts_are_told_to_both_sides(place: Any) -> None:
    here = place(TODO)
    a, b = here.device("a"), here.device("b")
    told: dict[str, list[ConflictEvent]] = {"a": [], "b": []}
    a.on_conflict(told["a"].append)
    b.on_conflict(told["b"].append)
    for device in (a, b):
        device.start(background=False)
    a.table("todo").insert({"id": "x", "title": "milk", "done": False})
    sync_all(a, b)
    mine = a.table("todo").update({"id": "x", "title": "from a"})
    theirs = b.table("todo").update({"id": "x", "title": "from b"})
    sync_all(a, b)
    assert rows(a) == rows(b) == [("x", "from b", 0)]
    expected = ("todo", ("x",), "title", "from a", mine, theirs)
    for name, outcome in (("a", "lost"), ("b", "overwrote")):
        assert [
            (e.table, e.key, e.column, e.losing_value, e.losing_batch_id, e.winning_batch_id) for e in told[name]
        ] == [expected]
        assert told[name][0].outcome == outcome


def test_the_background_carries_writes_both_ways(place: Any) -> None:
    here = place(TODO)
    a, b = here.device("a"), here.device("b")
    a.start()
    b.start()
    for i in range(20):
        a.table("todo").insert({"id": f"a{i:02}", "title": "from a", "done": False})
        b.table("todo").insert({"id": f"b{i:02}", "title": "from b", "done": False})
    until(lambda: len(rows(a)) == len(rows(b)) == 40)
    until(lambda: a.status().queued == b.status().queued == 0)
    assert a.table_sums() == b.table_sums()
    assert a.status().leader


@pytest.mark.slow
def test_a_long_flush_goes_by_stream_and_large_batches_in_parts(place: Any) -> None:
    here = place(TODO)
    a, b = here.device("a"), here.device("b")
    a.start(background=False)
    b.start(background=False)
    todo = a.table("todo")
    for i in range(1200):
        todo.insert({"id": f"k{i:04}", "title": "t", "done": False})
    big = "x" * 9_000_000
    todo.insert({"id": "big", "title": big, "done": False})
    todo.update({"id": "k0000", "title": "after"})
    sync_all(a, b)
    assert a.status().queued == 0
    assert rows(a) == rows(b)
    assert b.execute("SELECT title = ? FROM todo WHERE id = 'big'", (big,)).fetchone() == (1,)
    assert here.sql("select count(*) from todo") == [(1201,)]


@pytest.mark.slow
def test_two_devices_on_one_file_have_one_that_syncs(place: Any) -> None:
    here = place(TODO)
    a = here.device("a")
    a.start()
    other = here.device("a")
    other.start()
    with pytest.raises(SyncedElsewhere):
        other.flush()
    assert not other.status().leader
    other.table("todo").insert({"id": "x", "title": "by the other", "done": False})
    until(lambda: here.sql("select count(*) from todo") == [(1,)])
    a.stop()
    until(lambda: other.status().leader)
    a.table("todo").update({"id": "x", "title": "by the first"})
    until(lambda: here.sql("select title from todo") == [("by the first",)])


def test_a_copied_file_takes_a_new_node_id_and_keeps_its_queue(place: Any) -> None:
    here = place(TODO)
    a = here.device("a")
    a.start(background=False)
    a.table("todo").insert({"id": "x", "title": "one", "done": False})
    assert a.sync()
    a.table("todo").insert({"id": "y", "title": "in both", "done": False})
    with sqlite3.connect(here.folder / "a.db") as one, sqlite3.connect(here.folder / "c.db") as two:
        one.backup(two)
    a.table("todo").insert({"id": "z", "title": "by a", "done": False})
    assert a.sync()
    c = here.device("c")
    states: list[State] = []
    c.on_state(states.append)
    before = c.status().node_id
    c.start(background=False)
    c.table("todo").insert({"id": "w", "title": "by the copy", "done": False})
    sync_all(c, a)
    assert c.status().node_id != before
    assert "node_forked" in [s.kind for s in states]
    assert rows(a) == rows(c)
    assert [r[0] for r in rows(a)] == ["w", "x", "y", "z"]
    assert (a.dead_letters(), c.dead_letters()) == ([], [])


def test_a_table_that_is_registered_later_comes_to_devices_that_run(place: Any) -> None:
    here = place(TODO)
    a = here.device("a")
    a.start(background=False)
    with connect(here.stack.database_url, application_name="test", autocommit=True) as conn:
        conn.execute(f'create table "{here.name}".late (id text primary key)'.encode())
        conn.execute(f"insert into \"{here.name}\".late values ('there before')".encode())
        registration.add_table(conn, here.name, "late")
    b = here.device("b")
    b.start(background=False)
    b.table("late").insert({"id": "written since"})
    assert b.sync()
    until(lambda: (a.read(), rows_of_late(a))[1] == [("there before",), ("written since",)])
    assert a.status().pulls == 2
    a.read()
    assert a.table_sums() == b.table_sums()
    assert a.status().disagreeing == ()


def rows_of_late(device: SyncedDb) -> list[tuple[Any, ...]]:
    known = device.execute("SELECT 1 FROM sqlite_master WHERE name = 'late'").fetchone()
    return rows(device, "late") if known else []


@pytest.mark.slow
def test_a_table_made_anew_under_its_name_is_pulled_once_it_is_added(place: Any) -> None:
    """Of another type, with other rows, while a device stands in the middle of its log."""
    here = place({**TODO, "stock": "id text primary key, n integer"}, setup=["insert into stock values ('old', 1)"])
    a = here.device("a")
    a.start(background=False)
    a.table("todo").insert({"id": "kept", "title": "milk", "done": False})
    a.table("stock").insert({"id": "lost", "n": 2})
    assert a.sync()
    told: list[Any] = []
    a.on_change(told.append)
    here.sql("drop table stock; create table stock (id text primary key, n text)")
    here.sql("insert into stock values ('new', 'x')")
    with connect(here.stack.database_url, application_name="test", autocommit=True) as conn:
        until(lambda: "stock" not in load_database(conn, here.name).by_sql_name)
        registration.add_table(conn, here.name, "stock")
    b = here.device("b")
    b.start(background=False)
    b.table("stock").insert({"id": "since", "n": "y"})
    assert b.sync()
    until(lambda: (a.read(), rows(a, "stock"))[1] == [("new", "x"), ("since", "y")])
    a.table("stock").update({"id": "new", "n": "by a"})
    sync_all(a, b)
    assert rows(a, "stock") == rows(b, "stock") == [("new", "by a"), ("since", "y")]
    # One pull more, which brought nothing of the other table: its rows stayed as they were.
    assert a.status().pulls == 2
    assert {change.table for change in told} == {"stock"}
    a.read()
    assert (a.table_sums(), a.status().disagreeing) == (b.table_sums(), ())


def test_the_rows_of_a_table_that_is_no_longer_synced_are_told_of_as_they_go(place: Any) -> None:
    here = place({**TODO, "gone": "id text primary key"}, setup=["insert into gone values ('one'), ('two')"])
    a = here.device("a")
    a.start(background=False)
    told: list[Any] = []
    a.on_change(told.append)
    with connect(here.stack.database_url, application_name="test", autocommit=True) as conn:
        registration.remove_table(conn, here.name, "gone")

    def is_gone() -> bool:
        a.read()
        return a.execute("SELECT 1 FROM sqlite_master WHERE name = 'gone'").fetchone() is None

    until(is_gone)
    assert sorted((c.table, c.type, c.key, c.row, c.origin) for c in told) == [
        ("gone", "delete", ("one",), None, "snapshot"),
        ("gone", "delete", ("two",), None, "snapshot"),
    ]
