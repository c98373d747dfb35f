"""A device's life: first start, restart, copy, other people, several processes, background sync."""

from __future__ import annotations

import queue
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

from anabranch.client import CallFailed, Change, RowExists, RowMissing, State
from anabranch.testkit.stack import Stack
from anabranch.testkit.story import Teller, new_id
from anabranch.testkit.waiting import until

pytestmark = pytest.mark.slow
"""Each of its stories takes a second or two of several processes."""

LISTS = {
    "list": "id text primary key, name text",
    "todo": "id text primary key, list_id text references @list (id), title text, done boolean",
}
TODO = {"todo": "id text primary key, title text, done boolean"}
DEADLINE_S = 20.0


def title(change: Change) -> str | None:
    return None if change.row is None else change.row["title"]


def test_a_new_node_has_every_row_after_its_first_start(story: Teller) -> None:
    told = story(LISTS)
    a, li, t = told.node("a"), new_id(), new_id()
    with a.batch() as db:
        db.table("list").insert({"id": li, "name": "groceries"})
        db.table("todo").insert({"id": t, "list_id": li, "title": "milk", "done": False})
    a.sync()
    b = told.node("b")
    assert b.rows("list") == told.server("list") == [(li, "groceries")]
    assert b.rows("todo") == [(t, li, "milk", 0)]
    assert a.outcomes == [["APPLIED", "APPLIED"]]
    assert (b.db.status().pulls, b.db.status().queued) == (1, 0)


def test_promise_5_rows_of_a_pull_and_of_the_log_are_the_servers(story: Teller) -> None:
    told = story(
        TODO, setup=["insert into @todo select 'k' || g, 'title ' || g, g % 3 = 0 from generate_series(1, 3000) g"]
    )
    a, b = told.node("a"), told.node("b")
    a.delete("todo", *[f"k{n}" for n in range(1, 500)])
    a.insert("todo", *[{"id": f"n{n}", "title": "new", "done": None} for n in range(200)])
    b.update("todo", *[{"id": f"k{n}", "title": "changed"} for n in range(1000, 1400)])
    told.sync()
    late = told.node("late")
    assert a.db.table_sums() == b.db.table_sums() == late.db.table_sums()
    assert a.db.table_sums()["todo"][0] == 3000 - 499 + 200


def test_a_restarted_device_goes_on_where_it_was(story: Teller) -> None:
    told = story(TODO)
    a, b, x, y = told.node("a"), told.node("b"), new_id(), new_id()
    a.insert("todo", {"id": x, "title": "one"})
    told.sync()
    b.offline()
    b.update("todo", {"id": x, "title": "two"})
    b.reopen()
    assert b.rows("todo", "title") == [("two",)]
    b.insert("todo", {"id": y, "title": "three"})
    b.sync()
    a.sync()
    b.online()
    b.reopen()
    told.sync()
    assert told.server("todo", "id", "title") == sorted([(x, "two"), (y, "three")])
    assert b.db.status().pulls == 1


def test_a_copied_file_is_noticed_takes_a_new_node_id_and_keeps_its_queue(story: Teller) -> None:
    told = story(TODO)
    a, x, y, z = told.node("a"), new_id(), new_id(), new_id()
    a.insert("todo", {"id": x, "title": "one"})
    told.sync()
    a.insert("todo", {"id": y, "title": "queued before the copy"})
    c = told.copy(a, "c")
    states: list[State] = []
    c.db.on_state(states.append)
    node_id = c.db.status().node_id
    assert node_id == a.db.status().node_id
    c.insert("todo", {"id": z, "title": "queued on the copy"})
    a.sync()
    c.sync()
    assert "node_forked" in [s.kind for s in states]
    assert c.db.status().node_id != node_id == a.db.status().node_id
    told.sync()
    # The batch that both carried was applied once; the copy's own is there as well.
    assert told.server("todo", "id") == sorted([(x,), (y,), (z,)])
    assert len(told.logged) == 3


