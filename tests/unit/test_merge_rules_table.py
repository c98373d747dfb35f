"""The table of conflict rules, row by row: node a's batch has basis 50 and is decided at 100."""

from __future__ import annotations

import pytest

from anabranch.merge import (
    Accepted,
    Conflict,
    Decision,
    Mutation,
    MutationType,
    Outcome,
    Parked,
    Policy,
    Rejected,
    RejectionReason,
    RowState,
    Stamp,
    resolve,
)
from anabranch.merge.model import Batch
from anabranch.testkit.memory_batches import TABLE, batch, delete, insert, live, stamp, tombstone, update
from anabranch.testkit.memory_node import ulid

MILK = {"id": "x", "title": "milk", "done": False}
VERSION_0 = RowState(MILK, None)


def decide(
    *mutations: Mutation, row: RowState | None = None, policy: Policy | None = None, by: Batch | None = None
) -> Decision:
    view = {} if row is None else {(TABLE, "x"): row}
    return resolve(by or batch(*mutations), view, lambda _: policy or Policy())


def rejected(decision: Decision) -> RejectionReason:
    assert isinstance(decision, Rejected)
    return decision.reason


def accepted(decision: Decision) -> Accepted:
    assert isinstance(decision, Accepted)
    return decision


def outcomes(decision: Decision) -> list[Outcome]:
    return [outcome.outcome for outcome in accepted(decision).outcomes]


def writes(decision: Decision) -> list[tuple[MutationType | None, dict[str, object]]]:
    return [(write.type, dict(write.values)) for write in accepted(decision).writes]


# insert


def test_an_insert_of_an_unknown_row_is_applied_as_given() -> None:
    decision = decide(insert("x", title="milk"))
    assert writes(decision) == [(MutationType.INSERT, {"id": "x", "title": "milk"})]
    assert outcomes(decision) == [Outcome.APPLIED]


@pytest.mark.parametrize("row", [VERSION_0, live(MILK, "b", 70), live(MILK, "b", 40), live(MILK, "a", 40)])
def test_an_insert_of_a_live_row_is_rejected(row: RowState) -> None:
    assert rejected(decide(insert("x"), row=row)) is RejectionReason.ROW_EXISTS


@pytest.mark.parametrize("row", [tombstone("b", 50), tombstone("a", 90, made=40)])
def test_an_insert_over_a_tombstone_that_the_node_had_seen_or_made_is_applied(row: RowState) -> None:
    decision = decide(insert("x", title="new"), row=row)
    assert writes(decision) == [(MutationType.INSERT, {"id": "x", "title": "new"})]


@pytest.mark.parametrize("made", [40, 60])
def test_an_insert_over_any_other_tombstone_is_rejected(made: int) -> None:
    assert rejected(decide(insert("x"), row=tombstone("b", 51, made=made))) is RejectionReason.ROW_DELETED


def test_an_insert_over_any_other_tombstone_is_applied_with_resurrect() -> None:
    decision = decide(insert("x"), row=tombstone("b", 51), policy=Policy(resurrect=True))
    assert outcomes(decision) == [Outcome.APPLIED]
    assert writes(decision) == [(MutationType.INSERT, {"id": "x"})]


# update


@pytest.mark.parametrize("row", [VERSION_0, live(MILK, "b", 50), live(MILK, "a", 90, other=50, made=40)])
def test_an_update_of_a_live_row_that_is_not_concurrent_is_applied(row: RowState) -> None:
    decision = decide(update("x", title="oat"), row=row)
    assert writes(decision) == [(MutationType.UPDATE, {"title": "oat"})]
    assert outcomes(decision) == [Outcome.APPLIED]


