"""The part of the log that a reader sees: each rule alone, and what it all comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.snapshot.passages import (
    DATABASE,
    DELETE,
    INSERT,
    NONE,
    UPDATE,
    Batch,
    Change,
    Group,
    Lost,
    effect,
    passages,
)

from anabranch.store.log.stretch import Loser
from anabranch.v1 import change_pb2, position_pb2
from anabranch_snapshot.visible import Eye, SetChange, narrowed, visible_page

A, B, C = "team:a", "team:b", "team:c"


def eye(*audiences: str, changes: tuple[SetChange, ...] = (), node: str = "") -> Eye:
    return Eye(frozenset(audiences), changes, node)


def change(position: int, gained: Sequence[str] = (), lost: Sequence[str] = ()) -> SetChange:
    return SetChange(position, frozenset(gained), frozenset(lost))


def seen(changes: Sequence[Change], reader: Eye) -> list[tuple[bytes, list[str]]]:
    """The effects that a reader gets of one batch, with their audiences."""
    (passage,) = passages([Group(5, [Batch("b1", "n1", list(changes))])], [100])
    page = visible_page(passage, reader).page
    assert len(page.groups) <= 1
    return [
        (data, list(whose.values))
        for group in page.groups
        for batch in group.batches
        for data, whose in zip(batch.effects, batch.audiences or [change_pb2.Audiences()] * 99, strict=False)
    ]


INSERTED = Change(INSERT, "1", "t", (), (A,))
UPDATED = Change(UPDATE, "1", "t", (A,), (A,))
MOVED = Change(UPDATE, "1", "t", (A,), (B,))
DELETED = Change(DELETE, "1", None, (A,), ())
TOUCHED = Change(NONE, "1", None, (A,), (A,))
GONE = effect(DELETE, "1")


@pytest.mark.parametrize(
    ("what", "reader", "expected"),
    [
        (INSERTED, eye(A), (INSERTED.data, [A])),
        (INSERTED, eye(B), None),
        # Seen by what was gained alone: it comes with the pull.
        (INSERTED, eye(B, changes=(change(5, [A]),)), None),
        (INSERTED, eye(A, changes=(change(5, [], [A]),)), None),
        (UPDATED, eye(A, B), (UPDATED.data, [A])),
        (UPDATED, eye(B), None),
        (UPDATED, eye(B, changes=(change(5, [A]),)), None),
        (UPDATED, eye(A, changes=(change(5, [], [A]),)), None),
        (MOVED, eye(A, B), (MOVED.data, [B])),
        (MOVED, eye(A), (GONE, [])),
        (MOVED, eye(B), (MOVED.data, [B])),
        (MOVED, eye(C), None),
        (MOVED, eye(A, changes=(change(5, [B], []),)), (GONE, [])),
        (MOVED, eye(A, changes=(change(5, [B], [A]),)), None),
        (MOVED, eye(B, changes=(change(5, [A], []),)), (MOVED.data, [B])),
        (MOVED, eye(A, changes=(change(5, [], [A]),)), None),
        (MOVED, eye(B, changes=(change(5, [], [B]),)), None),
        (DELETED, eye(A), (DELETED.data, [])),
        (DELETED, eye(B), None),
        (DELETED, eye(B, changes=(change(5, [A]),)), None),
        (TOUCHED, eye(A), (TOUCHED.data, [A])),
        (TOUCHED, eye(B), None),
        (Change(UPDATE, "1", "t", (), ()), eye(A), None),
        (Change(UPDATE, "1", "t", (A, B), (B, A)), eye(changes=(change(5, [A]),)), None),
        (Change(UPDATE, "1", "t", (), (A,)), eye(A), (UPDATED.data, [A])),
        (Change(UPDATE, "1", "t", (A,), ()), eye(A), (GONE, [])),
        # Of an open table.
        (Change(INSERT, "1", "t", None, None, 2, "note"), eye(), (effect(INSERT, "1", "t", "note"), [])),
        # Logged while the table was open, of this registration or of an earlier one: it is restricted now.
        (Change(INSERT, "1", "t", None, None), eye(A), None),
        (Change(INSERT, "1", "t", None, None, 9), eye(A), None),
        (Change(INSERT, "1", "t", None, None, 9, "note"), eye(), (effect(INSERT, "1", "t", "note"), [])),
        (Change(UPDATE, "1", "t", (A,), (B,), 9), eye(A), (GONE, [])),
    ],
)
def test_an_effect(what: Change, reader: Eye, expected: tuple[bytes, list[str]] | None) -> None:
    assert seen([what], reader) == ([] if expected is None else [expected])


def test_audiences_stand_beside_effects_where_one_is_restricted() -> None:
    note = Change(INSERT, "1", "t", None, None, 2, "note")
    (passage,) = passages([Group(5, [Batch("b1", "n1", [note, INSERTED, note])])], [100])
    (batch,) = visible_page(passage, eye(A)).page.groups[0].batches
    assert [list(one.values) for one in batch.audiences] == [[], [A], []]
    (batch,) = visible_page(passage, eye(B)).page.groups[0].batches
    assert len(batch.effects) == 2
    assert not batch.audiences


def test_audiences_that_would_not_fit_beside_a_row_are_those_of_the_reader() -> None:
    many = [A, *(f"{i:06}" * 10 for i in range(5_000))]
    [(_, told)] = seen([Change(INSERT, "1", "t", (), many)], eye(A, B))
    assert told == [A]


def test_a_batch_of_which_nothing_is_left_is_for_its_own_node_only() -> None:
    (passage,) = passages([Group(5, [Batch("b1", "n1", [INSERTED]), Batch("b2", "n2", [MOVED])])], [100])
    visible = visible_page(passage, eye(C))
    assert visible.is_empty
    assert visible.silent == {"n1", "n2"}
    assert visible.page.reached.server_timestamp_ms == 5
    (group,) = visible_page(passage, eye(C, node="n2")).page.groups
    assert [(batch.id, batch.node.id, len(batch.effects)) for batch in group.batches] == [("b2", "n2", 0)]
    # A batch of which it sees something anyway comes as to everybody.
    assert visible_page(passage, eye(B)).silent == {"n1"}


@pytest.mark.parametrize(
    ("before", "row_after", "reader", "shown"),
    [
        ((A,), (A,), eye(A), True),
        ((A,), (B,), eye(A), False),
        ((A,), (B,), eye(B), False),
        ((A,), (B,), eye(A, B), True),
        ((), (A,), eye(A), True),
        ((A,), (), eye(A), False),
        ((A,), (A,), eye(changes=(change(5, [A]),)), False),
        (None, None, eye(A), False),
    ],
)
def test_a_value_that_lost(
    before: Sequence[str] | None, row_after: Sequence[str] | None, reader: Eye, shown: bool
) -> None:
    loser = Loser(1, "1", "title", b"", "LOST", "LOSING-NODE", "b1")
    group = Group(5, [Batch("b1", "n1", [], [Lost(loser, before, row_after)])])
    (passage,) = passages([group], [100])
    page = visible_page(passage, reader).page
    assert [one.batch_id for group in page.groups for batch in group.batches for one in batch.losers] == (
        ["LOST"] if shown else []
    )


def total(table: str, audience: str = "") -> position_pb2.TableSum:
    return position_pb2.TableSum(table=table, count=1, hash=b"h" * 16, audience=audience)


def test_sums_of_open_tables_and_of_own_audiences() -> None:
    sums = [total("note"), total("job"), total("job", A), total("job", B), total("gone")]
    (passage,) = passages([Group(5, [Batch("b1", "n1", [INSERTED])], sums)], [100])
    (group,) = visible_page(passage, eye(A)).page.groups
    assert [(one.table, one.audience) for one in group.sums] == [("note", ""), ("job", A)]
    (group,) = visible_page(passage, eye(A, changes=(change(5, [B], [A]),))).page.groups
    assert [(one.table, one.audience) for one in group.sums] == [("note", ""), ("job", B)]
    assert list(group.audience_change.gained) == [B]
    assert list(group.audience_change.lost) == [A]


def test_a_change_of_audiences_is_told_in_each_part_of_its_group() -> None:
    groups = [Group(5, [Batch("b1", "n1", [INSERTED, MOVED])]), Group(7, [Batch("b2", "n1", [INSERTED])])]
    reader = eye(changes=(change(5, [C]), change(6, [], [C])))
    told = [
        (group.position, list(group.audience_change.gained), list(group.audience_change.lost), group.incomplete)
        for passage in passages(groups, [1])
        for group in visible_page(passage, reader).page.groups
    ]
    # The passages that come after the change at 6 was told don't tell it again.
    assert told == [(5, [C], [], True), (5, [C], [], False), (6, [], [C], False)]


def test_the_end_of_a_group_that_began_before_is_always_told() -> None:
    first, second = passages([Group(5, [Batch("b1", "n1", [INSERTED]), Batch("b2", "n2", [MOVED])])], [1])
    (group,) = visible_page(first, eye(A)).page.groups
    assert group.incomplete
    assert visible_page(first, eye(C)).is_empty
    (group,) = visible_page(second, eye(C)).page.groups
    assert not group.incomplete
    assert not group.batches


@pytest.mark.parametrize(
    ("what", "reader", "expected"),
    [
        (MOVED, eye(A), [GONE]),
        (MOVED, eye(B), [MOVED.data]),
        (MOVED, eye(C), []),
        (UPDATED, eye(A), [UPDATED.data]),
    ],
)
def test_a_large_effect_is_seen_alike_in_each_of_its_parts(what: Change, reader: Eye, expected: list[bytes]) -> None:
    parts = passages([Group(5, [Batch("b1", "n1", [what])])], [0, 0, 1])
    assert len(parts) == 3
    device = Device(reader.audiences)
    for part in parts:
        device.take(visible_page(part, reader).page)
    assert device.effects == expected


# A naive device, against rows of which everything is known.


@dataclass
class Device:
    """A device that does with a page what the contract says, and nothing more."""

    audiences: frozenset[str]
    rows: dict[str, tuple[str, frozenset[str]]] = field(default_factory=dict)
    open_rows: dict[str, str] = field(default_factory=dict)
    effects: list[bytes] = field(default_factory=list)
    batches: set[str] = field(default_factory=set)
    gained: list[frozenset[str]] = field(default_factory=list)
    schema_changes: list[bytes] = field(default_factory=list)
    _parts: list[change_pb2.LoggedGroup] = field(default_factory=list)
    _open_effect: bool = False

    def take(self, page: change_pb2.Page) -> None:
        for group in page.groups:
            assert not self._parts or self._parts[0].position == group.position
            self._parts.append(group)
            if not group.incomplete:
                self._apply(self._parts)
                self._parts = []
        assert not self._parts or page.reached.server_timestamp_ms < self._parts[0].position

    def _apply(self, parts: list[change_pb2.LoggedGroup]) -> None:
        told = {(tuple(part.audience_change.gained), tuple(part.audience_change.lost)) for part in parts}
        assert len(told) == 1
        ((gained, lost),) = told
        (schema_change,) = {part.schema_change for part in parts}
        if schema_change:
            self.schema_changes.append(schema_change)
        self.audiences -= set(lost)
        for key, (_, whose) in list(self.rows.items()):
            # Also one that it would see by what it gains: that comes whole.
            if whose.isdisjoint(self.audiences):
                del self.rows[key]
        self.audiences |= set(gained)
        if gained:
            self.gained.append(frozenset(gained))
        effects: list[tuple[bytes, frozenset[str]]] = []
        incomplete = False
        for part in parts:
            for batch in part.batches:
                self.batches.add(batch.id)
                assert len(batch.audiences) in (0, len(batch.effects))
                for i, data in enumerate(batch.effects):
                    whose = frozenset(batch.audiences[i].values) if batch.audiences else frozenset()
                    if incomplete and i == 0:
                        before, known = effects.pop()
                        assert known == whose
                        data = before + data
                    effects.append((data, whose))
                if batch.effects:
                    incomplete = batch.effect_incomplete
        assert not incomplete
        for data, whose in effects:
            self.effects.append(data)
            self._one(change_pb2.Effect.FromString(data), whose)

    def pull(self, gained: frozenset[str], state: dict[str, tuple[str, frozenset[str]]]) -> None:
        """Pull the rows of the audiences that it gained, as they are in ``state``."""
        for key, row in state.items():
            if not row[1].isdisjoint(gained & self.audiences):
                self.rows[key] = row

    def _one(self, one: change_pb2.Effect, whose: frozenset[str]) -> None:
        key = one.values[0].string_value
        if one.table == "note":
            assert not whose
            self.open_rows[key] = one.values[1].string_value
        elif one.type == DELETE:
            self.rows.pop(key, None)
        elif one.type == NONE:
            pass
        elif one.type == INSERT or key in self.rows or self._whole(one):
            assert not whose.isdisjoint(self.audiences), "a row that is not to be seen"
            self.rows[key] = (one.values[1].string_value, whose)

    def _whole(self, one: change_pb2.Effect) -> bool:
        # Every update here gives all columns; those that are no moves are marked as partial by their title.
        return not one.values[1].string_value.startswith("partial")


AUDIENCES = [A, B, C]
sets = st.frozensets(st.sampled_from(AUDIENCES))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Group], list[dict[str, tuple[str, frozenset[str]]]], list[SetChange]]:
    """Groups; the rows after each of them (at 0: before all); and the changes of a reader's audiences from none."""
    rows: dict[str, tuple[str, frozenset[str]]] = {}
    groups: list[Group] = []
    states = [dict(rows)]
    changes: list[SetChange] = []
    current: frozenset[str] = frozenset()
    number = 0
    for i in range(draw(st.integers(1, 6))):
        batches: list[Batch] = []
        for _ in range(draw(st.integers(1, 3))):
            number += 1
            batch = Batch(f"b{number:03}", draw(st.sampled_from(["n1", "n2"])))
            for _ in range(draw(st.integers(1, 3))):
                batch.changes.append(_change(draw, rows))
            batches.append(batch)
        schema_change = f"change {i}".encode() if draw(st.booleans()) else b""
        groups.append(Group(10 * (i + 1), batches, schema_change=schema_change))
        states.append(dict(rows))
        if draw(st.booleans()):
            then = draw(sets)
            if then != current:
                changes.append(SetChange(10 * (i + 1), then - current, current - then))
                current = then
    return groups, states, changes


