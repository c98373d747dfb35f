"""Queues that got stuck, or were sent twice, as users of such systems reported it: each told as a story of its kind,
against the real services."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from anabranch.client import CallFailed, State
from anabranch.store.nodes import api_keys, key_administration
from anabranch.testkit.stack import Stack
from anabranch.testkit.story import Teller, new_id
from anabranch.testkit.waiting import until

TODO = {"todo": "id text primary key, title text, done boolean"}
COUNTED = {"counted": "id text primary key, n bigint not null default 0"}
COUNTER = {"counted": {"columns": {"n": "counter"}}}
UNAVAILABLE = CallFailed("UNAVAILABLE", "", "away", again=True)


@pytest.mark.slow
def test_after_one_failed_call_the_queue_drains_without_a_further_write(story: Teller) -> None:
    """Kind: stuck queue. A single UNAVAILABLE, then silence."""
    told = story(TODO)
    a = told.node("a")
    a.insert("todo", {"id": "x", "title": "milk"})
    failed = a.fail("send", UNAVAILABLE, 1)
    a.db.start()
    until(lambda: a.db.status().queued == 0)
    assert failed == [1]
    a.db.stop()
    assert told.server("todo", "id") == [("x",)]


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


@pytest.mark.slow
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
    assert key_administration.revoke(told.conn, parts[0], 1)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        b.fail("get", behind, 1)
        b.read()
        assert (b.db.status().queued, b.rows("counted")) == (4, [("x", 4)]), n
    assert b.db.status().pulls == 51
    told.sync()
    assert told.server("counted") == a.rows("counted") == [("x", 4)]
    assert len(told.logged) == 5
