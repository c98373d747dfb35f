"""Failures that users of such systems reported, each told as a story of its kind, against the real services."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from anabranch.client import CallFailed, Change, State
from anabranch.store import api_keys
from anabranch.testkit.stack import Stack
from anabranch.testkit.story import Teller, new_id
from anabranch.testkit.story_node import StoryNode

TODO = {"todo": "id text primary key, title text, done boolean"}
COUNTED = {"counted": "id text primary key, n bigint not null default 0"}
COUNTER = {"counted": {"columns": {"n": "counter"}}}
DEADLINE_S = 30.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.01)


def fails(node: StoryNode, method: str, error: Exception, times: int) -> list[int]:
    """Have the next ``times`` calls of a method fail before they are made; gives how many did, as they do."""
    real = getattr(node.db._remote, method)
    failed = [0]

    def call(*arguments: Any, **options: Any) -> Any:
        if failed[0] < times:
            failed[0] += 1
            raise error
        return real(*arguments, **options)

    setattr(node.db._remote, method, call)
    return failed


UNAVAILABLE = CallFailed("UNAVAILABLE", "", "away", again=True)


def test_a_pending_value_does_not_flicker_while_pulls_succeed_and_pushes_fail(story: Teller) -> None:
    """Kind: wrong merge. Five times the log is read and nothing can be sent."""
    told = story(TODO)
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    told.sync()
    shown: list[Any] = []
    b.db.on_change(lambda change: shown.append(change.row and change.row["title"]))
    b.update("todo", {"id": x, "title": "mine"})
    fails(b, "send", UNAVAILABLE, 5)
    for n in range(5):
        a.update("todo", {"id": x, "title": f"theirs {n}", "done": bool(n % 2)})
        a.sync()
        with pytest.raises(CallFailed):
            b.flush()
        b.read()
        assert b.rows("todo", "title") == [("mine",)]
    told.sync()
    assert set(shown) == {"mine"}
    assert told.server("todo", "title") == a.rows("todo", "title") == [("mine",)]


def test_an_incoming_row_that_collides_on_an_apps_unique_index_removes_no_other_row(story: Teller) -> None:
    """Kind: data loss."""
    told = story({"todo": "id text primary key, title text constraint one_title unique"})
    a, b, x, y = told.node("a"), told.node("b"), new_id(), new_id()
    a.insert("todo", {"id": x, "title": "first"})
    told.sync()
    with closing(sqlite3.connect(b.file)) as conn:
        conn.execute("CREATE UNIQUE INDEX apps_own ON todo (title)")
    states: list[State] = []
    b.db.on_state(states.append)
    b.insert("todo", {"id": y, "title": "taken"})
    a.update("todo", {"id": x, "title": "taken"})
    a.sync()
    b.read()
    assert ("set_aside", "todo") in [(s.kind, s.table) for s in states]
    assert b.rows("todo") == sorted([(x, "first"), (y, "taken")])
    b.db._reader._patience.clear()
    told.sync()
    b.db._reader._patience.clear()
    told.sync()
    assert b.dead == [("CONSTRAINT", "todo")]
    assert b.rows("todo") == told.server("todo") == [(x, "taken")]


@pytest.mark.parametrize("deferrable", ["", " deferrable initially deferred"])
@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_list_loses_an_item_and_the_rest_moves_up(story: Teller, deferrable: str, one_by_one: bool) -> None:
    """Kind: wrong merge. The positions are unique, and each row takes the place of the one before it."""
    told = story({"item": f"id text primary key, pos bigint constraint one_place unique{deferrable}"})
    a, b = told.node("a"), told.node("b")
    a.insert("item", *[{"id": f"i{n}", "pos": n} for n in range(5)])
    told.sync()
    with b.batch() as db:
        db.table("item").delete("i1")
        moved = [{"id": f"i{n}", "pos": n - 1} for n in (2, 3, 4)]
        for rows in [[row] for row in moved] if one_by_one else [moved]:
            db.table("item").update(rows)
    told.sync()
    assert b.dead == []
    expected = [("i0", 0), ("i2", 1), ("i3", 2), ("i4", 3)]
    assert told.server("item") == a.rows("item") == expected


@pytest.mark.parametrize("first", ["a", "b"])
def test_of_two_edits_of_the_same_millisecond_the_same_one_wins_in_either_order(story: Teller, first: str) -> None:
    """Kind: wrong merge. The greater id decides, whichever arrives first."""
    told = story(TODO, policy={"order": "edit"})
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk"})
    told.sync()
    at = told.now_ms() + 60_000
    made = {}
    for node in (a, b):
        node.db._now_ms = lambda: at
        node.db._clock.forget()
        node.offline()
        made[node.name] = node.update("todo", {"id": x, "title": node.name})
        node.db._now_ms = node._now_ms
    assert made["a"][:10] == made["b"][:10], "the same millisecond"
    told.advance(0.01)
    for node in (a, b) if first == "a" else (b, a):
        node.online()
        node.sync()
    told.sync()
    winner = max(made, key=lambda name: made[name])
    assert told.server("todo", "title") == a.rows("todo", "title") == b.rows("todo", "title") == [(winner,)]


def test_a_key_written_as_an_upper_case_uuid_is_one_row_that_its_children_find(story: Teller) -> None:
    """Kind: duplicate."""
    told = story(
        {
            "parent": "id uuid primary key, name text",
            "child": "id text primary key, parent_id uuid references @parent (id)",
        }
    )
    a, b = told.node("a"), told.node("b")
    key = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
    a.insert("parent", {"id": key.upper(), "name": "one"})
    a.insert("child", {"id": "c", "parent_id": key.upper()})
    told.sync()
    b.update("parent", {"id": key.upper(), "name": "two"})
    b.insert("child", {"id": "d", "parent_id": key})
    told.sync()
    joined = "SELECT c.id, p.id, p.name FROM child c JOIN parent p ON p.id = c.parent_id ORDER BY 1"
    for node in (a, b):
        assert node.dead == []
        assert node.db.execute(joined).fetchall() == [("c", key, "two"), ("d", key, "two")]
    assert told.sql(f"select count(*) from {told.name}.parent") == [(1,)]


def test_after_one_failed_call_the_queue_drains_without_a_further_write(story: Teller) -> None:
    """Kind: stuck queue. A single UNAVAILABLE, then silence."""
    told = story(TODO)
    a = told.node("a")
    a.insert("todo", {"id": "x", "title": "milk"})
    failed = fails(a, "send", UNAVAILABLE, 1)
    a.db.start()
    until(lambda: a.db.status().queued == 0)
    assert failed == [1]
    a.db.stop()
    assert told.server("todo", "id") == [("x",)]


def test_an_incoming_row_that_an_app_refuses_is_not_lost_once_the_app_is_mended(story: Teller) -> None:
    """Kind: data loss. Row 6 of 10."""
    told = story(TODO)
    a, b = told.node("a"), told.node("b")
    with closing(sqlite3.connect(b.file)) as conn:
        conn.execute(
            "CREATE TRIGGER apps_check BEFORE INSERT ON todo WHEN new.id = 'r6' "
            "BEGIN SELECT RAISE(ABORT, 'the app does not like it'); END"
        )
    a.insert("todo", *[{"id": f"r{n}", "title": f"row {n}"} for n in range(1, 11)])
    a.sync()
    b.read()
    assert ("r6",) not in b.rows("todo", "id")
    with closing(sqlite3.connect(b.file)) as conn:
        conn.execute("DROP TRIGGER apps_check")
    b.reopen()
    told.sync()
    assert b.rows("todo", "id") == a.rows("todo", "id")
    assert len(b.rows("todo", "id")) == 10


def test_a_local_batch_whose_sixth_row_is_refused_queues_none_and_works_once_it_is_mended(story: Teller) -> None:
    """Kind: data loss, the way out."""
    told = story(TODO)
    a = told.node("a")
    rows: list[dict[str, Any]] = [{"id": f"r{n}", "title": f"row {n}"} for n in range(10)]
    rows[5]["title"] = "a\0b"
    with pytest.raises(ValueError, match=r"todo\.title: has a NUL"):
        a.insert("todo", *rows)
    assert (a.rows("todo"), a.db.status().queued) == ([], 0)
    rows[5]["title"] = "ab"
    a.insert("todo", *rows)
    told.sync()
    assert len(told.server("todo")) == 10


LEADER = """
import sys
from anabranch.client import RemoteDb, SyncedDb
file, name, snapshot, resolver, token = sys.argv[1:]
nowhere = RemoteDb(ingest="127.0.0.1:1", snapshot=snapshot, resolver=resolver, token=token)
db = SyncedDb(file, nowhere, name)
db.start()
for n in range(4):
    db.table("counted").update({"id": "x", "n": n + 1})
