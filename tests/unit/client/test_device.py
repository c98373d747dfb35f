"""One device: writes and their refusals, batches, threads, pulls, expiry, events, principals."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import (
    BatchState,
    CallFailed,
    Change,
    ClientError,
    RowExists,
    RowMissing,
    State,
    SyncedDb,
)
from anabranch.client.reading.row_check import RowCheck
from anabranch.testkit.memory_remote import MemoryRemote

DAY_MS = 24 * 3600 * 1000


def titles(device: SyncedDb) -> dict[str, str]:
    return dict(device.execute("SELECT id, title FROM todo").fetchall())


@pytest.mark.parametrize(
    ("kind", "what", "error", "why"),
    [
        ("insert", {"id": "k0", "title": "x"}, RowExists, "todo has the row k0"),
        ("insert", {"id": "new", "nope": 1}, ValueError, "todo has no column 'nope'"),
        ("insert", {"title": "x"}, ValueError, "todo.id: the row gives no value"),
        ("insert", {"id": "new", "n": "x"}, ValueError, "todo.n: takes int, not str"),
        ("insert", [], ValueError, "no rows"),
        ("insert", [{"id": "a"}, {"id": "a"}], ValueError, "the row a is named twice"),
        ("insert", "id", ValueError, "a row is a dict"),
        ("update", {"id": "gone", "n": 1}, RowMissing, "todo has no row gone"),
        ("update", {"id": "k0"}, ValueError, "changes no column"),
        ("update", [{"id": "k0", "n": 5}, {"id": "gone", "n": 1}], RowMissing, "gone"),
        ("delete", "gone", RowMissing, "gone"),
        ("delete", None, ValueError, "todo.id: the row gives no value"),
        ("delete", {"title": "x"}, ValueError, "exactly the columns id"),
        ("delete", ("a", "b"), ValueError, "a key has the columns id"),
    ],
)
def test_a_refused_write_names_its_reason_and_queues_nothing(
    device: SyncedDb, kind: str, what: Any, error: type[Exception], why: str
) -> None:
    before = device.execute("SELECT * FROM todo").fetchall()
    with pytest.raises(error, match=why):
        getattr(device.table("todo"), kind)(what)
    assert device.execute("SELECT * FROM todo").fetchall() == before
    assert device.status().queued == 0
    assert device.execute("SELECT count(*) FROM _db_base").fetchone() == (0,)


def test_an_unknown_table_is_named(device: SyncedDb) -> None:
    with pytest.raises(ValueError, match="no synced table 'nope'"):
        device.table("nope").insert({"id": "x"})


def test_a_batch_is_one_and_is_undone_where_it_raises(device: SyncedDb) -> None:
    todo = device.table("todo")
    with device.batch() as batch:
        todo.update({"id": "k0", "title": "new"})
        assert device.execute("SELECT title FROM todo WHERE id = 'k0'").fetchone() == ("new",)
        with pytest.raises(RowMissing):
            todo.delete(["k1", "gone"])
        todo.delete("k2")
    assert batch.id
    assert device.status().queued == 1
    assert sorted(titles(device)) == ["k0", "k1", "k3", "k4"]

    def fails() -> None:
        with device.batch():
            todo.delete("k3")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert device.status().queued == 1
    assert sorted(titles(device)) == ["k0", "k1", "k3", "k4"]
    with device.batch() as empty:
        pass
    assert (empty.id, device.status().queued) == ("", 1)


def test_a_batch_inside_a_batch_and_a_sync_inside_one_are_errors(device: SyncedDb) -> None:
    with device.batch():
        with pytest.raises(BatchState), device.batch():
            pass
        with pytest.raises(BatchState):
            device.flush()
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            device.execute("DELETE FROM todo")
        device.table("todo").delete("k0")
    assert device.status().queued == 1


def test_reads_can_not_write(device: SyncedDb) -> None:
    with pytest.raises(sqlite3.OperationalError):
        device.execute("UPDATE todo SET title = 'x'")
    assert titles(device)["k0"] == "title 0"


@pytest.mark.slow
def test_a_batch_above_a_limit_is_refused_whole(device: SyncedDb) -> None:
    with pytest.raises(ValueError, match="at most 50000 rows"):
        device.table("todo").insert([{"id": f"n{i}"} for i in range(50_001)])
    assert (len(titles(device)), device.status().queued) == (5, 0)


def test_threads_write_at_once_and_ids_grow(device: SyncedDb) -> None:
    told: list[Change] = []
    device.on_change(told.append)

    def work(number: int) -> None:
        for i in range(25):
            device.table("todo").insert({"id": f"t{number}-{i}", "n": i})

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ids = [i for (i,) in device.execute("SELECT id FROM _db_mutations_queue ORDER BY rowid")]
    assert ids == sorted(set(ids))
    assert len(ids) == len(told) == 100
    assert [c.key[0] for c in told] == [k for (k,) in device.execute("SELECT key FROM _db_pending_rows ORDER BY batch")]


def test_a_callback_may_write_and_one_that_raises_harms_nobody(device: SyncedDb) -> None:
    told: list[str] = []

    def broken(change: Change) -> None:
        raise ZeroDivisionError

    def answer(change: Change) -> None:
        told.append(change.key[0])
        if change.key == ("k0",):
            device.table("todo").update({"id": "k1", "title": "in answer"})

    device.on_change(broken)
    device.on_change(answer)
    device.table("todo").update({"id": "k0", "title": "x"})
    assert told == ["k0", "k1"]
    assert titles(device)["k1"] == "in answer"


def test_a_callback_may_read_and_flush_while_another_thread_does(device: SyncedDb) -> None:
    """No lock of the sync is held, or waited for, where events are delivered."""
    entered, leave = threading.Event(), threading.Event()

    def slow(change: Change) -> None:
        if change.key == ("k0",):
            entered.set()
            assert leave.wait(10)
            device.read()
            assert device.flush()

    device.on_change(slow)
    writer = threading.Thread(target=lambda: device.table("todo").update({"id": "k0", "title": "x"}))
    writer.start()
    assert entered.wait(10)
    device.table("todo").update({"id": "k1", "title": "not held back"})
    assert device.sync()
    leave.set()
    writer.join(10)
    assert not writer.is_alive()
    assert device.status().unsent == 0


def test_a_lost_answer_is_asked_for_again(device: SyncedDb, remote: MemoryRemote) -> None:
    first = device.table("todo").update({"id": "k0", "title": "before"})
    assert device.sync()
    remote.lose_answers = 1
    batch_id = device.table("todo").update({"id": "k0", "title": "once"})
    with pytest.raises(CallFailed):
        device.flush()
    assert device.execute("SELECT id FROM _db_unanswered").fetchall() == [(batch_id,)]
    assert device.sync()
    assert device.execute("SELECT id FROM _db_unanswered").fetchall() == []
    assert [entry.id for entry in remote.server.log] == [first, batch_id]
    assert device.status().queued == 0


def test_seven_days_count_on_the_servers_clock_and_only_in_contact(tmp_path: Path, remote: MemoryRemote) -> None:
    real_now = remote.now_ms
    offset = {"device": 0, "server": 0}
    remote.now_ms = lambda: real_now() + offset["server"]
    device = SyncedDb(tmp_path / "d.db", remote, "d", now_ms=lambda: real_now() + offset["device"])
    device.start(background=False)
    device.table("todo").update({"id": "k3", "n": 1})
    assert device.sync()
    device.table("todo").update({"id": "k0", "title": "old"})
    remote.lose_answers = 1
    with pytest.raises(CallFailed):
        device.flush()
    never_sent = device.table("todo").update({"id": "k1", "title": "never sent"})
    offset["device"] = 30 * DAY_MS
    remote.offline = True
    with pytest.raises(CallFailed):
        device.flush()
    assert device.dead_letters() == []
    offset["server"] = 8 * DAY_MS
    young = device.table("todo").update({"id": "k2", "title": "young"})
    remote.offline = False
    assert device.sync()
    letters = device.dead_letters()
    assert [(d.id, d.reason, d.table, d.key) for d in letters] == [(never_sent, "EXPIRED", "todo", ("k1",))]
    assert letters[0].server_row_now is not None
    assert titles(device) == {
        "k0": "old",
        "k1": "title 1",
        "k2": "young",
        "k3": "title 3",
        "k4": "title 4",
    }
    assert [entry.id for entry in remote.server.log][-1] == young
    device.close()


def test_dead_letters_go_two_weeks_after_they_were_shown(tmp_path: Path, remote: MemoryRemote) -> None:
    real_now = remote.now_ms
    offset = [0]
    remote.now_ms = lambda: real_now() + offset[0]
    device = SyncedDb(tmp_path / "d.db", remote, "d", now_ms=remote.now_ms)
    device.start(background=False)
    del remote.server.rows["todo", "k0"]
    device.table("todo").delete("k0")
    device.flush()
    offset[0] = 40 * DAY_MS
    device.table("todo").update({"id": "k1", "n": 8})
    device.flush()
    assert len(device.dead_letters()) == 1
    offset[0] = 55 * DAY_MS
    device.table("todo").update({"id": "k1", "n": 9})
    device.flush()
    assert device.dead_letters() == []
    device.close()


def test_sums_that_disagree_are_told_once_and_so_is_their_agreeing(device: SyncedDb, remote: MemoryRemote) -> None:
    states: list[State] = []
    device.on_state(states.append)
    with sqlite3.connect(device._file.path) as conn:
        # Verified just now: nobody reads the rows, which are right, and mends the sum by them.
        conn.execute("UPDATE _db_tables SET count = count + 1, verified = 1")
    for n in (1, 2):
        device.table("todo").update({"id": "k0", "n": 100 + n})
        assert device.sync()
    assert [(s.kind, s.table, s.position) for s in states if s.kind.startswith("sums")] == [
        ("sums_disagree", "todo", remote.server.log[0].position)
    ]
    assert device.status().disagreeing == ("todo",)
    with sqlite3.connect(device._file.path) as conn:
        conn.execute("UPDATE _db_tables SET count = count - 1")
    device.table("todo").update({"id": "k0", "n": 103})
    assert device.sync()
    assert states[-1].kind == "sums_agree"
    assert device.status().disagreeing == ()


def test_a_table_that_refuses_the_log_stops_nothing_and_is_pulled_again(
    device: SyncedDb, remote: MemoryRemote, tmp_path: Path
) -> None:
    states: list[State] = []
    device.on_state(states.append)
    with sqlite3.connect(device._file.path) as conn:
        conn.execute("CREATE UNIQUE INDEX apps_own ON todo (title)")
    other = SyncedDb(tmp_path / "other.db", remote, "d")
    other.start(background=False)
    other.table("todo").update({"id": "k0", "title": "title 1"})
    assert other.sync()
    cursor = device.status().cursor
    device.read()
    assert ("set_aside", "todo") in [(s.kind, s.table) for s in states]
    assert device.status().cursor > cursor
    assert titles(device)["k0"] == "title 0"
    with sqlite3.connect(device._file.path) as conn:
        conn.execute("DROP INDEX apps_own")
    device.read()
    assert titles(device) == titles(other)
    assert device.status().disagreeing == ()
    other.close()


def test_a_dead_letter_says_where_what_it_showed_could_not_be_taken_back(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    todo = device.table("todo")
    todo.update({"id": "k0", "title": "moved"})
    todo.update({"id": "k1", "title": "title 0"})
    remote.server.commit(remote.now_ms())
    del remote.server.rows["todo", "k0"]
    with sqlite3.connect(device._file.path) as conn:
        conn.execute("CREATE UNIQUE INDEX apps_own ON todo (title)")
    device.flush(0.1)
    (letter,) = device.dead_letters()
    assert letter.still_shown
    assert titles(device)["k0"] == "moved"
    with sqlite3.connect(device._file.path) as conn:
        conn.execute("DROP INDEX apps_own")
    device.read()
    assert "k0" not in titles(device)
    assert not device.dead_letters()[0].still_shown


def test_a_file_of_another_database_is_refused(tmp_path: Path, device: SyncedDb, remote: MemoryRemote) -> None:
    with pytest.raises(ClientError, match="holds the database 'd'"):
        SyncedDb(tmp_path / "device.db", remote, "another")


@pytest.mark.slow
def test_a_write_and_a_page_of_the_log_cost_the_same_with_ten_thousand_pending(
    device: SyncedDb, remote: MemoryRemote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in steps of SQLite's machine, which no load of the computer changes."""
    # The work of another thread on the same connection would be counted, and wait for whoever sets the counter.
    monkeypatch.setattr(RowCheck, "begin", lambda _: None)
    todo = device.table("todo")
    writer = device._file._write
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    other = SyncedDb(tmp_path / "other.db", remote, "d")
    other.start(background=False)

    def measure(key: str) -> tuple[int, int, int]:
        out = []
        other.table("todo").insert({"id": f"other-{key}", "n": 1})
        other.table("todo").update({"id": "k1", "title": key})
        assert other.flush()
        writer.set_progress_handler(count, 1)
        for action in (
            lambda: todo.insert({"id": key, "n": 1}),
            lambda: todo.update({"id": "k0", "title": key}),
            device.read,
        ):
            steps[0] = 0
            action()
            out.append(steps[0])
        writer.set_progress_handler(None, 1)
        return out[0], out[1], out[2]

    todo.update({"id": "k2", "title": "pending"})
    measure("warm")
    before = measure("before")
    writer.execute("PRAGMA synchronous = OFF")
    for i in range(10_000):
        todo.insert({"id": f"p{i}", "n": i})
    writer.execute("PRAGMA synchronous = FULL")
    assert device.status().queued > 10_000
    after = measure("after")
    assert min(before) > 50
    for ours, theirs in zip(after, before, strict=True):
        assert ours <= theirs * 1.1, (after, before)
    other.close()
