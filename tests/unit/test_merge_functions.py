"""Columns that a function of the application decides: when it is asked, with what, and what comes of its answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.merge import (
    Accepted,
    Asked,
    Batch,
    MutationType,
    Outcome,
    Policy,
    Question,
    Rejected,
    RejectionReason,
    RowState,
    resolve,
)
from anabranch.merge.model import Cell
from anabranch.testkit.memory_batches import TABLE, batch, live, stamp, update
from anabranch.testkit.memory_node import ulid

NOTES = Policy(columns={"body": "function:join"})


def both(base: Cell, stored: Cell, incoming: Cell) -> Cell:
    return f"{stored}+{incoming}"


def told(
    made: Batch, row: RowState, function: Callable[[Cell, Cell, Cell], Cell] = both, policy: Policy = NOTES
) -> tuple[Accepted | Rejected, list[Question]]:
    """The decision once every question is answered, and the questions in the order asked."""
    answers: dict[tuple[int, int], dict[str, Cell]] = {}
    asked: list[Question] = []
    for _ in range(10):
        decision = resolve(made, {(TABLE, "x"): row}, lambda _: policy, answers)
        if not isinstance(decision, Asked):
            assert isinstance(decision, Accepted | Rejected)
            return decision, asked
        asked += decision.questions
        for q in decision.questions:
            answers.setdefault((q.mutation, q.row), {})[q.column] = function(q.base, q.stored, q.incoming)
    raise AssertionError("it asks for ever")


THEIRS = live({"id": "x", "body": "theirs"}, "b", 60, stamps={"body": stamp("b", 60)})


def test_two_who_did_not_see_each_other_are_put_together_and_both_values_kept() -> None:
    decision, asked = told(batch(update("x", {"body": "old"}, body="mine")), THEIRS)
    assert asked == [Question(0, 0, "body", TABLE, "x", "join", "old", "theirs", "mine")]
    assert isinstance(decision, Accepted)
    assert [(w.type, w.values) for w in decision.writes] == [(MutationType.UPDATE, {"body": "theirs+mine"})]
    assert decision.outcomes[0].outcome is Outcome.MERGED
    lost = {(c.losing_value, c.losing_batch, c.winning_batch) for c in decision.conflicts}
    mine, theirs = ulid(50, 0), ulid(60, 0)
    assert lost == {("theirs", theirs, mine), ("mine", mine, theirs)}


@pytest.mark.parametrize(
    ("stored", "base", "incoming"), [("old", "old", "mine"), ("mine", "old", "mine"), (None, None, "mine")]
)
def test_nobody_is_asked_where_one_side_changed_nothing(stored: Cell, base: Cell, incoming: Cell) -> None:
    row = live({"id": "x", "body": stored}, "b", 60, stamps={"body": stamp("b", 60)})
    decision, asked = told(batch(update("x", {"body": base}, body=incoming)), row)
    assert asked == []
    assert isinstance(decision, Accepted)
    assert decision.writes[0].values == {"body": incoming}
    assert decision.conflicts == []


def test_a_change_that_does_not_say_what_it_had_seen_has_no_base() -> None:
    _, asked = told(batch(update("x", body="mine")), THEIRS)
    assert [(q.base, q.stored, q.incoming) for q in asked] == [(None, "theirs", "mine")]


@pytest.mark.parametrize(
    ("answer", "outcome", "written", "lost"),
    [
        ("mine", Outcome.OVERWROTE, {"body": "mine"}, ["theirs"]),
        ("theirs", Outcome.SUPERSEDED, {}, ["mine"]),
        (None, Outcome.MERGED, {"body": None}, ["mine", "theirs"]),
    ],
)
def test_what_the_answer_is_not_is_kept(answer: Cell, outcome: Outcome, written: object, lost: list[Cell]) -> None:
    made = batch(update("x", {"body": "old"}, body="mine"))
    decision, _ = told(made, THEIRS, lambda *_: answer)
    assert isinstance(decision, Accepted)
    assert decision.writes[0].values == written
    assert decision.outcomes[0].outcome is outcome
    assert [c.losing_value for c in decision.conflicts] == lost


def test_the_older_edit_is_asked_about_as_well_and_leaves_the_stamp_alone() -> None:
    row = live({"id": "x", "body": "theirs"}, "b", 60, stamps={"body": stamp("b", 60, made=55)})
    policy = Policy(order="edit", columns=NOTES.columns)
    decision, _ = told(batch(update("x", {"body": "old"}, body="mine")), row, policy=policy)
    assert isinstance(decision, Accepted)
    assert decision.writes[0].values == {"body": "theirs+mine"}
    assert decision.writes[0].kept == ("body",)


def test_a_later_write_of_its_own_stands_and_nobody_is_asked() -> None:
    row = live({"id": "x", "body": "later"}, "a", 90, made=80, stamps={"body": stamp("a", 90, made=80)})
    decision, asked = told(batch(update("x", {"body": "old"}, body="early"), place=90), row)
    assert asked == []
    assert isinstance(decision, Accepted)
    assert decision.outcomes[0].outcome is Outcome.SUPERSEDED
    assert decision.conflicts == []


def test_the_second_change_of_a_row_is_asked_about_over_the_first_ones_answer() -> None:
    made = batch(update("x", {"body": "old"}, body="one"), update("x", {"body": "one"}, body="two"))
    decision, asked = told(made, THEIRS)
    assert [(q.mutation, q.base, q.stored, q.incoming) for q in asked] == [
        (0, "old", "theirs", "one"),
        (1, "one", "theirs+one", "two"),
    ]
    assert isinstance(decision, Accepted)
    assert decision.writes[1].values == {"body": "theirs+one+two"}


def test_a_batch_that_is_refused_for_another_change_asks_nobody() -> None:
    decision, asked = told(batch(update("x", {"body": "old"}, body="mine"), update("gone", body="mine")), THEIRS)
    assert asked == []
    assert isinstance(decision, Rejected)
    assert decision.reason is RejectionReason.ROW_NOT_FOUND