@pytest.mark.parametrize(
    "row",
    [
        live(MILK, "b", 51, stamps={"done": stamp("b", 51)}),
        live(MILK, "a", 90, other=51, made=40, stamps={"done": stamp("b", 51)}),
    ],
    ids=["the other wrote last", "an own write came after the other's"],
)
def test_an_update_of_other_columns_of_a_concurrent_row_is_merged(row: RowState) -> None:
    decision = decide(update("x", title="oat"), row=row)
    assert outcomes(decision) == [Outcome.MERGED]
    assert writes(decision) == [(MutationType.UPDATE, {"title": "oat"})]
    assert accepted(decision).conflicts == []


def test_an_update_of_a_column_that_another_wrote_unseen_wins_it_by_arrival_and_the_loser_is_kept() -> None:
    row = live(MILK, "b", 60, stamps={"title": stamp("b", 60)})
    decision = decide(update("x", title="oat", done=True), row=row)
    assert outcomes(decision) == [Outcome.OVERWROTE]
    assert accepted(decision).outcomes[0].columns == ("title",)
    assert writes(decision) == [(MutationType.UPDATE, {"title": "oat", "done": True})]
    assert accepted(decision).conflicts == [Conflict(TABLE, "x", "title", "milk", ulid(60, 0), "b", ulid(50, 0), "a")]


def test_with_order_edit_the_later_edit_wins_when_it_comes_second() -> None:
    row = live(MILK, "b", 60, stamps={"title": stamp("b", 60, made=49)})
    decision = decide(update("x", title="oat"), row=row, policy=Policy(order="edit"))
    assert outcomes(decision) == [Outcome.OVERWROTE]
    assert accepted(decision).conflicts[0].losing_value == "milk"


def test_with_order_edit_the_later_edit_wins_when_it_came_first_and_the_other_is_kept() -> None:
    row = live(MILK, "b", 60, stamps={"title": stamp("b", 60, made=51)})
    decision = decide(update("x", title="oat", done=True), row=row, policy=Policy(order="edit"))
    assert outcomes(decision) == [Outcome.SUPERSEDED]
    assert accepted(decision).outcomes[0].columns == ("title",)
    assert writes(decision) == [(MutationType.UPDATE, {"done": True})]
    assert accepted(decision).conflicts == [Conflict(TABLE, "x", "title", "oat", ulid(50, 0), "a", ulid(51, 0), "b")]


def test_with_order_edit_a_clock_years_ahead_gains_no_more_than_its_arrival() -> None:
    ahead = live(MILK, "b", 60, stamps={"title": stamp("b", 60, made=10**9)})
    mine = batch(update("x", title="oat"), made=61)
    assert outcomes(decide(row=ahead, policy=Policy(order="edit"), by=mine)) == [Outcome.OVERWROTE]


def test_with_order_edit_what_the_servers_own_sessions_wrote_was_written_when_captured() -> None:
    by_server = stamp("server", 60)
    by_server.batch = "0000000000" + by_server.batch[10:]
    row = live(MILK, "server", 60, stamps={"title": by_server})
    policy = Policy(order="edit")
    assert outcomes(decide(row=row, policy=policy, by=batch(update("x", title="oat"), made=59))) == [Outcome.SUPERSEDED]
    assert outcomes(decide(row=row, policy=policy, by=batch(update("x", title="oat"), made=61))) == [Outcome.OVERWROTE]


@pytest.mark.parametrize("inserted", [stamp("b", 51), stamp("b", 70)])
def test_an_update_of_a_row_that_another_inserted_unseen_is_rejected(inserted: Stamp) -> None:
    row = live(MILK, "b", 70, inserted=inserted)
    assert rejected(decide(update("x", title="oat"), row=row)) is RejectionReason.ROW_DELETED


def test_an_update_of_a_row_that_another_inserted_within_sight_is_applied() -> None:
    row = live(MILK, "b", 50, inserted=stamp("b", 50))
    assert outcomes(decide(update("x", title="oat"), row=row)) == [Outcome.APPLIED]


@pytest.mark.parametrize("row", [tombstone("b", 70), tombstone("b", 40), tombstone("a", 70, made=40)])
def test_an_update_over_a_tombstone_is_rejected(row: RowState) -> None:
    assert rejected(decide(update("x", title="oat"), row=row)) is RejectionReason.ROW_DELETED


