"""A group's batches need some of the rows that others committed meanwhile, as far as it can be told without asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from tests.unit.resolver.made import DELETE, INSERT, UPDATE, batch, context, lists, progress

from anabranch.merge import MutationType
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.results import Accepting, Applied, Change
from anabranch_conflict_resolver.captured.dependencies import Dependencies, needed_by
from anabranch_conflict_resolver.captured.server_batches import Step
from anabranch_conflict_resolver.group.rules import decide

SYNCED = lists()
Row = Sequence[Cell] | None


def needed(kind: MutationType, table: str, row: Mapping[str, Cell], stood: Row, stands: Row) -> Dependencies:
    """The needs of a batch of one mutation, after which its row stands so."""
    candidate = batch(1, (kind, table, row))
    at = (table, str(row["id"]))
    tried = progress(SYNCED, {at: stood} if stood is not None else {})
    accepting = decide(context(SYNCED), tried, candidate)
    assert isinstance(accepting, Accepting)
    if stands is not None:
        tried.view.rows[at] = list(stands)
    else:
        tried.view.rows.pop(at, None)
    effect = SYNCED.tables[table].effects.none(candidate.decoded.keys[at])
    changes = [Change(write, effect) for write in accepting.decision.writes]
    return needed_by(SYNCED, tried.view, {}, [Applied(candidate.taken, accepting, changes, (), {})])


def step(table: str, key: str, before: Row, after: Row) -> Step:
    images = (None if before is None else b"before", None if after is None else b"after")
    rows = [None if row is None else list(row) for row in (before, after)]
    return Step(SYNCED.tables[table], (table, key), rows[0], rows[1], images, 0)


def test_a_child_needs_its_parent_and_no_other_row() -> None:
    found = needed(INSERT, "todo", {"id": "t", "list_id": "l", "title": "x"}, None, ["t", "l", "x"])
    assert found.tables() == ({1}, {2})
    assert found.need_any([step("list", "l", None, ["l", "c"])])
    assert not found.need_any([step("list", "m", None, ["m", "c"])])
    assert not found.need_any([step("list", "l", ["l", "c"], ["l", "d"])]), "it was there before"


def test_a_child_that_is_not_moved_needs_nothing() -> None:
    found = needed(UPDATE, "todo", {"id": "t", "title": "y"}, ["t", "l", "x"], ["t", "l", "y"])
    assert not found.need_any([step("list", "l", None, ["l", "c"])])


def test_a_parent_can_go_only_once_its_children_have_gone() -> None:
    found = needed(DELETE, "list", {"id": "l"}, ["l", "c"], None)
    assert found.need_any([step("todo", "t", ["t", "l", "x"], None)])
    assert found.need_any([step("todo", "t", ["t", "l", "x"], ["t", "m", "x"])])
    assert not found.need_any([step("todo", "t", ["t", "m", "x"], None)])


@pytest.mark.parametrize("code", ["c", None])
def test_a_unique_value_is_needed_free_unless_it_is_null(code: Cell) -> None:
    found = needed(INSERT, "list", {"id": "l", "code": code}, None, ["l", code])
    assert found.need_any([step("list", "m", ["m", code], None)]) is (code is not None)
    assert found.need_any([step("list", "l", ["l", "other"], None)]), "its key has to be free as well"


def test_who_needs_nothing_asks_of_no_table() -> None:
    assert needed(UPDATE, "todo", {"id": "t", "title": "y"}, ["t", None, "x"], ["t", None, "y"]).tables() == (
        set(),
        set(),
    )