print("leads" if db.status().leader else "follows", db.status().unsent, flush=True)
sys.stdin.read()
"""


def test_the_process_that_syncs_is_killed_with_writes_pending_and_another_sends_each_once(
    story: Teller, stack: Stack
) -> None:
    """Kind: stuck queue."""
    told = story(COUNTED, table_policies=COUNTER)
    a = told.node("a")
    a.insert("counted", {"id": "x"})
    told.sync()
    a.db.stop()
    addresses = [stack.addresses[n] for n in ("snapshot", "conflict-resolver")]
    with subprocess.Popen(
        [sys.executable, "-c", LEADER, str(a.file), told.name, *addresses, a.key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as leader:
        try:
            assert leader.stdout is not None
            assert leader.stdout.readline() == "leads 4\n"
            a.db.start()
            assert not a.db.status().leader
            assert a.rows("counted") == [("x", 4)]
        finally:
            leader.kill()
            leader.wait()
    until(lambda: a.db.status().queued == 0)
    assert a.db.status().leader
    a.db.stop()
    assert told.server("counted") == [("x", 4)]
    assert len(told.logged) == 5


def test_a_device_that_slept_past_its_tokens_end_gets_a_new_one_and_drops_nothing(story: Teller) -> None:
    """Kind: stuck queue. The callback fails, too, while there is nothing to log in at."""
    told = story(TODO)
    a = told.node("a")
    keys = [a.key]
    login_fails = [True]
    tried: list[None] = []

    def token() -> str:
        if len(keys) > 1 and login_fails[0]:
            tried.append(None)
            raise ConnectionError("no network to log in")
        return keys[-1]

    a.db._remote._token = token
    a.insert("todo", {"id": "x", "title": "made before the end"})
    parts = api_keys.split_key(a.key)
    assert parts is not None
    assert api_keys.revoke(told.conn, parts[0], 1)
    states: list[State] = []
    a.db.on_state(states.append)

    def refused() -> bool:
        try:
            a.db.flush()
        except CallFailed as error:
            return error.code == "UNAUTHENTICATED"
        return False

    # The services notice within seconds; what they take before that is no matter here.
    until(lambda: bool(a.insert("todo", {"id": new_id()})) and refused())
    a.db.start()
    until(lambda: any(s.kind == "unauthenticated" for s in states))
    a.insert("todo", {"id": "y", "title": "made while it slept"})
    keys.append(told.stack.new_key("user-a", database=told.name))
    asked = len(tried)
    a.db.network_up()
    until(lambda: len(tried) > asked)
    login_fails[0] = False
    a.db.network_up()
    until(lambda: a.db.status().queued == 0)
    a.db.stop()
    assert a.dead == []
    assert {("x",), ("y",)} <= set(told.server("todo", "id"))


def test_ten_increments_sent_eleven_times_around_a_crash_count_ten(story: Teller, stack: Stack) -> None:
    """Kind: duplicate. The first execution is committed, and its process dies before anybody is answered."""
    told = story(COUNTED, table_policies=COUNTER)
    a, b = told.node("a"), told.node("b")
    a.insert("counted", {"id": "x"})
    told.sync()
    with a.batch() as db:
        for n in range(10):
            db.table("counted").update({"id": "x", "n": n + 1})
    deaths = stack.arm("conflict-resolver", "after_commit")
    a.db.flush(0.5)
    stack.wait_died("conflict-resolver", deaths)
    stack.restart("conflict-resolver")
    verdicts = a.resend(2, times=10)
    assert len({v.SerializeToString() for v in verdicts}) == 1
    told.sync()
    assert told.server("counted") == b.rows("counted") == [("x", 10)]
    assert a.verdicts[1] == verdicts[0]


def test_a_deadline_shorter_than_the_commit_and_a_retry_in_other_chunks_apply_each_once(
    story: Teller, stack: Stack
) -> None:
    """Kind: duplicate."""
    told = story(COUNTED, table_policies=COUNTER)
    a, b = told.node("a"), told.node("b")
    a.insert("counted", {"id": "x"}, {"id": "y"})
    told.sync()
    for n in range(6):
        with a.batch() as db:
            db.table("counted").update({"id": "x", "n": n + 1})
            db.table("counted").update({"id": "y", "n": n + 1})
    stack.stop_signal("conflict-resolver")
    try:
        assert not a.db.flush(1.0)
        first, second, *rest = a.unsent
        for chunk in ([second], [first, *rest[:1]], rest):
            assert not a.db._sender.flush(0.3, only=chunk)
        assert a.db.status().unsent == 6
    finally:
        stack.continue_signal("conflict-resolver")
    told.sync()
    assert told.server("counted") == b.rows("counted") == [("x", 6), ("y", 6)]
    assert len(told.logged) == 7


def test_a_local_transaction_that_clears_the_queue_and_keeps_failing_heals_without_wiping(story: Teller) -> None:
    """Kind: stuck queue."""
    told = story(COUNTED, table_policies=COUNTER)
    a = told.node("a")
    a.insert("counted", {"id": "x"})
    told.sync()
    a.update("counted", {"id": "x", "n": 1})
    with closing(sqlite3.connect(a.file)) as conn:
        conn.execute(
            "CREATE TRIGGER broken BEFORE DELETE ON _db_mutations_queue BEGIN SELECT RAISE(ABORT, 'broken'); END"
        )
    for _ in range(5):
        a.flush()
        with pytest.raises(sqlite3.IntegrityError, match="broken"):
            a.read()
        assert a.rows("counted") == [("x", 1)]
    states: list[State] = []
    a.db.on_state(states.append)
    a.db.start()
    until(lambda: ("error", "broken") in [(s.kind, s.detail) for s in states])
    with closing(sqlite3.connect(a.file)) as conn:
        conn.execute("DROP TRIGGER broken")
    a.db.network_up()
    until(lambda: a.db.status().queued == 0)
    a.db.stop()
    assert a.db.status().pulls == 1
    assert told.server("counted") == a.rows("counted") == [("x", 1)]


def test_fifty_rebases_of_four_mutations_leave_four(story: Teller) -> None:
    """Kind: duplicate."""
    told = story(COUNTED, table_policies=COUNTER)
    a, b = told.node("a"), told.node("b")
    a.insert("counted", {"id": "x"})
    told.sync()
    for n in range(4):
        b.update("counted", {"id": "x", "n": n + 1})
    behind = CallFailed("OUT_OF_RANGE", "BEHIND_FLOOR", "behind the floor", again=False)
    for n in range(50):
        fails(b, "get", behind, 1)
        b.read()
        assert (b.db.status().queued, b.rows("counted")) == (4, [("x", 4)]), n
    assert b.db.status().pulls == 51
    told.sync()
    assert told.server("counted") == a.rows("counted") == [("x", 4)]
    assert len(told.logged) == 5


def test_a_second_snapshot_in_the_middle_of_the_stream_replaces(story: Teller) -> None:
    """Kind: duplicate. Counts and sums are the server's, and each row is there once."""
    told = story(TODO)
    a, b = told.node("a"), told.node("b")
    a.insert("todo", *[{"id": f"r{n:02}", "title": "first"} for n in range(40)])
    told.sync()
    changes: list[Change] = []
    b.db.on_change(changes.append)
    b.db.start()
    for n in range(5):
        a.delete("todo", f"r{n:02}")
        a.insert("todo", {"id": f"s{n:02}", "title": "second"})
        a.flush()
        b.db._reader.snapshot()
    until(lambda: b.rows("todo", "id") == told.server("todo", "id"))
    b.db.stop()
    told.sync()
    assert b.db.table_sums() == a.db.table_sums()
    assert b.db.status().pulls == 6
    assert len([c for c in changes if c.type == "delete"]) == 5
    assert len([c for c in changes if c.type == "insert"]) == 5