@pytest.mark.parametrize("change", [update("x", title="oat"), delete("x")])
def test_a_change_of_an_unknown_row_is_parked_while_an_earlier_batch_has_no_verdict(change: Mutation) -> None:
    assert decide(by=batch(change, earlier_pending=True)) == Parked(TABLE, "x")


@pytest.mark.parametrize("change", [update("x", title="oat"), delete("x")])
def test_a_change_of_an_unknown_row_is_rejected_at_once_where_nothing_can_come(change: Mutation) -> None:
    decision = decide(insert("y"), change)
    assert decision == Rejected(RejectionReason.ROW_NOT_FOUND, 1, TABLE, "x")


def test_a_row_that_went_without_a_tombstone_is_unknown() -> None:
    """Somebody deleted it while nothing was captured: it has a history, is not there, and nothing says deleted."""
    row = RowState(None, live(MILK, "b", 60).version)
    assert rejected(decide(update("x", title="oat"), row=row)) is RejectionReason.ROW_NOT_FOUND
    assert rejected(decide(delete("x"), row=row)) is RejectionReason.ROW_NOT_FOUND
    assert outcomes(decide(insert("x"), row=row)) == [Outcome.APPLIED]


# delete


@pytest.mark.parametrize("row", [VERSION_0, live(MILK, "b", 50), live(MILK, "a", 90, other=50, made=40)])
def test_a_delete_of_a_live_row_that_is_not_concurrent_is_applied(row: RowState) -> None:
    decision = decide(delete("x"), row=row)
    assert writes(decision) == [(MutationType.DELETE, {})]
    assert outcomes(decision) == [Outcome.APPLIED]


CONCURRENT = live(MILK, "b", 60, stamps={"title": stamp("b", 60), "done": stamp("b", 40)})


def test_a_delete_of_a_concurrent_row_is_rejected() -> None:
    decision = decide(delete("x"), row=CONCURRENT)
    assert rejected(decision) is RejectionReason.CONCURRENT_UPDATE
    assert isinstance(decision, Rejected)
    assert decision.columns == ("title",)


def test_a_delete_of_a_concurrent_row_is_applied_with_delete_wins_and_the_lost_update_kept() -> None:
    decision = decide(delete("x"), row=CONCURRENT, policy=Policy(delete="wins"))
    assert writes(decision) == [(MutationType.DELETE, {})]
    assert outcomes(decision) == [Outcome.OVERWROTE]
    assert accepted(decision).conflicts == [Conflict(TABLE, "x", "title", "milk", ulid(60, 0), "b", ulid(50, 0), "a")]


def test_with_delete_wins_a_batchs_own_update_does_not_stand_in_the_way_of_its_delete() -> None:
    decision = decide(update("x", done=True), delete("x"), row=CONCURRENT, policy=Policy(delete="wins"))
    assert [type_ for type_, _ in writes(decision)] == [MutationType.UPDATE, MutationType.DELETE]


def test_a_row_inserted_unseen_that_loses_to_a_delete_can_be_read_whole() -> None:
    row = live(MILK, "b", 60, inserted=stamp("b", 60))
    lost = accepted(decide(delete("x"), row=row, policy=Policy(delete="wins"))).conflicts
    assert {conflict.column: conflict.losing_value for conflict in lost} == MILK


@pytest.mark.parametrize("row", [tombstone("b", 70), tombstone("b", 40), tombstone("a", 70, made=40)])
def test_a_delete_over_a_tombstone_is_rejected(row: RowState) -> None:
    assert rejected(decide(delete("x"), row=row)) is RejectionReason.ALREADY_DELETED


# column policies


GUARDED = Policy(columns={"title": "reject"})


