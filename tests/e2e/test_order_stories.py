"""Arrival orders, lost answers, restarts, time: what a node wrote ends the same however it got there."""

from __future__ import annotations

import pytest

from anabranch.client import CallFailed
from anabranch.testkit.stack import Stack
from anabranch.testkit.story import Teller, new_id
from anabranch.v1 import batch_pb2, errors_pb2

TODO = {"todo": "id text primary key, title text, done boolean"}


@pytest.mark.slow
def test_an_update_that_overtakes_its_insert_waits_for_it_and_all_apply(story: Teller) -> None:
    told = story(TODO, policy={"park_ms": 10_000})
    a, _, x = told.node("a"), told.node("b"), new_id()
    a.offline()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    a.update("todo", {"id": x, "done": True})
    a.update("todo", {"id": x, "title": "oat milk"})
    a.online()
    a.send(3, 2, 1)
    told.sync()
    assert told.server("todo") == [(x, "oat milk", True)]
    assert a.outcomes == [["APPLIED"]] * 3


@pytest.mark.slow
def test_a_late_batch_takes_its_place_after_the_park_time(story: Teller) -> None:
    told = story(TODO, policy={"park_ms": 300})
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk", "done": False})
    told.sync()
    a.offline()
    a.update("todo", {"id": x, "title": "first", "done": True})
    a.update("todo", {"id": x, "title": "second"})
    a.online()
    a.send(2, wait_s=20)  # waits 300 ms for the other one, then goes alone; the call ends with its verdict
    assert len(a.unsent) == 1
    b.sync()
    b.update("todo", {"id": x, "title": "from b"})
    b.sync()
    told.sync()
    assert told.server("todo") == [(x, "from b", True)]
    assert a.outcomes == [["APPLIED"], ["SUPERSEDED"], ["APPLIED"]]
    # It came behind b's value, which therefore won; that of a's own later write was nothing that b had not seen.
    assert told.conflicts == [("todo", x, "title", "first")]


@pytest.mark.slow
def test_a_delete_a_new_insert_and_an_update_of_one_row_end_right_in_any_order(story: Teller) -> None:
    told = story(TODO)
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "old", "done": False})
    told.sync()
    a.offline()
    a.delete("todo", x)
    a.insert("todo", {"id": x, "title": "new", "done": False})
    a.update("todo", {"id": x, "done": True})
    a.online()
    a.send(3, 1, 2)
    told.sync()
    assert told.server("todo") == [(x, "new", True)]
    assert b.rows("todo") == [(x, "new", 1)]
    assert a.outcomes == [["APPLIED"]] * 4


@pytest.mark.slow
def test_of_two_writes_of_one_column_in_one_batch_the_second_stands(story: Teller) -> None:
    told = story(TODO)
    a, _, x = told.node("a"), told.node("b"), new_id()
    a.insert("todo", {"id": x, "title": "milk"})
    told.sync()
    with a.batch() as db:
        db.table("todo").update({"id": x, "title": "one"})
        db.table("todo").update({"id": x, "title": "two"})
    with a.batch() as db:
        db.table("todo").delete(x)
        db.table("todo").insert({"id": x, "title": "three"})
        db.table("todo").update({"id": x, "title": "four"})
    told.sync()
    assert told.server("todo", "title") == [("four",)]
    assert a.outcomes == [["APPLIED"], ["APPLIED"] * 2, ["APPLIED"] * 3]
    assert told.conflicts == []


@pytest.mark.slow
def test_promise_3_a_batch_whose_answer_was_lost_is_applied_once_and_its_node_learns_the_verdict(story: Teller) -> None:
    told = story(
        {"counter": "id text primary key, n bigint"}, table_policies={"counter": {"columns": {"n": "counter"}}}
    )
    a, x = told.node("a"), new_id()
    told.node("b")
    a.insert("counter", {"id": x, "n": 1})
    a.sync()
    a.update("counter", {"id": x, "n": 2})
    # That of a message, and of the call which follows it; or of a call alone.
    a.network.lose_answers(2)
    with pytest.raises(CallFailed):
        a.db.flush()
    a.network.lose_answers(0)
    assert told.server("counter") == [(x, 2)]
    assert a.db.status().unsent == 1
    a.reopen()
    a.sync()
    assert a.db.status().queued == 0
    verdicts = a.resend(2, times=5)
    assert {v.SerializeToString() for v in verdicts} == {a.verdicts[1].SerializeToString()}
    assert told.server("counter") == [(x, 2)]
    assert len(told.logged) == 2


