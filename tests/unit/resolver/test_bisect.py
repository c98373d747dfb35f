"""The batch to blame, among those that failed together, is found by halves."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.resolver.made import UPDATE, batch

from anabranch.store.inbox.parking import Parking
from anabranch_conflict_resolver.batch.results import Candidate, Rejection, Result, Waiting
from anabranch_conflict_resolver.blame.bisect import bisect
from anabranch_conflict_resolver.group.setback import Setback, Why

GROUP = [batch(n, (UPDATE, "todo", {"id": str(n), "title": "x"})) for n in range(16)]


class Tables:
    """The writes of batches, where some are refused and one may be out of its turn."""

    def __init__(self, bad: set[int], out_of_turn: int | None = None) -> None:
        self.bad = {GROUP[n].taken.batch_id for n in bad}
        self.out_of_turn = None if out_of_turn is None else GROUP[out_of_turn].taken.batch_id
        self.tries = 0
        self.written: list[str] = []

    def together(self, some: Sequence[Candidate]) -> list[Result] | Setback:
        self.tries += 1
        ids = [one.taken.batch_id for one in some]
        if self.out_of_turn in ids:
            return Setback(Why.OUT_OF_TURN, frozenset({str(self.out_of_turn)}))
        if not self.bad.isdisjoint(ids):
            return Setback(Why.REFUSED)
        self.written += ids
        return [self.result(one) for one in some]

    def alone(self, one: Candidate) -> Result | Setback:
        self.tries += 1
        if one.taken.batch_id == self.out_of_turn:
            return Setback(Why.OUT_OF_TURN, frozenset({one.taken.batch_id}))
        if one.taken.batch_id not in self.bad:
            self.written.append(one.taken.batch_id)
        return self.result(one)

    def result(self, one: Candidate) -> Result:
        if one.taken.batch_id in self.bad:
            return Rejection(one.taken, 6, "")
        return Waiting(one.taken, Parking(one.taken.batch_id, 0), "stands for one that was written")

    def decide(self, group: Sequence[Candidate], *, failed: bool = True) -> list[Result] | Setback:
        return bisect(group, failed=failed, together=self.together, alone=self.alone, any_failed=_any_rejected)


def _any_rejected(results: Sequence[Result]) -> bool:
    return any(isinstance(result, Rejection) for result in results)


@given(st.sets(st.integers(0, 15), min_size=1))
def test_all_others_are_written_in_their_order(bad: set[int]) -> None:
    tables = Tables(bad)
    results = tables.decide(GROUP)
    assert isinstance(results, list)
    assert [result.taken for result in results] == [one.taken for one in GROUP]
    assert [isinstance(result, Rejection) for result in results] == [n in bad for n in range(16)]
    assert tables.written == [one.taken.batch_id for n, one in enumerate(GROUP) if n not in bad]


@given(st.integers(0, 15))
def test_one_bad_batch_costs_a_few_tries_and_not_one_for_every_batch(bad: int) -> None:
    tables = Tables({bad})
    tables.decide(GROUP)
    assert tables.tries <= 8


@given(st.integers(0, 15), st.booleans())
def test_a_setback_that_nobody_is_to_blame_for_ends_it(late: int, failed: bool) -> None:
    outcome = Tables(set(), out_of_turn=late).decide(GROUP, failed=failed)
    assert isinstance(outcome, Setback)
    assert outcome.why is Why.OUT_OF_TURN


def test_none_is_no_question() -> None:
    assert Tables(set()).decide([]) == []
