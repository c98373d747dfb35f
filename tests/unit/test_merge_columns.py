"""Column policies that compute, what registration refuses, and outcomes."""

from __future__ import annotations

import pytest

from anabranch.merge import (
    COMPUTED,
    Accepted,
    MutationType,
    Outcome,
    Policy,
    Rejected,
    RejectionReason,
    RowState,
    check_policy,
    resolve,
)
from anabranch.merge.model import Cell, Mutation
from anabranch.testkit.memory_batches import TABLE, batch, live, stamp, update
from anabranch.values.cells import TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, Literal


@pytest.mark.parametrize(
    ("policy", "stored", "incoming", "before", "result"),
    [
        ("counter", 15, 7, 10, 12),
        ("counter", 15, 10, 10, 15),
        ("counter", None, 3, None, 3),
        ("counter", 15, 3, None, 18),
        ("counter", 15, None, 5, 10),
        ("counter", None, None, None, None),
        ("counter", None, 4, 4, None),
        ("counter", 2**63 - 2, 1, 0, 2**63 - 1),
        ("max", 9, 6, 5, 9),
        ("max", 5, 6, 5, 6),
        ("max", None, -6, 5, -6),
        ("max", 9, None, 5, 9),
        ("min", 9, 6, 5, 6),
        ("min", 5, 6, 5, 5),
        ("min", None, 6, 5, 6),
        ("min", 5, None, 5, 5),
        ("max", 5, Literal("294250-01-01 00:00:00"), 5, Literal("294250-01-01 00:00:00")),
        ("max", Literal("294250-01-01 00:00:00"), TIMESTAMP_INFINITY, 5, TIMESTAMP_INFINITY),
        ("min", Literal("294250-01-01 00:00:00"), TIMESTAMP_MINUS_INFINITY, 5, TIMESTAMP_MINUS_INFINITY),
        (
            "min",
            Literal("294250-01-01 00:00:00"),
            Literal("294249-01-01 00:00:00"),
            5,
            Literal("294249-01-01 00:00:00"),
        ),
        ("max", 0, Literal("0044-03-15 12:00:00 BC"), 5, 0),
        ("min", 0, Literal("0044-03-15 12:00:00 BC"), 5, Literal("0044-03-15 12:00:00 BC")),
        ("max", 0, Literal("-infinity"), 5, 0),
        ("max", TIMESTAMP_MINUS_INFINITY, Literal("-infinity"), 5, TIMESTAMP_MINUS_INFINITY),
        ("max", Literal("294250-01-01 00:00:00"), Literal("infinity"), 5, Literal("infinity")),
        ("min", TIMESTAMP_INFINITY, Literal("infinity"), 5, TIMESTAMP_INFINITY),
        ("max", 1, Literal("1970-01-01 00:00:00"), 5, 1),
        ("min", 1, Literal("1970-01-01 01:00:00+01"), 5, Literal("1970-01-01 01:00:00+01")),
        ("union", ("a", "b"), ("b", "c"), ("b",), ("a", "b", "c")),
        ("union", ("a", "b"), ("b",), ("a", "b"), ("a", "b")),
        ("union", None, ("a", "a"), None, ("a", "a")),
        ("union", ("a",), None, ("a",), ("a",)),
        ("union", (), (None, "NULL"), (), (None, "NULL")),
        ("union", (1, 1), (2,), (1,), (1, 2)),
        ("union", ((1, 2), (3, 4)), (4, 5), (), (1, 2, 3, 4, 5)),
        ("union", (0.0,), (-0.0,), (), (0.0, -0.0)),
    ],
)
def test_what_a_computing_policy_stores(policy: str, stored: Cell, incoming: Cell, before: Cell, result: Cell) -> None:
    assert COMPUTED[policy](stored, incoming, before) == result


SUMS = Policy(columns={"n": "counter", "seen": "max"})


def decide(*mutations: Mutation, row: RowState, policy: Policy = SUMS) -> Accepted | Rejected:
    decision = resolve(batch(*mutations), {(TABLE, "x"): row}, lambda _: policy)
    assert isinstance(decision, Accepted | Rejected)
    return decision


def test_a_counter_that_another_changed_unseen_is_merged_and_nothing_lost() -> None:
    row = live({"id": "x", "n": 15, "seen": 9}, "b", 60, stamps={"n": stamp("b", 60), "seen": stamp("b", 60)})
    decision = decide(update("x", {"n": 10, "seen": 5}, n=7, seen=6), row=row)
    assert isinstance(decision, Accepted)
    assert [(w.type, w.values) for w in decision.writes] == [(MutationType.UPDATE, {"n": 12, "seen": 9})]
    assert decision.outcomes[0].outcome is Outcome.MERGED
    assert decision.conflicts == []


def test_a_counter_adds_also_where_nobody_else_wrote() -> None:
    """The value that the device showed need not be the stored one: an earlier batch of it may have been refused."""
    decision = decide(update("x", {"n": 7}, n=9), row=RowState({"id": "x", "n": 10}, None))
    assert isinstance(decision, Accepted)
    assert decision.writes[0].values == {"n": 12}
    assert decision.outcomes[0].outcome is Outcome.APPLIED


def test_two_updates_of_a_counter_in_one_batch_both_add() -> None:
    decision = decide(
        update("x", {"n": 10}, n=11), update("x", {"n": 11}, n=15), row=RowState({"id": "x", "n": 20}, None)
    )
    assert isinstance(decision, Accepted)
    assert [w.values for w in decision.writes] == [{"n": 21}, {"n": 25}]


