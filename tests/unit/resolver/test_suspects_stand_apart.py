"""In which order suspects and others of a failed group are run, and how a suspect is cut."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from anabranch.merge import MutationType, Write
from anabranch.store.inbox.take import Taken
from anabranch_conflict_resolver.batch.decode import Decoded
from anabranch_conflict_resolver.batch.results import Candidate
from anabranch_conflict_resolver.blame.suspects import Suspects, stages
from anabranch_conflict_resolver.group.cuts import up_to


def candidate(number: int, node: str, rows: Sequence[str]) -> Candidate:
    taken = Taken(
        f"{number:026}", node, "p", 0, None, b"", b"", None, 0, 0, None, None, None, False, True, None, None, 0
    )
    return Candidate(taken, Decoded(keys={("t", row): (row,) for row in rows}), 1, may_wait=True, may_await_row=True)


groups = st.lists(
    st.tuples(st.sampled_from("abc"), st.sets(st.sampled_from("uvwxyz"), min_size=1, max_size=3), st.booleans()),
    max_size=14,
)


@given(groups)
def test_each_comes_after_all_that_it_is_related_to(made: list[tuple[str, set[str], bool]]) -> None:
    group = [candidate(i, node, sorted(rows)) for i, (node, rows, _) in enumerate(made)]
    suspects = Suspects(batches={c.taken.batch_id for c, (*_, bad) in zip(group, made, strict=True) if bad})
    order = [(c, number) for number, (_, part) in enumerate(stages(group, suspects)) for c in part]
    assert sorted(c.taken.batch_id for c, _ in order) == [c.taken.batch_id for c in group]
    at = {c.taken.batch_id: place for place, (c, _) in enumerate(order)}
    for i, first in enumerate(group):
        for second in group[i + 1 :]:
            shared = not first.decoded.keys.keys().isdisjoint(second.decoded.keys)
            if shared or first.taken.node_id == second.taken.node_id:
                assert at[first.taken.batch_id] < at[second.taken.batch_id]


@given(groups)
def test_who_may_be_in_the_right_comes_after_all_before_it(made: list[tuple[str, set[str], bool]]) -> None:
    group = [candidate(i, node, sorted(rows)) for i, (node, rows, _) in enumerate(made)]
    bad = [c for c, (*_, bad) in zip(group, made, strict=True) if bad]
    unsure = {c.taken.batch_id for c in bad[::2]}
    sure = {c.taken.batch_id for c in bad[1::2]}
    suspects = Suspects(batches={*unsure, *sure}, sure=sure)
    order = [c.taken.batch_id for _, part in stages(group, suspects) for c in part]
    for place, batch_id in enumerate(order):
        if batch_id in unsure:
            assert {c.taken.batch_id for c in group if c.taken.batch_id < batch_id} <= set(order[:place])


def test_who_brings_a_parent_comes_before_its_child() -> None:
    sick, parent, child = candidate(0, "a", "x"), candidate(1, "a", "p"), candidate(2, "b", "c")
    link = ("t_parent", ("p",))
    sure = {sick.taken.batch_id}
    suspects = Suspects({sick.taken.batch_id}, sure, links={c.taken.batch_id: {link} for c in (parent, child)})
    assert [c for _, part in stages([sick, parent, child], suspects) for c in part] == [sick, parent, child]


@given(groups)
def test_no_part_mixes_suspects_with_others(made: list[tuple[str, set[str], bool]]) -> None:
    group = [candidate(i, node, sorted(rows)) for i, (node, rows, _) in enumerate(made)]
    suspects = Suspects(batches={c.taken.batch_id for c, (*_, bad) in zip(group, made, strict=True) if bad})
    for suspected, part in stages(group, suspects):
        assert {c.taken.batch_id in suspects.batches for c in part} == {suspected}


def test_unrelated_suspects_cost_the_others_no_part() -> None:
    group = [candidate(i, f"n{i}", [f"r{i}"]) for i in range(20)]
    suspects = Suspects(batches={c.taken.batch_id for c in group[::5]})
    assert [(suspected, len(part)) for suspected, part in stages(group, suspects)] == [(False, 16), (True, 4)]


@given(groups)
def test_who_surely_fails_keeps_the_order_of_rows_and_not_of_nodes(made: list[tuple[str, set[str], bool]]) -> None:
    group = [candidate(i, node, sorted(rows)) for i, (node, rows, _) in enumerate(made)]
    bad = {c.taken.batch_id for c, (*_, bad) in zip(group, made, strict=True) if bad}
    suspects = Suspects(batches=bad, sure=bad)
    order = [c for _, part in stages(group, suspects, loose=True) for c in part]
    assert sorted(c.taken.batch_id for c in order) == [c.taken.batch_id for c in group]
    at = {c.taken.batch_id: place for place, c in enumerate(order)}
    for i, first in enumerate(group):
        for second in group[i + 1 :]:
            shared = not first.decoded.keys.keys().isdisjoint(second.decoded.keys)
            both_good = bad.isdisjoint((first.taken.batch_id, second.taken.batch_id))
            if shared or (both_good and first.taken.node_id == second.taken.node_id):
                assert at[first.taken.batch_id] < at[second.taken.batch_id]


def test_surely_bad_batches_of_one_node_cost_the_others_no_part() -> None:
    group = [candidate(i, "a", [f"r{i}"]) for i in range(20)]
    bad = {c.taken.batch_id for c in group[::5]}
    parts = stages(group, Suspects(batches=bad, sure=bad), loose=True)
    assert [(suspected, len(part)) for suspected, part in parts] == [(False, 16), (True, 4)]


def test_the_suspected_write_is_tried_behind_those_before_it() -> None:
    writes = [Write("t", key, MutationType.UPDATE, {}, 0, row) for row, key in enumerate("wxyz")]
    one = candidate(1, "a", "wxyz")
    assert [[w.key for w in step] for step in up_to(one, writes, writes[2])] == [["w", "x"], ["y"]]
    assert [[w.key for w in step] for step in up_to(one, writes, writes[0])] == [["w"]]
    assert up_to(one, writes, Write("t", "q", MutationType.UPDATE, {}, 0, 9)) == []
    one.decoded.twice = True
    again = [*writes[:2], Write("t", "w", MutationType.UPDATE, {}, 1, 0), writes[3]]
    assert [[w.key for w in step] for step in up_to(one, again, again[3])] == [["w", "x"], ["w"], ["z"]]
