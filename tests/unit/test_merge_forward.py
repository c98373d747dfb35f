"""How a row's history goes forward over what was written and stored."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.merge import Accepted, MutationType, Policy, RowState, Stamp, Write, applied, resolve
from anabranch.merge.model import OVERTAKEN_LIMIT
from anabranch.testkit.memory_batches import TABLE, batch, delete, insert, live, stamp, tombstone, update
from anabranch.testkit.memory_node import ulid

MILK = {"id": "x", "title": "milk", "done": False}
INSERT = Write(TABLE, "x", MutationType.INSERT, MILK, 0, 0)
UPDATE = Write(TABLE, "x", MutationType.UPDATE, {"title": "oat"}, 0, 0)
DELETE = Write(TABLE, "x", MutationType.DELETE, {}, 0, 0)
NOTHING = Write(TABLE, "x", None, {}, 0, 0)
MINE = Stamp(90, ulid(50, 0), "a", 100)
BATCH = batch(place=90)


def test_an_insert_makes_the_row_with_what_postgres_stored() -> None:
    stored = {**MILK, "note": "default"}
    state = applied(None, BATCH, INSERT, stored)
    assert state.values == stored
    version = state.version
    assert version is not None
    assert (version.last_position, version.last_node, version.last_batch, version.other_position) == (
        100,
        "a",
        BATCH.id,
        0,
    )
    assert Stamp(version.insert_place, version.insert_batch, version.insert_node, version.insert_position) == MINE
    assert version.stamps == {}
    assert version.tombstone_batch is None


def test_an_insert_over_a_tombstone_leaves_nothing_of_the_old_row_but_who_wrote_it_last() -> None:
    version = applied(tombstone("b", 60), BATCH, INSERT).version
    assert version is not None
    assert version.tombstone_batch is None
    assert version.stamps == {}
    assert version.other_position == 60


def test_an_update_stamps_its_columns_and_keeps_the_others() -> None:
    before = live(MILK, "a", 40, inserted=stamp("a", 30), stamps={"done": stamp("a", 40)})
    state = applied(before, BATCH, UPDATE)
    assert state.values == {**MILK, "title": "oat"}
    assert state.version is not None
    assert state.version.stamps == {"done": stamp("a", 40), "title": MINE}
    assert state.version.insert_position == 30


def test_an_update_of_a_row_from_before_registration_begins_its_history() -> None:
    version = applied(RowState(MILK, None), BATCH, UPDATE).version
    assert version is not None
    assert version.stamps == {"title": MINE}
    assert (version.insert_position, version.insert_batch, version.other_position) == (0, "", 0)


def test_what_a_trigger_changed_beside_the_update_is_stamped_too() -> None:
    """And what it stored in place of the written value is what the row holds."""
    stored = {"id": "x", "title": "OAT", "done": True}
    state = applied(RowState(MILK, None), BATCH, UPDATE, stored)
    assert state.values == stored
    assert state.version is not None
    assert state.version.stamps == {"title": MINE, "done": MINE}


def test_a_delete_leaves_a_tombstone() -> None:
    before = live(MILK, "b", 60, stamps={"done": stamp("b", 60)})
    state = applied(before, BATCH, DELETE)
    assert state.values is None
    assert state.version is not None
    assert state.version.tombstone_batch == BATCH.id
    assert (state.version.last_position, state.version.last_node) == (100, "a")
    assert state.version.stamps == {}


def test_a_change_by_a_cascade_goes_forward_like_the_batchs_own() -> None:
    by_cascade = Write(TABLE, "child", MutationType.DELETE, {}, -1, -1)
    state = applied(live({"id": "child"}, "b", 60), BATCH, by_cascade)
    assert state.version is not None
    assert (state.version.tombstone_batch, state.version.last_node) == (BATCH.id, "a")


def test_a_wholly_superseded_change_leaves_the_row_as_it_was() -> None:
    before = live(MILK, "b", 60)
    assert applied(before, BATCH, NOTHING) is before


def test_the_last_position_of_any_other_node_follows_when_the_last_writer_changes() -> None:
    state = applied(live(MILK, "b", 60, other=40), BATCH, UPDATE)
    assert state.version is not None
    assert state.version.other_position == 60
    again = applied(state, batch(made=51, position=110), UPDATE)
    assert again.version is not None
    assert (again.version.last_position, again.version.other_position) == (110, 60)


def test_last_batch_is_the_greatest_id_since_the_node_became_the_last_writer() -> None:
    later = applied(live(MILK, "b", 60), batch(made=70, position=80), UPDATE)
    late = applied(later, batch(made=50, position=100, place=80), UPDATE)
    assert late.version is not None
    assert late.version.last_batch == ulid(70, 0)
    other = applied(late, batch(made=90, position=110, node="b"), replace(UPDATE, remember=True))
    back = applied(other, batch(made=60, position=120, place=80), UPDATE)
    assert back.version is not None
    assert back.version.last_batch == ulid(60, 0), "b wrote in between"
    assert back.version.overtaken["a"] == ulid(70, 0)


def test_the_overtaken_are_bounded_and_the_newest_are_kept() -> None:
    state = RowState(MILK, None)
    for at in range(OVERTAKEN_LIMIT + 10):
        by = batch(made=100 + at, position=200 + at, node=f"n{at}")
        state = applied(state, by, replace(UPDATE, remember=True))
    assert state.version is not None
    assert state.version.overtaken == {f"n{at}": ulid(100 + at, 0) for at in range(9, OVERTAKEN_LIMIT + 9)}


def test_the_overtaken_are_kept_only_where_the_rules_ask_for_them() -> None:
    version = applied(live(MILK, "b", 60), BATCH, UPDATE).version
    assert version is not None
    assert version.overtaken == {}


@pytest.mark.parametrize(
    ("policy", "asks"), [(Policy(), False), (Policy(delete="wins"), True), (Policy(resurrect=True), True)]
)
def test_every_write_says_whether_the_rules_ask_for_the_overtaken(policy: Policy, asks: bool) -> None:
    for mutation in (update("x", title="oat"), delete("x"), insert("y")):
        decision = resolve(batch(mutation), {(TABLE, "x"): RowState(MILK, None)}, lambda _: policy)
        assert isinstance(decision, Accepted)
        assert [write.remember for write in decision.writes] == [asks]


def test_a_late_insert_becomes_the_rows_insert_behind_the_stamps_that_it_keeps() -> None:
    before = live(
        MILK, "a", 80, made=70, inserted=stamp("b", 10), stamps={"title": stamp("a", 80), "done": stamp("b", 20)}
    )
    late = Write(TABLE, "x", MutationType.UPDATE, {"done": True}, 0, 0, True, (), ("title",))
    state = applied(before, BATCH, late, {**MILK, "done": True})
    version = state.version
    assert version is not None
    assert version.stamps == {"title": stamp("a", 80)}
    assert (version.insert_place, version.insert_position, version.insert_node) == (90, 100, "a")
    assert (version.last_batch, version.last_position) == (ulid(70, 0), 100)


def test_nothing_that_was_given_is_changed() -> None:
    before = live(MILK, "b", 60, stamps={"done": stamp("b", 60)}, overtaken={"c": ulid(5, 0)})
    text = repr(before)
    for write in (UPDATE, DELETE, NOTHING):
        applied(before, BATCH, write)
    assert repr(before) == text