def test_a_guarded_column_that_another_wrote_unseen_rejects_the_update() -> None:
    row = live(MILK, "b", 60, stamps={"title": stamp("b", 60)})
    decision = decide(update("x", done=True, title="milk"), row=row, policy=GUARDED)
    assert decision == Rejected(RejectionReason.CONCURRENT_UPDATE, 0, TABLE, "x", ("title",))


def test_a_guarded_column_that_another_wrote_unseen_rejects_even_a_delete_that_wins() -> None:
    row = live(MILK, "b", 60, stamps={"title": stamp("b", 60)})
    decision = decide(delete("x"), row=row, policy=Policy(delete="wins", columns={"title": "reject"}))
    assert decision == Rejected(RejectionReason.CONCURRENT_UPDATE, 0, TABLE, "x", ("title",))


@pytest.mark.parametrize(
    "row",
    [
        live(MILK, "b", 60, stamps={"done": stamp("b", 60), "title": stamp("b", 50)}),
        live(MILK, "b", 50, stamps={"title": stamp("b", 50)}),
        live(MILK, "a", 60, made=40, stamps={"title": stamp("a", 60, made=40)}),
    ],
    ids=["another column", "within sight", "by itself"],
)
def test_a_guarded_column_that_nobody_wrote_unseen_is_written(row: RowState) -> None:
    decision = decide(update("x", title="oat"), row=row, policy=GUARDED)
    assert writes(decision) == [(MutationType.UPDATE, {"title": "oat"})]


# whole batches


def test_promise_2_one_refused_mutation_refuses_the_batch_and_is_named() -> None:
    decision = decide(insert("y"), update("x", title="oat"), row=tombstone("b", 70))
    assert decision == Rejected(RejectionReason.ROW_DELETED, 1, TABLE, "x")


def test_of_two_updates_of_one_column_in_a_batch_the_second_stands() -> None:
    decision = decide(update("x", title="one"), update("x", title="two"), row=VERSION_0)
    assert outcomes(decision) == [Outcome.APPLIED, Outcome.APPLIED]
    assert writes(decision)[1] == (MutationType.UPDATE, {"title": "two"})
    assert accepted(decision).conflicts == []


def test_a_value_lost_to_a_batch_that_writes_the_column_twice_is_kept_once() -> None:
    row = live(MILK, "b", 60, stamps={"title": stamp("b", 60)})
    decision = decide(update("x", title="one"), update("x", title="two"), row=row)
    assert [c.losing_value for c in accepted(decision).conflicts] == ["milk"]
    assert outcomes(decision) == [Outcome.OVERWROTE, Outcome.MERGED]


def test_a_row_is_deleted_inserted_anew_and_updated_in_one_batch() -> None:
    decision = decide(delete("x"), insert("x", title="three"), update("x", title="four"), delete("x"), row=VERSION_0)
    assert [type_ for type_, _ in writes(decision)] == [
        MutationType.DELETE,
        MutationType.INSERT,
        MutationType.UPDATE,
        MutationType.DELETE,
    ]
    assert outcomes(decision) == [Outcome.APPLIED] * 4


def test_a_second_insert_in_one_batch_meets_the_first() -> None:
    assert rejected(decide(insert("x"), insert("x"))) is RejectionReason.ROW_EXISTS


def test_an_own_earlier_write_in_the_batch_does_not_hide_that_another_was_never_seen() -> None:
    decision = decide(update("x", title="oat"), delete("x"), row=CONCURRENT)
    assert isinstance(decision, Rejected)
    assert (decision.reason, decision.mutation) == (RejectionReason.CONCURRENT_UPDATE, 1)


def test_each_write_names_the_mutation_and_the_row_that_it_came_from() -> None:
    both = insert("y", title="eggs")
    both = Mutation(both.table, both.type, [*both.rows, *insert("z").rows])
    decision = decide(update("x", title="oat"), both, row=VERSION_0)
    assert [(w.key, w.mutation, w.row) for w in accepted(decision).writes] == [
        ("x", 0, 0),
        ("y", 1, 0),
        ("z", 1, 1),
    ]