def test_a_counter_without_an_undo_is_set() -> None:
    decision = decide(update("x", n=9), row=RowState({"id": "x", "n": 10}, None))
    assert isinstance(decision, Accepted)
    assert decision.writes[0].values == {"n": 9}


@pytest.mark.parametrize("n", [2**63 - 1, -(2**63)])
def test_a_counter_that_would_leave_64_bits_is_refused_as_postgres_would(n: int) -> None:
    step = 1 if n > 0 else -1
    decision = decide(update("x", {"n": 0}, n=step), row=RowState({"id": "x", "n": n}, None))
    text = "the number leaves the range of its type"
    assert decision == Rejected(RejectionReason.CONSTRAINT, 0, TABLE, "x", ("n",), "22003", text)


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        (Policy(order="newest"), "newest"),
        (Policy(delete="sometimes"), "sometimes"),
        (Policy(columns={"tags": "sum"}), "tags"),
        (Policy(columns={"tags": "function:"}), "tags"),
    ],
)
def test_registration_refuses_what_the_rules_do_not_know(policy: Policy, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        check_policy(policy)


def test_registration_takes_every_policy_that_there_is() -> None:
    columns = dict(enumerate(["lww", "reject", "function:notes", *COMPUTED]))
    for order in ("server", "edit"):
        for delete in ("rejects", "wins"):
            check_policy(Policy(order, True, delete, {str(c): name for c, name in columns.items()}))


@pytest.mark.parametrize(
    ("text", "sqlstate"),
    [
        *((text, "22007") for text in ("now", "Jan 1 2020", "", "infinityx", "x" * 10_000)),
        *((text, "22008") for text in ("2024-13-01 00:00:00", "2023-02-29 00:00:00", "294277-01-01 00:00:00+00")),
    ],
)
def test_a_moment_in_words_that_could_be_any_or_is_none_is_refused_as_postgres_would(text: str, sqlstate: str) -> None:
    row = RowState({"id": "x", "n": 1, "seen": 9}, None)
    decision = decide(update("x", {"seen": 9}, seen=Literal(text)), row=row)
    assert isinstance(decision, Rejected)
    assert (decision.reason, decision.columns, decision.sqlstate) == (RejectionReason.CONSTRAINT, ("seen",), sqlstate)


def test_an_array_with_bounds_of_its_own_is_no_set() -> None:
    row = RowState({"id": "x", "tags": ("a",)}, None)
    decision = decide(
        update("x", {"tags": ()}, tags=Literal("[2:3]={a,b}")), row=row, policy=Policy(columns={"tags": "union"})
    )
    assert isinstance(decision, Rejected)
    assert (decision.reason, decision.sqlstate) == (RejectionReason.CONSTRAINT, "2202E")


# outcomes


def test_outcomes_are_ordered_by_strength() -> None:
    assert Outcome.APPLIED < Outcome.MERGED < Outcome.OVERWROTE < Outcome.SUPERSEDED


def test_a_mutations_outcome_is_the_strongest_over_its_rows_and_columns() -> None:
    rows = {
        (TABLE, "quiet"): RowState({"title": "q", "done": False}, None),
        (TABLE, "merged"): live({"title": "m", "done": False}, "b", 60, stamps={"note": stamp("b", 60)}),
        (TABLE, "over"): live({"title": "o", "done": False}, "b", 60, stamps={"title": stamp("b", 60)}),
        (TABLE, "also"): live({"title": "a", "done": False}, "b", 60, stamps={"title": stamp("b", 60)}),
    }
    changes = [update(key, title="new", done=True).rows[0] for key in ("quiet", "merged", "over", "also")]
    mutation = Mutation(TABLE, MutationType.UPDATE, changes)
    decision = resolve(batch(mutation, update("quiet", done=False)), rows, lambda _: Policy())
    assert isinstance(decision, Accepted)
    strongest, quiet = decision.outcomes
    assert (strongest.outcome, strongest.key, strongest.columns) == (Outcome.OVERWROTE, "over", ("title",))
    assert (quiet.outcome, quiet.key, quiet.columns) == (Outcome.APPLIED, "quiet", ())
    assert [c.key for c in decision.conflicts] == ["over", "also"]


def test_writing_an_equal_value_is_no_conflict() -> None:
    row = live({"title": "milk"}, "b", 60, stamps={"title": stamp("b", 60)})
    decision = decide(update("x", title="milk"), row=row)
    assert isinstance(decision, Accepted)
    assert decision.conflicts == []
    assert decision.outcomes[0].outcome is Outcome.MERGED
    assert decision.writes[0].values == {"title": "milk"}, "but it moves the stamp"


def test_losing_with_an_equal_value_is_no_conflict() -> None:
    row = live({"title": "milk"}, "b", 60, stamps={"title": stamp("b", 60, made=55)})
    decision = decide(update("x", title="milk"), row=row, policy=Policy(order="edit"))
    assert isinstance(decision, Accepted)
    assert decision.conflicts == []


def test_a_wholly_superseded_mutation_is_no_write() -> None:
    row = live({"title": "milk"}, "b", 60, stamps={"title": stamp("b", 60, made=55)})
    decision = decide(update("x", title="oat"), row=row, policy=Policy(order="edit"))
    assert isinstance(decision, Accepted)
    assert [(w.type, dict(w.values)) for w in decision.writes] == [(None, {})]
