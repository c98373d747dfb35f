"""Batches that wait: for the one before them, for a row, for somebody else's lock; and who is taken first."""

from __future__ import annotations

import time
from typing import Any

import pytest

from anabranch import limits
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import errors_pb2

MILK = {"id": "x", "title": "milk", "done": False}
BOOKS = """
create table author (id text primary key, name text);
create table book (id text primary key, author_id text, title text,
                   constraint book_author foreign key (author_id) references author (id));
"""


def deadline(rig: ResolverRig, batch_id: str) -> Any:
    rows = rig.sql(
        "select park_deadline_ms, waits_for_batch, waits_for_key, arrived_ms from anabranch.inbox where batch_id = %s",
        [batch_id],
    )
    return rows[0] if rows else None


def test_an_update_that_overtakes_its_insert_waits_for_it(rig: ResolverRig) -> None:
    a = rig.node("a")
    made = [
        a.make(("insert", "todo", [MILK])),
        a.make(("update", "todo", [{"id": "x", "done": True}])),
        a.make(("update", "todo", [{"id": "x", "title": "oat milk"}])),
    ]
    for number in (2, 1):
        a.send(made[number], prev=made[number - 1].id)
        rig.group()
        at, batch, _, arrived = deadline(rig, made[number].id)
        assert (batch, at) == (made[number - 1].id, arrived + 30_000)
    assert rig.group() == 0
    a.send(made[0])
    # The first frees both: they are decided in one further group.
    rig.group()
    rig.group()
    assert [rig.outcome(one.id) for one in made] == [["APPLIED"]] * 3
    assert rig.rows("todo") == [("x", "oat milk", True)]