def test_promise_3_the_same_id_with_other_content_is_refused_as_a_reuse(story: Teller) -> None:
    told = story(TODO)
    a, x = told.node("a"), new_id()
    a.insert("todo", {"id": x, "title": "milk"})
    a.sync()
    other = batch_pb2.DbMutationBatch.FromString(a.made[0].payload)
    other.mutations[0].rows[0].values[0].string_value = new_id()
    [verdict] = a.resend(1, payload=other.SerializeToString())
    assert verdict.reason == errors_pb2.REASON_ID_REUSED
    assert told.server("todo", "id") == [(x,)]
    assert a.outcomes == [["APPLIED"]]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["after_claim", "before_commit", "after_commit"])
def test_promise_1_a_resolver_killed_around_its_commit_loses_nothing_and_repeats_nothing(
    story: Teller, stack: Stack, point: str
) -> None:
    told = story(TODO)
    a, b, x, y = told.node("a"), told.node("b"), new_id(), new_id()
    a.insert("todo", {"id": x, "title": "one"})
    deaths = stack.arm("conflict-resolver", point)
    a.db.flush(timeout_s=0.5)
    stack.wait_died("conflict-resolver", deaths)
    assert told.server("todo", "id") == ([(x,)] if point == "after_commit" else [])
    b.insert("todo", {"id": y, "title": "two"})
    stack.restart("conflict-resolver")
    told.sync()
    assert told.server("todo", "id") == sorted([(x,), (y,)])
    assert len(told.logged) == 2


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before_append", "after_append", "before_answer"])
def test_promise_1_an_ingest_killed_around_its_append_loses_nothing_and_repeats_nothing(
    story: Teller, stack: Stack, point: str
) -> None:
    told = story(TODO)
    a, x = told.node("a"), new_id()
    told.node("b")
    a.insert("todo", {"id": x, "title": "one"})
    deaths = stack.arm("ingest", point)
    with pytest.raises(CallFailed):
        a.db.flush(timeout_s=20)
    stack.wait_died("ingest", deaths)
    assert a.db.status().unsent == 1
    stack.restart("ingest")
    told.sync()
    assert told.server("todo", "id") == [(x,)]
    assert len(told.logged) == 1


@pytest.mark.slow
def test_promise_6_a_batch_that_could_not_be_sent_for_seven_days_becomes_a_dead_letter_younger_ones_go(
    story: Teller,
) -> None:
    told = story(TODO)
    a, _, x, y = told.node("a"), told.node("b"), new_id(), new_id()
    a.offline()
    a.insert("todo", {"id": x, "title": "old"})
    told.advance(days=6)
    a.insert("todo", {"id": y, "title": "new"})
    told.advance(days=2)
    a.sync()
    assert (a.db.status().unsent, a.dead) == (2, [])
    a.online()
    told.sync()
    assert told.server("todo", "id", "title") == [(y, "new")]
    assert a.dead == [("EXPIRED", "todo")]


@pytest.mark.slow
def test_a_device_clock_that_is_hours_behind_or_years_ahead_changes_nothing(story: Teller) -> None:
    told = story(TODO, policy={"order": "edit"})
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.clock_offset_ms = -3_600_000
    b.clock_offset_ms = 5 * 365 * 24 * 3_600_000
    a.insert("todo", {"id": x, "title": "milk"})
    told.sync()
    b.update("todo", {"id": x, "title": "from b"})
    told.sync()
    a.update("todo", {"id": x, "title": "from a"})
    told.sync()
    assert told.server("todo", "title") == [("from a",)]
    assert b.outcomes == a.outcomes[1:] == [["APPLIED"]]


@pytest.mark.slow
def test_the_servers_clock_steps_back_and_positions_still_grow(story: Teller, stack: Stack) -> None:
    told = story(TODO)
    a, x = told.node("a"), new_id()
    b = told.node("b")
    a.insert("todo", {"id": x, "title": "one"})
    told.sync()
    told.advance(days=-0.5)
    a.update("todo", {"id": x, "title": "two"})
    told.sync()
    b.update("todo", {"id": x, "title": "three"})
    told.sync()
    positions = [v.position for v in (*a.verdicts, *b.verdicts)]
    assert positions == sorted(set(positions))
    assert told.server("todo", "title") == [("three",)]
