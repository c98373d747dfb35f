"""Every outcome and every reason that two devices can bring about, as hook, dead queue, file and app are told of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.client import ConflictEvent, RowMissing
from anabranch.testkit.story import Story, Teller, new_id
from anabranch.testkit.story_node import StoryNode

TODO = {"todo": "id text primary key, title text, n bigint constraint todo_n_small check (n < 100)"}


def heard(node: StoryNode) -> list[ConflictEvent]:
    events: list[ConflictEvent] = []
    node.db.on_conflict(events.append)
    return events


def outcomes(node: StoryNode, batch_id: str) -> list[str]:
    found = node.db.verdict(batch_id)
    assert found is not None
    assert found.status == "APPLIED"
    return [m.outcome for m in found.mutations]


def two(story: Teller, **policy: str) -> tuple[Story, StoryNode, StoryNode, str]:
    """Two devices that both show one row, the second one offline."""
    told = story(TODO, policy=policy or None)
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk", "n": 1})
    told.sync()
    b.offline()
    return told, a, b, x


def meet(told: Story, a: StoryNode, b: StoryNode) -> None:
    a.sync()
    b.online()
    told.sync()


@pytest.mark.slow
def test_applied_tells_nobody_of_a_conflict(story: Teller) -> None:
    told, a, b, x = two(story)
    of_a, of_b = heard(a), heard(b)
    batch = a.update("todo", {"id": x, "n": 2})
    pending = a.db.verdict(batch)
    assert pending is not None
    assert pending.status == "PENDING"
    meet(told, a, b)
    assert outcomes(a, batch) == ["APPLIED"]
    assert (of_a, of_b) == ([], [])
    assert a.db.verdict(new_id()) is None


@pytest.mark.slow
def test_merged_is_told_to_the_one_that_came_second(story: Teller) -> None:
    told, a, b, x = two(story)
    of_a, of_b = heard(a), heard(b)
    batch = b.update("todo", {"id": x, "n": 2})
    a.update("todo", {"id": x, "title": "oat milk"})
    meet(told, a, b)
    assert outcomes(b, batch) == ["MERGED"]
    assert [(e.outcome, e.table, e.key, e.column, e.winning_batch_id) for e in of_b] == [
        ("merged", "todo", (x,), "", batch)
    ]
    assert of_a == []


@pytest.mark.slow
def test_overwrote_is_told_to_both_with_the_value_that_lost(story: Teller) -> None:
    told, a, b, x = two(story)
    of_a, of_b = heard(a), heard(b)
    wins = b.update("todo", {"id": x, "title": "from b"})
    loses = a.update("todo", {"id": x, "title": "from a"})
    meet(told, a, b)
    assert outcomes(b, wins) == ["OVERWROTE"]
    assert [(e.outcome, e.losing_value) for e in of_b] == [("overwrote", "from a")]
    assert [(e.outcome, e.losing_value, e.winning_batch_id) for e in of_a] == [("lost", "from a", wins)]
    [conflict] = a.db.conflicts()
    assert (conflict.table, conflict.key, conflict.column, conflict.losing_value) == ("todo", (x,), "title", "from a")
    assert (conflict.losing_batch_id, conflict.winning_batch_id) == (loses, wins)
    assert (conflict.losing_node_name, conflict.winning_node_name) == ("a", "b")


@pytest.mark.slow
def test_superseded_brings_the_servers_row(story: Teller) -> None:
    told, a, b, x = two(story, order="edit")
    of_b = heard(b)
    loses = b.update("todo", {"id": x, "title": "early"})
    a.clock_offset_ms += 30
    wins = a.update("todo", {"id": x, "title": "late"})
    meet(told, a, b)
    assert outcomes(b, loses) == ["SUPERSEDED"]
    found = b.db.verdict(loses)
    assert found is not None
    assert found.mutations[0].server_row == {"id": x, "title": "late", "n": 1}
    assert [(e.outcome, e.losing_value, e.winning_batch_id) for e in of_b] == [("lost", "early", wins)]


Change = Callable[[StoryNode, StoryNode, str], None]
SERVERS = {"title": "theirs", "n": 5}


def _update_then_delete(a: StoryNode, b: StoryNode, x: str) -> None:
    b.delete("todo", x)
    a.update("todo", {"id": x, **SERVERS})


def _delete_then(verb: str) -> Change:
    def change(a: StoryNode, b: StoryNode, x: str) -> None:
        a.delete("todo", x)
        if verb == "delete":
            b.delete("todo", x)
        else:
            b.update("todo", {"id": x, "n": 7})

    return change


def _insert_both(a: StoryNode, b: StoryNode, x: str) -> None:
    a.insert("todo", {"id": "same", **SERVERS})
    b.insert("todo", {"id": "same", "title": "mine"})


def _too_much(a: StoryNode, b: StoryNode, x: str) -> None:
    b.update("todo", {"id": x, "n": 100})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reason", "change", "row", "constraint"),
    [
        ("CONCURRENT_UPDATE", _update_then_delete, SERVERS, ""),
        ("ROW_DELETED", _delete_then("update"), None, ""),
        ("ALREADY_DELETED", _delete_then("delete"), None, ""),
        ("ROW_EXISTS", _insert_both, SERVERS, ""),
        ("CONSTRAINT", _too_much, {"title": "milk", "n": 1}, "todo_n_small"),
    ],
)
def test_a_rejection_reaches_hook_dead_queue_and_file_with_the_servers_row(
    story: Teller, reason: str, change: Change, row: dict[str, object] | None, constraint: str
) -> None:
    told, a, b, x = two(story)
    of_b = heard(b)
    change(a, b, x)
    meet(told, a, b)
    key = "same" if reason == "ROW_EXISTS" else x
    expected = None if row is None else {"id": key, **row}
    [event] = of_b
    assert (event.outcome, event.reason, event.table, event.key) == ("rejected", reason, "todo", (key,))
    assert event.server_row == expected
    [letter] = b.db.dead_letters()
    assert (letter.reason, letter.table, letter.key, letter.constraint) == (reason, "todo", (key,), constraint)
    assert (letter.server_row, letter.server_row_now, letter.still_shown) == (expected, expected, False)
    found = b.db.verdict(letter.id)
    assert found is not None
    assert (found.status, found.reason, found.mutations[0].server_row) == ("REJECTED", reason, expected)
    if reason == "ROW_EXISTS":
        a.update("todo", {"id": key, "n": 9})
        told.sync()
        [letter] = b.db.dead_letters()
        assert letter.server_row_now == {"id": key, "title": "theirs", "n": 9}


@pytest.mark.slow
def test_promise_6_a_lost_value_is_put_back_with_one_call(story: Teller) -> None:
    told, a, b, x = two(story)
    of_a = heard(a)
    b.update("todo", {"id": x, "title": "from b"})
    a.update("todo", {"id": x, "title": "from a", "n": None})
    meet(told, a, b)
    assert told.server("todo", "title", "n") == [("from b", None)]
    [conflict] = b.db.conflicts("todo", x)
    made = b._note(b.db.restore(conflict))
    told.sync()
    assert outcomes(b, made) == ["APPLIED"]
    assert told.server("todo", "title") == [("from a",)]
    b.offline()
    b.update("todo", {"id": x, "title": "b again"})
    a.update("todo", {"id": x, "title": "a again"})
    meet(told, a, b)
    a._note(a.db.restore(of_a[-1]))
    told.sync()
    assert told.server("todo", "title") == [("a again",)]
    a.delete("todo", x)
    told.sync()
    with pytest.raises(RowMissing):
        a.db.restore(conflict)
    assert a.db.status().unsent == 0


@pytest.mark.slow
def test_conflicts_are_filtered_by_table_key_node_and_time(story: Teller) -> None:
    told, a, b, x = two(story)
    y = new_id()
    b.online()
    a.insert("todo", {"id": y, "title": "eggs", "n": 2})
    told.sync()
    for key in (x, y):
        b.offline()
        b.update("todo", {"id": key, "title": f"b of {key}"})
        a.update("todo", {"id": key, "title": f"a of {key}"})
        meet(told, a, b)
    newest, oldest = list(a.db.conflicts())
    assert (newest.key, oldest.key) == ((y,), (x,))
    assert list(a.db.conflicts("todo", y)) == [newest]
    assert list(a.db.conflicts("todo", {"id": y})) == [newest]
    assert list(a.db.conflicts(node_id=a.db.status().node_id)) == [newest, oldest]
    assert list(a.db.conflicts(node_id=new_id())) == []
    assert list(a.db.conflicts(from_ms=newest.position)) == [newest]
    assert list(a.db.conflicts(until_ms=newest.position)) == [oldest]
    with pytest.raises(ValueError, match="a key needs a synced table"):
        a.db.conflicts(key=x)


@pytest.mark.slow
def test_explain_of_a_queued_batch_foretells_its_verdict_and_changes_nothing(story: Teller) -> None:
    told, a, b, x = two(story)
    b.update("todo", {"id": x, "title": "from b"})
    a.update("todo", {"id": x, "title": "from a"})
    a.sync()
    b.online()
    [batch] = b.unsent
    explained = b.db.explain(batch)
    assert explained.verdict.status == "APPLIED"
    assert [m.outcome for m in explained.verdict.mutations] == ["OVERWROTE"]
    assert explained.changes == (("update", "todo", {"id": x, "title": "from b"}),)
    assert explained.losers == (("todo", (x,), "title", "from a"),)
    assert told.server("todo", "title") == [("from a",)]
    told.sync()
    with pytest.raises(ValueError, match="no queued batch"):
        b.db.explain(batch)


@pytest.mark.slow
def test_promise_7_only_what_depends_on_a_refused_batch_follows_it_each_with_its_own_reason(story: Teller) -> None:
    told, a, b, x = two(story)
    y, z = new_id(), new_id()
    a.insert("todo", {"id": y, "title": "a's", "n": 1})
    b.insert("todo", {"id": z, "n": 100})
    b.update("todo", {"id": z, "title": "leans on the row that it made"})
    b.update("todo", {"id": x, "title": "leans on nothing"})
    with b.batch() as db:
        db.table("todo").update({"id": x, "n": 3})
        db.table("todo").delete(z)
    w = new_id()
    last = b.insert("todo", {"id": w, "title": "leans on nothing"})
    meet(told, a, b)
    assert [reason for reason, _ in b.dead] == ["CONSTRAINT", "ROW_NOT_FOUND", "ROW_NOT_FOUND"]
    assert last in told.logged
    assert told.server("todo") == sorted([(x, "leans on nothing", 1), (y, "a's", 1), (w, "leans on nothing", None)])
