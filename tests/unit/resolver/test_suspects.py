"""Whom a group suspects, and what it asks of Postgres for it: decided on the view, without a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.unit.resolver.made import INSERT, UPDATE, batch, context, lists, progress

from anabranch.values import Cell
from anabranch_conflict_resolver.batch.results import Candidate, Rejection
from anabranch_conflict_resolver.blame.suspects import (
    FOREIGN_KEY,
    NOT_NULL,
    UNIQUE,
    Look,
    Suspects,
    is_as_sure,
    outlook,
    questions,
)

SYNCED = lists()


def looked_at(
    candidates: Sequence[Candidate], rows: Mapping[tuple[str, str], Sequence[Cell]]
) -> tuple[Suspects, list[Look]]:
    """The suspects that need no question, and the questions."""
    tried, suspects = progress(SYNCED, rows), Suspects()
    after, gone = outlook(context(SYNCED), tried, candidates)
    return suspects, questions(SYNCED, suspects, tried.view, after, gone, {})


def ids(*candidates: Candidate) -> set[str]:
    return {candidate.taken.batch_id for candidate in candidates}


def test_a_null_where_none_may_be_is_suspected_without_a_question() -> None:
    bad = batch(1, (UPDATE, "todo", {"id": "t", "title": None}))
    good = batch(2, (UPDATE, "todo", {"id": "u", "title": "x"}))
    suspects, asked = looked_at([bad, good], {("todo", key): [key, None, "old"] for key in "tu"})
    assert not asked
    assert suspects.batches == suspects.sure == ids(bad)
    assert suspects.broken[bad.taken.batch_id].sqlstate == NOT_NULL


def test_who_refers_to_no_row_of_the_group_is_asked_about() -> None:
    parent = batch(1, (INSERT, "list", {"id": "new", "code": None}))
    child = batch(2, (INSERT, "todo", {"id": "t", "list_id": "new", "title": "x"}), node="other")
    orphans = [batch(n, (INSERT, "todo", {"id": f"o{n}", "list_id": "none", "title": "x"})) for n in (3, 4)]
    suspects, asked = looked_at([parent, child, *orphans], {})
    assert not suspects.batches
    [question] = asked
    question.suspect(0)
    assert suspects.batches == suspects.sure == ids(*orphans)
    assert {broken.sqlstate for broken in suspects.broken.values()} == {FOREIGN_KEY}
    assert suspects.links[parent.taken.batch_id] == suspects.links[child.taken.batch_id], "they belong together"


def test_the_second_row_with_a_unique_value_is_sure_to_fail_unless_the_first_one_does() -> None:
    first, second = (batch(n, (INSERT, "list", {"id": f"l{n}", "code": "c"}), node=f"n{n}") for n in (1, 2))
    suspects, [question] = looked_at([first, second], {})
    suspects.weigh()
    assert suspects.batches == suspects.sure == ids(second)
    assert suspects.broken[second.taken.batch_id].sqlstate == UNIQUE
    suspects, [question] = looked_at([first, second], {})
    question.suspect(0)
    suspects.weigh()
    assert suspects.batches == ids(first, second)
    assert suspects.sure == ids(first), "where the first is refused, the second may be in the right"


def test_a_value_that_a_row_of_the_group_may_give_up_is_no_sure_thing() -> None:
    taker = batch(2, (UPDATE, "list", {"id": "m", "code": "c"}))
    suspects, [question] = looked_at([taker], {("list", "l"): ["l", "c"], ("list", "m"): ["m", "d"]})
    question.suspect(0)
    assert suspects.batches == ids(taker)
    assert not suspects.sure


def test_what_a_statement_does_not_change_is_not_asked_about() -> None:
    same = batch(1, (UPDATE, "todo", {"id": "t", "list_id": "l"}))
    suspects, asked = looked_at([same], {("todo", "t"): ["t", "l", "x"]})
    assert (asked, suspects.batches) == ([], set())


def test_who_is_sure_to_be_refused_and_is_not_was_misjudged() -> None:
    bad = batch(1, (UPDATE, "todo", {"id": "t", "title": None}))
    suspects = Suspects(batches=ids(bad), sure=ids(bad))
    assert is_as_sure(suspects, Rejection(bad.taken, 6, "", by_itself=True))
    assert not is_as_sure(suspects, Rejection(bad.taken, 6, ""))
    assert is_as_sure(Suspects(batches=ids(bad)), Rejection(bad.taken, 6, ""))
