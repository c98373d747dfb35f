"""One table says which setback leads to which next try; and tries end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.resolver.made import UPDATE, batch

from anabranch.merge import Write
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.batch.results import Candidate, Rejection, Waiting
from anabranch_conflict_resolver.group.next_try import (
    OVERTAKEN_AT_MOST,
    TABLE,
    Attempt,
    Retry,
    Tried,
    is_in_company,
    next_try,
)
from anabranch_conflict_resolver.group.setback import RefusedKey, Setback, Why

ROW = ("todo", "x")
A, B, C = (batch(n, (UPDATE, "todo", {"id": row, "title": "t"}), node=row) for n, row in enumerate("xyz"))


def after(attempt: Attempt, setback: Setback, batches: Sequence[Candidate] = (A, B, C)) -> Retry:
    return next_try(Tried(attempt, batches, setback, may_cause=True, rest_until_ms=7))


def write_of(candidate: Candidate) -> Write:
    [at] = candidate.decoded.keys
    return Write(at[0], at[1], UPDATE, {}, 0, 0)


def test_whoever_names_a_key_that_is_none_is_refused_and_the_others_go_on() -> None:
    [at] = B.decoded.keys
    key = RefusedKey(6, "no", 0, at, "id", "", "22P02")
    retry = after(Attempt(optimistic=True), Setback(Why.KEYS_REFUSED, keys={B.taken.batch_id: key}))
    assert (retry.attempt, retry.left) == (Attempt(optimistic=True), [A, C])
    [refused] = retry.results
    assert isinstance(refused, Rejection)
    assert (refused.taken, refused.table, refused.key, refused.columns) == (B.taken, "todo", ("y",), ("id",))


def test_every_setback_has_its_line() -> None:
    assert set(TABLE) == set(Why)


def test_who_was_optimistic_looks_for_what_is_caused() -> None:
    retry = after(Attempt(optimistic=True), Setback(Why.UNFORESEEN))
    assert (retry.attempt, retry.left, retry.results) == (Attempt(), (A, B, C), ())


def test_what_constraints_caused_of_several_is_left_to_the_first_alone() -> None:
    assert after(Attempt(), Setback(Why.ENTANGLED)).left == (A,)


def test_a_batch_out_of_its_turn_is_the_last_of_its_group() -> None:
    retry = after(Attempt(), Setback(Why.OUT_OF_TURN, frozenset({B.taken.batch_id})))
    assert (retry.left, retry.results) == ([A, B], ())


def test_who_was_overtaken_locks_what_it_has_caused_and_drains() -> None:
    before = Attempt(lock_too={("todo", "v"): ("v",)})
    retry = after(before, Setback(Why.OVERTAKEN, caused={("todo", "w"): ("w",)}))
    assert retry.attempt.drains
    assert retry.attempt.overtaken == 1
    assert set(retry.attempt.lock_too) == {("todo", "v"), ("todo", "w")}
    assert retry.left == (A, B, C)


def test_who_is_overtaken_again_and_again_rests_and_nobody_is_blamed() -> None:
    retry = after(Attempt(overtaken=OVERTAKEN_AT_MOST, lock_too={ROW: ("x",)}), Setback(Why.OVERTAKEN))
    assert retry.left == []
    assert [type(one) for one in retry.results] == [Waiting] * 3
    assert {one.parking.until_ms for one in retry.results if isinstance(one, Waiting)} == {7}
    assert set(retry.attempt.held) == {one.taken.batch_id for one in (A, B, C)}
    assert not retry.attempt.lock_too


def test_an_outdated_view_is_read_again_until_the_key_is_to_blame() -> None:
    attempt = Attempt(restarts=2)
    for blames in (False, True):
        attempt = after(attempt, Setback(Why.OUTDATED)).attempt
        assert attempt.drains
        assert attempt.blames_keys is blames


def test_a_write_without_effect_is_its_batchs_fault_only_where_all_effects_are_seen() -> None:
    setback = Setback(Why.INEFFECTIVE, frozenset({B.taken.batch_id}), {B.taken.batch_id: write_of(B)})
    retry = after(Attempt(optimistic=True), setback)
    assert (retry.left, retry.results, retry.attempt.optimistic) == ((A, B, C), (), False)
    retry = after(retry.attempt, setback)
    assert retry.left == [A, C]
    [rejected] = retry.results
    assert isinstance(rejected, Rejection)
    assert (rejected.taken, rejected.reason) == (B.taken, errors_pb2.REASON_NO_EFFECT)


def test_who_touches_a_locked_table_rests_and_the_others_go_on() -> None:
    retry = after(Attempt(), Setback(Why.TABLE_LOCKED, frozenset({A.taken.batch_id})))
    assert retry.left == [B, C]
    assert [one.taken for one in retry.results] == [A.taken]
    assert retry.attempt.held == {A.taken.batch_id: "x"}


def test_bad_batches_are_looked_for_the_quick_way_first_and_then_one_by_one() -> None:
    first = after(Attempt(optimistic=True), Setback(Why.REFUSED)).attempt
    assert first == Attempt(expects_bad=True)
    assert first.looks_first((A, B))
    assert not first.looks_first((A,))
    second = after(first, Setback(Why.REFUSED)).attempt
    assert (second.one_by_one, second.looks_first((A, B))) == (True, False)
    assert not after(second, Setback(Why.OUTDATED)).attempt.one_by_one, "only who is told to"
    assert not after(first, Setback(Why.MISJUDGED)).attempt.looks_first((A, B))


def test_who_waited_for_a_lock_or_is_alone_is_looked_at_one_by_one_at_once() -> None:
    assert after(Attempt(), Setback(Why.REFUSED, waited=True)).attempt.one_by_one
    assert after(Attempt(), Setback(Why.REFUSED), (A,)).attempt.one_by_one


def test_of_those_in_company_the_first_on_their_rows_are_left() -> None:
    again = batch(9, (UPDATE, "todo", {"id": "x", "title": "u"}), node="w")
    group = [A, B, again]
    refused = Rejection(again.taken, errors_pb2.REASON_CONSTRAINT, "", sqlstate="23503")
    assert is_in_company(group, [refused])
    assert not is_in_company(group, [replace(refused, by_itself=True)])
    assert not is_in_company([again, B], [refused])
    assert after(Attempt(), Setback(Why.IN_COMPANY), group).left == [A, B]


def possible(attempt: Attempt, left: Sequence[Candidate]) -> list[Setback]:
    """The setbacks that a try can have."""
    ids = [one.taken.batch_id for one in left]
    found = [Setback(Why.OVERTAKEN), Setback(Why.INEFFECTIVE, frozenset(ids[:1]), {ids[0]: write_of(left[0])})]
    found.append(Setback(Why.TABLE_LOCKED, frozenset(ids[-1:])))
    if attempt.optimistic:
        found.append(Setback(Why.UNFORESEEN))
    if not attempt.blames_keys:
        found.append(Setback(Why.OUTDATED))
    if len(left) > 1:
        found += [Setback(Why.ENTANGLED), Setback(Why.OUT_OF_TURN, frozenset(ids[:1]))]
    if attempt.looks_first(left):
        found.append(Setback(Why.MISJUDGED))
    if not attempt.one_by_one:
        found.append(Setback(Why.REFUSED))
    return found


@given(st.data(), st.booleans())
def test_tries_end(data: st.DataObject, optimistic: bool) -> None:
    """Where none of them comes to a decision, each batch is done with sooner or later; all but those of one try in a
    row that a refusal has failed one by one, which is given on."""
    attempt, left = Attempt(optimistic=optimistic), list[Candidate]([A, B, C])
    tries = 0
    while left and tries <= 40:
        tries += 1
        retry = after(attempt, data.draw(st.sampled_from(possible(attempt, left))), left)
        assert len(retry.left) + len(retry.results) <= len(left)
        attempt, left = retry.attempt, list(retry.left)
    assert tries <= 40
