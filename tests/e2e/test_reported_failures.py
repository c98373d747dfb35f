"""Failures that users of such systems reported, each told as a story of its kind, against the real services."""

from __future__ import annotations

import sqlite3
import unicodedata
from contextlib import closing
from typing import Any

import pytest

from anabranch.client import CallFailed, Change, State
from anabranch.testkit.story import Teller, new_id
from anabranch.testkit.waiting import until

TODO = {"todo": "id text primary key, title text, done boolean"}
COUNTED = {"counted": "id text primary key, n bigint not null default 0"}
COUNTER = {"counted": {"columns": {"n": "counter"}}}


UNAVAILABLE = CallFailed("UNAVAILABLE", "", "away", again=True)


@pytest.mark.slow
def test_a_pending_value_does_not_flicker_while_pulls_succeed_and_pushes_fail(story: Teller) -> None:
    """Kind: wrong merge. Five times the log is read and nothing can be sent."""
    told = story(TODO)
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    told.sync()
    shown: list[Any] = []
    b.db.on_change(lambda change: shown.append(change.row and change.row["title"]))
    b.update("todo", {"id": x, "title": "mine"})
    b.fail("send", UNAVAILABLE, 5)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