def test_somebody_else_on_the_same_file_is_refused_until_it_is_cleared(story: Teller, stack: Stack) -> None:
    told = story(TODO)
    a, x, y = told.node("a", subject="alice"), new_id(), new_id()
    a.insert("todo", {"id": x, "title": "alice's"})
    told.sync()
    a.insert("todo", {"id": y, "title": "alice's, unsent"})
    alice, key = a.key, stack.new_key("carol", database=told.name)
    with pytest.raises(CallFailed) as refused:
        a.reopen(key=key)
    assert refused.value.reason == "WRONG_PRINCIPAL"
    for call in (a.db.sync, lambda: a.db.execute("SELECT * FROM todo")):
        with pytest.raises(CallFailed) as refused:
            call()
        assert refused.value.reason == "WRONG_PRINCIPAL"
    assert told.server("todo", "id") == [(x,)]
    a.reopen(key=alice)
    told.sync()
    assert told.server("todo", "id") == sorted([(x,), (y,)])
    before = a.db.status().node_id
    a.db.clear()
    assert a.db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'todo'").fetchone() == (0,)
    a.reopen(key=key)
    assert a.rows("todo", "id") == sorted([(x,), (y,)])
    assert a.db.status().node_id != before
    a.made.clear()
    a.update("todo", {"id": x, "title": "carol's"})
    told.sync()
    assert told.server("todo", "id", "title") == sorted([(x, "carol's"), (y, "alice's, unsent")])


def test_clear_leaves_nothing_of_the_rows_in_the_file(story: Teller) -> None:
    told = story(TODO)
    a = told.node("a")
    secret = "a secret that nobody must find"
    a.insert("todo", {"id": new_id(), "title": secret})
    told.sync()
    a.insert("todo", {"id": new_id(), "title": f"unsent {secret}"})
    a.made.pop()
    a.db.clear()
    for file in a.file.parent.glob(f"{a.file.name}*"):
        assert secret.encode() not in file.read_bytes(), file.name
    a.reopen()


def test_in_the_background_a_commit_on_one_device_is_shown_on_the_other_at_once(story: Teller) -> None:
    told = story(TODO)
    a, b, x = told.node("a", start=False), told.node("b", start=False), new_id()
    shown: queue.Queue[Change] = queue.Queue()
    b.db.on_change(shown.put)
    a.db.start()
    b.db.start()
    try:
        a.insert("todo", {"id": x, "title": "milk", "done": False})
        first = shown.get(timeout=DEADLINE_S)
        assert (first.type, first.key, first.origin) == ("insert", (x,), "remote")
        assert first.row == {"id": x, "title": "milk", "done": 0}
        b.update("todo", {"id": x, "done": True})
        own = shown.get(timeout=DEADLINE_S)
        assert (own.origin, own.columns) == ("local", ("done",))
        a.update("todo", {"id": x, "title": "oat milk"})
        second = shown.get(timeout=DEADLINE_S)
        assert (second.origin, second.columns) == ("remote", ("title",))
        assert shown.empty(), "each change is told exactly once"
    finally:
        a.db.stop()
        b.db.stop()


def test_in_the_background_a_device_gets_over_a_restart_of_every_service(story: Teller, stack: Stack) -> None:
    told = story(TODO)
    a, b, x = told.node("a", start=False), told.node("b", start=False), new_id()
    shown: queue.Queue[Change] = queue.Queue()
    states: queue.Queue[str] = queue.Queue()
    b.db.on_change(shown.put)
    b.db.on_state(lambda state: states.put(state.kind))
    a.db.start()
    b.db.start()
    try:
        a.insert("todo", {"id": x, "title": "before"})
        assert title(shown.get(timeout=DEADLINE_S)) == "before"
        for service in ("snapshot", "ingest", "conflict-resolver"):
            stack.kill(service)
        kind = states.get(timeout=DEADLINE_S)
        while kind != "offline":
            kind = states.get(timeout=DEADLINE_S)
        a.update("todo", {"id": x, "title": "meanwhile"})
        for service in ("snapshot", "ingest", "conflict-resolver"):
            stack.restart(service)
        a.db.network_up()
        b.db.network_up()
        assert title(shown.get(timeout=DEADLINE_S)) == "meanwhile"
    finally:
        a.db.stop()
        b.db.stop()


