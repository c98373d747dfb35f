"""The rules as batches meet them: in the inbox, the tables, the log and the verdicts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import change_pb2, value_pb2, verdict_pb2

X = {"id": "x"}
MILK = {"id": "x", "title": "milk", "done": False}


def test_an_insert_is_applied_and_logged_with_all_columns(rig: ResolverRig) -> None:
    a = rig.node("a")
    sent = a.insert("todo", {"id": "x", "title": "milk"})
    rig.group()
    assert rig.outcome(sent) == ["APPLIED"]
    [(kind, raw, node)] = rig.sql("select type, effect, node_id from anabranch.log")
    effect = change_pb2.Effect.FromString(raw)
    assert (kind, list(effect.columns), node) == (1, ["id", "title", "done"], a.id)
    assert effect.values[2].WhichOneof("kind") == "null_value"


def test_updates_of_different_columns_merge(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", MILK)
    rig.group()
    b.see()
    a.see()
    a.update("todo", {"id": "x", "title": "oat milk"})
    rig.group()
    sent = b.update("todo", {"id": "x", "done": True})
    rig.group()
    assert rig.outcome(sent) == ["MERGED"]
    assert rig.rows("todo") == [("x", "oat milk", True)]
    assert rig.losers() == []


def test_with_order_server_the_later_arrival_wins_and_the_loser_is_kept(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", MILK)
    rig.group()
    a.see()
    b.see()
    from_b = b.make(("update", "todo", [{"id": "x", "title": "from b"}]))
    a.update("todo", {"id": "x", "title": "from a"})
    rig.group()
    b.send(from_b)
    rig.group()
    assert rig.outcome(from_b.id) == ["OVERWROTE"]
    assert rig.rows("todo", "title") == [("from b",)]
    assert rig.losers() == [("todo", "x", "title", "from a")]


def test_with_order_edit_the_later_edit_wins_whichever_arrives_first(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(policy={"order": "edit"})
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", MILK)
    rig.group()
    a.see()
    b.see()
    early = b.make(("update", "todo", [{"id": "x", "title": "early", "done": True}]), batch_id=b.new_id())
    late = a.make(("update", "todo", [{"id": "x", "title": "late"}]), batch_id=a.new_id())
    a.send(late)
    rig.group()
    b.send(early)
    rig.group()
    assert rig.outcome(early.id) == ["SUPERSEDED"]
    assert rig.rows("todo") == [("x", "late", True)]
    assert rig.losers() == [("todo", "x", "title", "early")]
    verdict = rig.verdict(early.id)
    assert verdict is not None
    row = verdict.mutations[0].server_row
    shown = dict(zip(row.columns, row.values, strict=True))
    assert shown["title"].string_value == "late"


def test_an_update_of_a_deleted_row_rejects_its_whole_batch(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", MILK, {"id": "y", "title": "eggs", "done": False})
    rig.group()
    a.see()
    b.see()
    sent = b.make(("update", "todo", [{"id": "y", "title": "two"}]), ("update", "todo", [{"id": "x", "title": "n"}]))
    a.delete("todo", X)
    rig.group()
    b.send(sent)
    rig.group()
    assert rig.outcome(sent.id) == "ROW_DELETED"
    assert rig.rows("todo", "id", "title") == [("y", "eggs")]
    verdict = rig.verdict(sent.id)
    assert verdict is not None
    assert [(m.index, m.table, m.key[0].string_value) for m in verdict.mutations] == [(1, "todo", "x")]


def test_a_delete_by_a_node_that_had_not_seen_an_update(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", MILK)
    rig.group()
    a.see()
    b.see()
    unseen = b.make(("delete", "todo", [X]))
    a.update("todo", {"id": "x", "title": "oat milk"})
    rig.group()
    b.send(unseen)
    rig.group()
    assert rig.outcome(unseen.id) == "CONCURRENT_UPDATE"
    verdict = rig.verdict(unseen.id)
    assert verdict is not None
    assert verdict.mutations[0].server_row.values[1].string_value == "oat milk"
    b.see()
    seen = b.delete("todo", X)
    again = a.delete("todo", X)
    rig.group()
    assert rig.outcome(seen) == ["APPLIED"]
    assert rig.outcome(again) == "ALREADY_DELETED"
    assert rig.rows("todo") == []


def test_a_key_that_exists_or_existed(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    first = b.make(("insert", "todo", [MILK]))
    second = b.make(("insert", "todo", [{"id": "y", "title": "b"}]))
    a.insert("todo", MILK), a.insert("todo", {"id": "y", "title": "a"})
    rig.group()
    a.delete("todo", {"id": "y"})
    rig.group()
    b.send(first), b.send(second)
    rig.group()
    assert (rig.outcome(first.id), rig.outcome(second.id)) == ("ROW_EXISTS", "ROW_DELETED")


def test_after_a_rejection_later_work_that_still_fits_is_kept(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", MILK, {"id": "y", "title": "eggs", "done": False})
    rig.group()
    a.see()
    b.see()
    a.delete("todo", X)
    rig.group()
    before = None
    sent = []
    for row in ({"id": "x", "title": "1"}, {"id": "y", "title": "2"}, {"id": "x", "done": True}):
        before = b.send(b.make(("update", "todo", [row])), prev=before)
        sent.append(before)
    rig.group()
    assert [rig.outcome(one) for one in sent] == ["ROW_DELETED", ["APPLIED"], "ROW_DELETED"]


def test_a_composite_key_keeps_similar_keys_apart(make_rig: Any) -> None:
    table = "create table m (room text, member text, role text, primary key (room, member))"
    rig: ResolverRig = make_rig(table, {"m": None})
    a, b = rig.node("a"), rig.node("b")
    keys = [("1", "07"), ("1", "7"), ("10", "7")]
    a.insert("m", *({"room": r, "member": m, "role": "x"} for r, m in keys))
    rig.group()
    b.see()
    b.update("m", {"member": "7", "room": "1", "role": "w"})
    b.delete("m", {"room": "10", "member": "7"})
    rig.group()
    assert rig.rows("m") == [("1", "07", "x"), ("1", "7", "w")]


def test_a_nodes_own_later_write_does_not_hide_anothers(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", MILK)
    rig.group()
    a.see()
    b.see()
    mine = a.make(("update", "todo", [{"id": "x", "title": "from a"}]))
    gone = a.make(("delete", "todo", [X]))
    b.update("todo", {"id": "x", "title": "from b", "done": True})
    rig.group()
    a.send(mine), a.send(gone, prev=mine.id)
    rig.group()
    assert rig.outcome(mine.id) == ["OVERWROTE"]
    assert rig.outcome(gone.id) == "CONCURRENT_UPDATE"
    assert rig.rows("todo") == [("x", "from a", True)]
    assert rig.losers() == [("todo", "x", "title", "from b")]


def test_counters_add_up_and_max_keeps_the_larger(make_rig: Any) -> None:
    table = "create table stock (id text primary key, n bigint, seen bigint)"
    rig: ResolverRig = make_rig(table, {"stock": {"columns": {"n": "counter", "seen": "max"}}})
    a, b = rig.node("a"), rig.node("b")
    a.insert("stock", {"id": "x", "n": 10, "seen": 5})
    rig.group()
    a.see()
    b.see()
    a.send(a.make(("update", "stock", [{"id": "x", "n": 15, "seen": 9}]), undo={"n": 10, "seen": 5}))
    b.send(b.make(("update", "stock", [{"id": "x", "n": 7, "seen": 6}]), undo={"n": 10, "seen": 5}))
    rig.group()
    assert rig.rows("stock") == [("x", 12, 9)]
    b.see()
    over = b.send(b.make(("update", "stock", [{"id": "x", "n": 2**63 - 1}]), undo={"n": 0}))
    rig.group()
    assert rig.outcome(over) == "CONSTRAINT"


def test_max_of_a_timestamp_without_time_zone_leaves_an_offset_out_as_postgres_does(make_rig: Any) -> None:
    table = "create table seen (id text primary key, wall timestamp, at timestamptz)"
    rig: ResolverRig = make_rig(table, {"seen": {"columns": {"wall": "max", "at": "max"}}})
    a, b = rig.node("a"), rig.node("b")
    at = 1_704_067_200_000_000  # 2024-01-01 00:00:00
    a.insert("seen", *({"id": id_, "wall": at - 1, "at": at - 1} for id_ in "xy"))
    rig.group()
    a.see()
    b.see()
    earlier, later = (value_pb2.Value(text_literal=f"2024-01-01 00:00:00{offset}") for offset in ("+05", "-05"))
    a.update("seen", {"id": "x", "wall": earlier, "at": earlier}, {"id": "y", "wall": later, "at": later})
    rig.group()
    assert rig.sql("select id, wall::text, at::text from app.seen order by id") == [
        ("x", "2024-01-01 00:00:00", "2023-12-31 23:59:59.999999+00"),
        ("y", "2024-01-01 00:00:00", "2024-01-01 05:00:00+00"),
    ]


def test_one_batch_that_touches_a_row_again_and_again(rig: ResolverRig) -> None:
    a = rig.node("a")
    a.insert("todo", {"id": "x", "title": "milk"})
    rig.group()
    a.see()
    twice = a.write(
        ("update", "todo", [{"id": "x", "title": "one"}]), ("update", "todo", [{"id": "x", "title": "two"}])
    )
    anew = a.write(
        ("delete", "todo", [X]),
        ("insert", "todo", [{"id": "x", "title": "three"}]),
        ("update", "todo", [{"id": "x", "title": "four"}, {"id": "x", "done": True}]),
    )
    other = a.insert("todo", {"id": "y", "title": "beside"})
    rig.group()
    assert rig.outcome(twice) == ["APPLIED", "APPLIED"]
    assert rig.outcome(anew) == ["APPLIED", "APPLIED", "APPLIED"]
    assert rig.outcome(other) == ["APPLIED"]
    assert rig.rows("todo") == [("x", "four", True), ("y", "beside", None)]
    assert rig.losers() == []
    assert [n for (n,) in rig.sql("select count(*) from anabranch.log where batch_id = %s", [anew])] == [4]


def test_a_refused_insert_and_what_followed_touch_nobody(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    mine = b.make(("insert", "todo", [{"id": "x", "title": "from b"}]))
    again = b.make(("update", "todo", [{"id": "x", "title": "from b again"}]))
    a.insert("todo", {"id": "x", "title": "from a"})
    rig.group()
    b.send(mine), b.send(again, prev=mine.id)
    rig.group()
    assert (rig.outcome(mine.id), rig.outcome(again.id)) == ("ROW_EXISTS", "ROW_DELETED")
    assert rig.rows("todo", "title") == [("from a",)]
    assert rig.losers() == []


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_delete_insert_update_in_any_order_and_cut(rig: ResolverRig, order: tuple[int, ...], cut: int) -> None:
    a = rig.node("a")
    a.insert("todo", {"id": "x", "title": "old", "done": False})
    rig.group()
    a.see()
    made = [
        a.make(("delete", "todo", [X])),
        a.make(("insert", "todo", [{"id": "x", "title": "new", "done": False}])),
        a.make(("update", "todo", [{"id": "x", "done": True}])),
    ]
    for i, number in enumerate(order):
        a.send(made[number], prev=made[number - 1].id if number else None)
        if (i + 1) % cut == 0:
            rig.drain()
    rig.drain()
    assert rig.rows("todo") == [("x", "new", True)]
    assert [rig.outcome(one.id) for one in made] == [["APPLIED"]] * 3
    assert rig.waiting() == []


def test_a_late_batch_takes_its_place(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", MILK)
    rig.group()
    a.see()
    b.see()
    first = a.make(("update", "todo", [{"id": "x", "title": "first", "done": True}]))
    second = a.make(("update", "todo", [{"id": "x", "title": "second"}]))
    # Its park time is over before what it waits for is there.
    a.send(second, prev=first.id, arrived_ms=0)
    rig.group()
    b.see()
    b.update("todo", {"id": "x", "title": "from b"})
    rig.group()
    a.send(first)
    rig.group()
    assert rig.outcome(first.id) == ["SUPERSEDED"]
    assert rig.rows("todo") == [("x", "from b", True)]
    [(place, position)] = rig.sql("select place, position from anabranch.batches where batch_id = %s", [first.id])
    [(other,)] = rig.sql("select position from anabranch.batches where batch_id = %s", [second.id])
    assert place == other < position


def test_a_late_insert_that_leaves_a_column_to_its_default(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table t (id text primary key, a text, b text default 'd')", {"t": None})
    a = rig.node("a")
    a.insert("t", {"id": "x", "a": "1", "b": "1"})
    rig.group()
    a.see()
    made = [
        a.make(("delete", "t", [X])),
        a.make(("insert", "t", [{"id": "x", "a": "2"}])),
        a.make(("update", "t", [{"id": "x", "a": "3"}])),
    ]
    for number in (2, 1, 0):
        a.send(made[number], arrived_ms=0)
        rig.group()
    assert rig.rows("t") == [("x", "3", "d")]


def test_every_accepted_batch_is_in_the_log_even_if_it_changed_nothing(rig: ResolverRig) -> None:
    a = rig.node("a")
    a.insert("todo", MILK)
    rig.group()
    a.see()
    same, empty = a.update("todo", MILK), a.update("todo", X)
    rig.group()
    assert rig.outcome(same) == rig.outcome(empty) == ["APPLIED"]
    found = rig.sql("select type from anabranch.log where batch_id in (%s, %s)", [same, empty])
    assert found == [(4,), (4,)]


def test_a_verdict_is_stored_as_it_is_answered(rig: ResolverRig) -> None:
    a = rig.node("a")
    sent = a.insert("todo", MILK)
    rig.group()
    verdict = rig.verdict(sent)
    assert verdict is not None
    assert (verdict.batch_id, verdict.status, verdict.position) == (
        sent,
        verdict_pb2.VERDICT_STATUS_APPLIED,
        rig.head,
    )
    [(status, place, principal, sha)] = rig.sql(
        "select status, place, principal, payload_sha256 from anabranch.batches"
    )
    assert (status, place, principal, len(sha)) == (1, rig.head, "user-a", 32)
    assert rig.sql("select last_accepted from anabranch.nodes") == [(sent,)]


def test_a_basis_beyond_the_head_hides_nothing_of_the_group_itself(rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    a.insert("todo", {"id": "x", "title": "old"})
    rig.group()
    a.see()
    b.basis = 2**62
    first = a.update("todo", {"id": "x", "title": "a's"})
    second = b.update("todo", {"id": "x", "title": "b's"})
    rig.group()
    assert [rig.outcome(one) for one in (first, second)] == [["APPLIED"], ["OVERWROTE"]]
    assert rig.losers() == [("todo", "x", "title", "a's")]