def _change(draw: st.DrawFn, rows: dict[str, tuple[str, frozenset[str]]]) -> Change:
    key = draw(st.sampled_from(["1", "2", "3"]))
    kind = draw(st.sampled_from(["open", "write", "move", "delete", "none"]))
    title = draw(st.sampled_from(["x", "y", "z"]))
    if kind == "open":
        return Change(INSERT, key, title, None, None, 2, "note")
    there = rows.get(key)
    if there is None:
        if kind in ("delete", "none"):
            return Change(NONE, key, None, (), ())
        whose = draw(sets)
        rows[key] = (title, whose)
        return Change(INSERT, key, title, (), sorted(whose))
    before = sorted(there[1])
    if kind == "delete":
        del rows[key]
        return Change(DELETE, key, None, before, ())
    if kind == "none":
        return Change(NONE, key, None, before, before)
    after = draw(sets) if kind == "move" else there[1]
    if after == there[1]:
        title = "partial " + title
    rows[key] = (title, after)
    return Change(UPDATE, key, title, before, sorted(after))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(histories(), st.lists(st.integers(-3, 4), min_size=1, max_size=6), st.data())
def test_a_device_comes_to_what_it_may_see(
    history: tuple[list[Group], list[dict[str, tuple[str, frozenset[str]]]], list[SetChange]],
    sizes: list[int],
    data: st.DataObject,
) -> None:
    groups, states, changes = history
    sizes = [*sizes, data.draw(st.integers(1, 5))]
    start = frozenset(data.draw(sets))
    # Claims hold for ever: of the changes only those of other audiences are changes for this reader.
    own = tuple(
        SetChange(one.position, one.gained - start, one.lost - start)
        for one in changes
        if (one.gained - start) or (one.lost - start)
    )
    device = Device(start)
    audiences = start
    for passage in passages(groups, sizes):
        reader = Eye(audiences, own, "n1")
        page = visible_page(passage, reader).page
        # Whoever sees the same of what it touches, and has no silent batch of its own, gets the same.
        narrow = visible_page(passage, narrowed(passage, reader))
        key = narrowed(passage, reader)
        if "n1" in narrow.silent:
            key = key._replace(node_id="n1")
        assert visible_page(passage, key).page == page
        device.take(page)
        # A pull is of the head as it is by then, which is not before what the device has read.
        for gained in device.gained:
            as_of = data.draw(st.integers(passage.settled // 10, len(groups)))
            device.pull(gained, states[as_of])
        device.gained.clear()
        for one in own:
            if passage.after < one.position <= passage.settled:
                audiences = (audiences - one.lost) | one.gained
    assert device.audiences == audiences
    expected = {key: row for key, row in states[-1].items() if not row[1].isdisjoint(audiences)}
    assert {key: (title, whose) for key, (title, whose) in device.rows.items()} == expected
    of_node = {batch.id for group in groups for batch in group.batches if batch.node == "n1"}
    assert of_node <= device.batches
    assert device.schema_changes == [group.schema_change for group in groups if group.schema_change]


def test_the_database_of_these_tests_has_one_restricted_table() -> None:
    assert set(DATABASE.restricted) == {"job"}