def test_a_lone_surrogate_is_refused_alone_and_every_other_text_comes_back_byte_for_byte(story: Teller) -> None:
    """Kind: type fidelity."""
    told = story(TODO)
    a, b = told.node("a"), told.node("b")
    texts = [
        "\U0001f600",
        "\U0001f469\u200d\U0001f680",
        unicodedata.normalize("NFC", "é"),
        unicodedata.normalize("NFD", "é"),
    ]
    with pytest.raises(ValueError, match=r"todo\.title: is no text: a lone surrogate at character 0"):
        a.insert("todo", {"id": "bad", "title": "\ud83d"})
    with a.batch() as db:
        for n, title in enumerate(texts):
            db.table("todo").insert({"id": f"t{n}", "title": title})
        with pytest.raises(ValueError, match="lone surrogate"):
            db.table("todo").insert({"id": "bad", "title": "\ud83d"})
    told.sync()
    assert len(set(texts)) == 4
    for rows in (told.server("todo", "id", "title"), b.rows("todo", "id", "title")):
        assert [(i, t.encode()) for i, t in rows] == [(f"t{n}", t.encode()) for n, t in enumerate(texts)]


def test_a_device_restored_from_an_old_copy_loses_nothing_and_repeats_nothing(story: Teller) -> None:
    """Kind: duplicate. The copy's queue was sent long ago by the file that it was copied from."""
    told = story(COUNTED, table_policies=COUNTER)
    a = told.node("a")
    a.insert("counted", {"id": "x"})
    told.sync()
    a.update("counted", {"id": "x", "n": 1})
    restored = told.copy(a, "restored")
    node = a.db.status().node_id
    a.sync()
    for n in (2, 3):
        a.update("counted", {"id": "x", "n": n})
        a.sync()
    states: list[State] = []
    restored.db.on_state(states.append)
    assert restored.rows("counted") == [("x", 1)]
    restored.update("counted", {"id": "x", "n": 11})
    restored.insert("counted", {"id": "y", "n": 5})
    restored.sync()
    assert "node_forked" in [s.kind for s in states]
    assert restored.db.status().node_id != node
    told.sync()
    assert told.server("counted") == [("x", 13), ("y", 5)]
    assert len(told.logged) == len({*(m.id for m in a.made), *(m.id for m in restored.made)}) == 6
    assert [d for n in told.nodes for d in n.dead] == []
    # The file that was copied from, still in use, is the one that keeps the old id.
    a.update("counted", {"id": "x", "n": 14})
    told.sync()
    assert a.db.status().node_id == node


def test_a_clock_years_ahead_wins_no_longer_than_until_the_next_edit_and_does_not_spread(story: Teller) -> None:
    """Kind: wrong merge."""
    told = story(TODO, policy={"order": "edit"})
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk"})
    told.sync()
    states: list[State] = []
    b.db.on_state(states.append)
    b.clock_offset_ms = 12 * 365 * 24 * 3600 * 1000
    b.update("todo", {"id": x, "title": "from 2038"})
    b.sync()
    assert [s.kind for s in states].count("clock_skew") == 1
    b.clock_offset_ms = 0
    a.sync()
    later = a.update("todo", {"id": x, "title": "from today"})
    told.sync()
    assert told.server("todo", "title") == a.rows("todo", "title") == b.rows("todo", "title") == [("from today",)]
    assert later < max(m.id for m in b.made), "the other device's ids are of today"
    b.update("todo", {"id": x, "title": "and again"})
    told.sync()
    assert told.server("todo", "title") == [("and again",)]