def test_a_wait_is_counted_once_from_arrival(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(policy={"park_ms": 60_000})
    a = rig.node("a")
    a.insert("todo", MILK)
    rig.group()
    a.see()
    missing = a.make(("update", "todo", [{"id": "x", "title": "never sent"}]))
    sent = a.send(a.make(("update", "todo", [{"id": "x", "done": True}])), prev=missing.id)
    rig.group()
    assert rig.outcome(sent) == "PENDING"
    rig.clock_offset_ms = 60_100
    rig.group()
    assert rig.outcome(sent) == ["APPLIED"]


def test_a_batch_that_waited_for_days_leans_on_nothing(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(policy={"park_ms": 60_000})
    a = rig.node("a")
    gone = a.make(("insert", "todo", [MILK]))
    sent = a.send(a.make(("update", "todo", [{"id": "x", "done": True}])), prev=gone.id, arrived_ms=0)
    rig.group()
    assert rig.outcome(sent) == "ROW_NOT_FOUND"


def test_an_update_takes_its_place_when_its_insert_comes_after_the_park_time(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(policy={"park_ms": 60_000})
    a = rig.node("a")
    insert = a.make(("insert", "todo", [MILK]))
    update = a.make(("update", "todo", [{"id": "x", "title": "oat milk"}]))
    delete = a.make(("delete", "todo", [{"id": "x"}]))
    # Each names the one before, which has not come; the second of them waits for its park time and then for the row.
    a.send(update, prev=insert.id)
    a.send(delete, prev=update.id)
    rig.group()
    rig.clock_offset_ms = 60_100
    rig.drain()
    for waiting in (update, delete):
        at, _, key, arrived = deadline(rig, waiting.id)
        assert (key, at) == ("x", arrived + limits.BATCH_EXPIRY_MS)
    assert rig.group() == 0
    a.send(insert)
    rig.drain()
    assert [rig.outcome(one.id) for one in (insert, update, delete)] == [["APPLIED"]] * 3
    assert rig.rows("todo") == []


def test_what_waits_for_a_row_holds_up_nothing_else(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(policy={"park_ms": 60_000})
    a, b = rig.node("a"), rig.node("b")
    insert = a.make(("insert", "todo", [MILK]))
    update = a.make(("update", "todo", [{"id": "x", "done": True}]))
    a.send(update, prev=insert.id)
    rig.group()
    rig.clock_offset_ms = 60_100
    rig.drain()
    # Later ones of the node name it as the one before, since it is still in the queue; they don't wait for it.
    other = a.send(a.make(("insert", "todo", [{"id": "y"}])), prev=update.id)
    own = b.insert("todo", {"id": "z"})
    rig.group()
    assert (rig.outcome(other), rig.outcome(own)) == (["APPLIED"], ["APPLIED"])
    assert rig.outcome(update.id) == "PENDING"
    # An update of a row that was never there waits as long: the batch that is missing may bring it.
    third = a.send(a.make(("update", "todo", [{"id": "w", "done": True}])), prev=update.id)
    rig.drain()
    assert rig.outcome(third) == "PENDING"
    a.send(insert)
    rig.drain()
    assert [rig.outcome(insert.id), rig.outcome(update.id), rig.outcome(third)] == [
        ["APPLIED"],
        ["APPLIED"],
        "ROW_NOT_FOUND",
    ]


@pytest.mark.parametrize("act", ["delete", "update"])
def test_a_later_insert_of_the_same_group_ends_the_wait_for_the_row(make_rig: Any, act: Any) -> None:
    """The row was made, changed and made again; the first insert has not come, and the last writes the row in the very
    group that finds the one between without it."""
    rig: ResolverRig = make_rig(policy={"park_ms": 60_000})
    a = rig.node("a")
    first = a.make(("insert", "todo", [MILK]))
    between = a.make((act, "todo", [{"id": "x"} if act == "delete" else {"id": "x", "done": True}]))
    again = a.make(("insert", "todo", [{"id": "x", "title": "oat milk"}]))
    a.send(between, prev=first.id)
    a.send(again, prev=between.id)
    rig.group()
    assert (rig.outcome(between.id), rig.outcome(again.id)) == ("PENDING", "PENDING")
    rig.clock_offset_ms = 60_100
    rig.drain()
    assert "PENDING" not in (rig.outcome(between.id), rig.outcome(again.id))
    assert rig.waiting() == []
    a.send(first)
    rig.drain()
    assert rig.rows("todo") == [("x", "oat milk", None)]


def test_a_row_is_awaited_also_where_the_batch_between_was_decided_meanwhile(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(policy={"park_ms": 60_000})
    a = rig.node("a")
    insert = a.make(("insert", "todo", [MILK]))
    between = a.make(("insert", "todo", [{"id": "y"}]))
    update = a.make(("update", "todo", [{"id": "x", "done": True}]))
    a.send(between, prev=insert.id)
    a.send(update, prev=between.id)
    rig.group()
    rig.clock_offset_ms = 60_100
    rig.drain()
    assert (rig.outcome(between.id), rig.outcome(update.id)) == (["APPLIED"], "PENDING")
    # One that comes only now names a decided one; the node's row says what is missing.
    later = a.send(a.make(("update", "todo", [{"id": "x", "title": "oat milk"}])), prev=between.id)
    rig.group()
    assert rig.outcome(later) == "PENDING"
    a.send(insert)
    rig.drain()
    assert [rig.outcome(one) for one in (insert.id, update.id, later)] == [["APPLIED"]] * 3
    # From then on nothing is missing, and what is not there is refused at once.
    never = a.send(a.make(("update", "todo", [{"id": "w", "done": True}])), prev=None)
    rig.group()
    assert rig.outcome(never) == "ROW_NOT_FOUND"


def test_the_row_is_awaited_in_vain_where_its_batch_is_refused(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(BOOKS, {"author": None, "book": None}, policy={"park_ms": 60_000})
    a = rig.node("a")
    first = a.make(("insert", "book", [{"id": "k", "author_id": "nobody", "title": "one"}]))
    second = a.send(a.make(("update", "book", [{"id": "k", "title": "two"}])), prev=first.id)
    rig.group()
    rig.clock_offset_ms = 60_100
    rig.drain()
    assert rig.outcome(second) == "PENDING"
    a.send(first)
    rig.drain()
    assert [rig.outcome(first.id), rig.outcome(second)] == ["CONSTRAINT", "ROW_NOT_FOUND"]


def test_an_unknown_row_is_waited_for_only_while_an_earlier_batch_is_undecided(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    never = b.make(("insert", "todo", [{"id": "z"}]))
    first = a.make(("insert", "todo", [MILK]))
    update = a.make(("update", "todo", [{"id": "x", "done": True}]))
    # The first waits for something of its own; the update names no ``prev``, and waits for the row or the first.
    a.send(first, prev=never.id if never.id < first.id else None)
    a.send(update)
    rig.group()
    assert rig.outcome(update.id) == "PENDING"
    assert deadline(rig, update.id)[1:3] == (first.id, "x")
    b.send(never)
    rig.drain()
    assert [rig.outcome(one.id) for one in (first, update)] == [["APPLIED"], ["APPLIED"]]


def test_an_update_of_a_refused_insert_is_refused_at_once(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(BOOKS, {"author": None, "book": None}, policy={"park_ms": 600_000})
    a = rig.node("a")
    first = a.make(("insert", "book", [{"id": "k", "author_id": "nobody", "title": "one"}]))
    second = a.make(("update", "book", [{"id": "k", "title": "two"}]))
    a.send(second, prev=first.id)
    rig.group()
    assert rig.outcome(second.id) == "PENDING"
    a.send(first)
    rig.drain()
    assert [rig.outcome(one.id) for one in (first, second)] == ["CONSTRAINT", "ROW_NOT_FOUND"]


def test_a_row_that_another_node_brings_ends_the_wait(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    never = a.make(("insert", "todo", [{"id": "n"}]))
    first = a.make(("insert", "todo", [{"id": "y"}]))
    update = a.make(("update", "todo", [{"id": "x", "done": True}]))
    a.send(first, prev=never.id)
    a.send(update)
    rig.group()
    assert rig.outcome(update.id) == "PENDING"
    b.insert("todo", MILK)
    rig.drain()
    # It was not there when the node made its update, so that another node's insert stands.
    assert rig.outcome(update.id) == "ROW_DELETED"
    assert rig.outcome(first.id) == "PENDING"


def test_a_long_chain_sent_backwards_is_set_free_as_a_whole(rig: ResolverRig) -> None:
    a = rig.node("a")
    made = [a.make(("insert", "todo", [{"id": f"{i:03}"}])) for i in range(60)]
    for i in reversed(range(1, 60)):
        a.send(made[i], prev=made[i - 1].id)
    rig.drain()
    assert len(rig.waiting()) == 59
    a.send(made[0])
    groups = 0
    while rig.group():
        groups += 1
    assert groups == 2
    assert len(rig.rows("todo")) == 60


def test_a_row_that_somebody_holds_delays_only_who_touches_it(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", MILK, {"id": "y", "title": "eggs"})
    rig.group()
    a.see()
    b.see()
    with rig.session() as other:
        other.execute("select from app.todo where id = 'x' for update")
        held = a.update("todo", {"id": "x", "title": "held"})
        after = a.send(a.make(("insert", "todo", [{"id": "z"}])), prev=held)
        free = b.update("todo", {"id": "y", "title": "free"})
        rig.group()
        assert rig.outcome(free) == ["APPLIED"]
        assert rig.outcome(held) == rig.outcome(after) == "PENDING"
        at, batch, key, _ = deadline(rig, held)
        assert (batch, key) == (None, None)
        assert at > rig.head, "it rests for a moment"
        rig.clock_offset_ms = 1_000
        assert rig.group() > 0
        assert rig.outcome(held) == "PENDING"
        other.rollback()
    rig.clock_offset_ms = 2_000
    rig.drain()
    assert rig.outcome(held) == rig.outcome(after) == ["APPLIED"]


def test_a_key_that_somebody_is_inserting_delays_only_who_inserts_it(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    with rig.session() as other:
        other.execute("insert into app.todo values ('x', 'sql', true)")
        held = a.insert("todo", MILK)
        free = [b.insert("todo", {"id": f"r{i}"}) for i in range(20)]
        rig.group()
        assert [rig.outcome(one) for one in free] == [["APPLIED"]] * 20
        assert rig.outcome(held) == "PENDING"
        other.rollback()
    rig.clock_offset_ms = 2_000
    rig.drain()
    assert rig.outcome(held) == ["APPLIED"]


def test_a_busy_principal_delays_itself(rig: ResolverRig) -> None:
    busy, calm = rig.node("busy"), rig.node("calm")
    for i in range(50):
        busy.insert("todo", {"id": f"b{i:02}"})
    sent = [calm.insert("todo", {"id": f"c{i}"}) for i in range(3)]
    rig.group(most=10)
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * 3
    assert len(rig.rows("todo")) == 10


def test_more_principals_than_places_take_turns(rig: ResolverRig) -> None:
    nodes = [rig.node(f"{i:02}") for i in range(12)]
    for round_ in range(2):
        for node in nodes:
            node.insert("todo", {"id": f"{node.name}-{round_}"})
    for _ in range(3):
        rig.group(most=4)
    assert sorted(row[0] for row in rig.rows("todo", "id")) == [f"{i:02}-0" for i in range(12)]


def test_ingests_refusal_is_recorded(rig: ResolverRig) -> None:
    a = rig.node("a")
    refused = a.make(("insert", "todo", [MILK]))
    a.send(refused, refusal=(int(errors_pb2.REASON_LIMIT_EXCEEDED), "too many rows"), prev="01HZZZZZZZZZZZZZZZZZZZZZZZ")
    rig.group()
    assert rig.outcome(refused.id) == "LIMIT_EXCEEDED"
    verdict = rig.verdict(refused.id)
    assert verdict is not None
    assert (verdict.message, verdict.position) == ("too many rows", rig.head)


def test_a_batch_older_than_verdicts_are_kept_is_expired(rig: ResolverRig) -> None:
    a = rig.node("a")
    now_ms = time.time_ns() // 1_000_000
    day = 86_400_000
    old = a.send(a.make(("insert", "todo", [{"id": "o"}]), batch_id=a.new_id(now_ms - 31 * day)))
    young = a.send(a.make(("insert", "todo", [{"id": "y"}]), batch_id=a.new_id(now_ms - 29 * day)))
    rig.group()
    assert (rig.outcome(old), rig.outcome(young)) == ("EXPIRED", ["APPLIED"])


def test_a_batch_that_is_decided_already_is_dropped_and_told_of(rig: ResolverRig) -> None:
    a = rig.node("a")
    made = a.make(("insert", "todo", [MILK]))
    a.send(made)
    rig.group()
    a.send(made)
    with rig.session() as listener:
        listener.autocommit = True
        listener.execute("listen anabranch_groups")
        rig.group()
        [told] = list(listener.notifies(timeout=5, stop_after=1))
    assert told.payload.split(":")[2] == made.id
    assert rig.waiting() == []
    assert len(rig.sql("select 1 from anabranch.log")) == 1


def test_positions_grow_when_the_clock_steps_back(rig: ResolverRig) -> None:
    a = rig.node("a")
    positions: list[int] = []
    for offset in (0, -3_600_000, -7_200_000, 3_600_000, 0):
        rig.clock_offset_ms = offset
        a.insert("todo", {"id": str(offset) + str(len(positions))})
        rig.group()
        positions.append(rig.head)
    assert positions == sorted(set(positions))
    assert positions[2] - positions[0] == 2
    assert positions[4] - positions[3] == 1
    assert positions[3] - positions[0] > 3_500_000