def test_stopping_does_not_wait_for_a_verdict_that_does_not_come(story: Teller, stack: Stack) -> None:
    told = story(TODO)
    a, x = told.node("a", start=False), new_id()
    a.db.start()
    stack.kill("conflict-resolver")
    waits = "select count(*) from anabranch.inbox where database_id = %s"
    a.insert("todo", {"id": x, "title": "milk"})
    until(lambda: told.sql(waits, [told.database.id]) == [(1,)], DEADLINE_S, "the batch is not sent")
    began = time.monotonic()
    a.db.stop()
    assert time.monotonic() - began < 5
    assert a.db.status().unsent == 1
    stack.restart("conflict-resolver")
    told.sync()
    assert told.server("todo", "id") == [(x,)]


OTHER_PROCESS = """
import sys
from anabranch.client import RemoteDb, SyncedDb, SyncedElsewhere
file, name, ingest, snapshot, resolver, token = sys.argv[1:]
db = SyncedDb(file, RemoteDb(ingest=ingest, snapshot=snapshot, resolver=resolver, token=token), name)
try:
    db.sync()
except SyncedElsewhere:
    print("follows", flush=True)
db.start()
for line in sys.stdin:
    print(db.table("todo").insert({"id": line.strip(), "title": "from the other process"}), flush=True)
db.close()
"""


def test_of_two_processes_on_one_file_one_syncs_for_both_and_the_other_takes_over(story: Teller, stack: Stack) -> None:
    told = story(TODO)
    a, b = told.node("a", start=False), told.node("b", start=False)
    shown: queue.Queue[Change] = queue.Queue()
    b.db.on_change(shown.put)
    a.db.start()
    b.db.start()
    addresses = [stack.addresses[n] for n in ("ingest", "snapshot", "conflict-resolver")]
    with subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS, str(a.file), told.name, *addresses, a.key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        guard = threading.Timer(60, other.kill)
        guard.start()
        try:
            assert other.stdin is not None
            assert other.stdout is not None
            assert other.stdout.readline() == "follows\n"
            x, y = new_id(), new_id()
            print(x, file=other.stdin, flush=True)
            first = other.stdout.readline().strip()
            assert shown.get(timeout=DEADLINE_S).key == (x,), "the leader sends what the other process queued"
            a.db.stop()
            print(y, file=other.stdin, flush=True)
            second = other.stdout.readline().strip()
            assert second > first
            assert shown.get(timeout=DEADLINE_S).key == (y,), "the other process took over"
            other.stdin.close()
            assert other.wait(timeout=DEADLINE_S) == 0
        finally:
            guard.cancel()
            b.db.stop()
    a.reopen()
    told.sync()
    assert told.server("todo", "id") == sorted([(x,), (y,)])


def test_a_failing_local_write_queues_nothing(story: Teller) -> None:
    told = story(TODO)
    a, x = told.node("a"), new_id()
    a.insert("todo", {"id": x, "title": "milk"})

    with pytest.raises(RowExists):
        a.insert("todo", {"id": x, "title": "again"})
    with pytest.raises(RowMissing):
        a.update("todo", {"id": new_id(), "title": "nobody"})
    with pytest.raises(ValueError, match="NUL"):
        a.update("todo", {"id": x, "title": "a\0b"})
    with pytest.raises(sqlite3.OperationalError):
        a.db.execute("UPDATE todo SET title = 'past the queue'")
    assert a.db.status().unsent == 1
    told.sync()
    assert told.server("todo", "title") == [("milk",)]
