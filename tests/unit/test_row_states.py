"""A row as it was, from its changes and its table's base: at every position what is known is what it was, and whatever
any file tells is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.columnar.row_states import BaseRows, Change, Columns, Row, as_of, states, whole_changes
from anabranch.values import Column, Kind, Table
from anabranch.values.table import FormerColumn

REST = ("a", "b")
TABLE = Table("t", (Column("id", Kind.STRING, "text"), *(Column(n, Kind.INT64, "bigint") for n in REST)), ("id",))
KEY = ("k",)


def change(
    position: int,
    kind: str,
    cells: Mapping[str, int | None] | None = None,
    before: Mapping[str, int | None] | None = None,
    *,
    complete: bool = False,
) -> Change:
    row: Row | None = None if kind == "delete" else {"id": "k", **(cells or {})}
    changed = tuple(cells or ()) if kind == "update" and not complete else tuple(before or ())
    return Change(position, "B", 0, "N", kind, KEY, changed, row, dict(before or {}), complete or kind == "insert")


def at(changes: Sequence[Change], base: BaseRows | None, position: int) -> Row | None:
    return as_of(TABLE, [] if base is None else [base], changes, position).get(KEY)


def base(position: int, **cells: int | None) -> BaseRows:
    return BaseRows({KEY: {"id": "k", **cells}}, position)


def test_a_base_tells_what_a_partial_change_before_it_does_not() -> None:
    changes = [change(1, "update", {"a": 5})]
    assert at(changes, base(1, a=5, b=7), 1) == {"id": "k", "a": 5, "b": 7}
    # Nobody has seen the earlier value of a: it is not NULL, but not there.
    assert at(changes, base(1, a=5, b=7), 0) == {"id": "k", "b": 7}


def test_a_later_change_with_the_values_before_tells_too() -> None:
    changes = [
        change(1, "update", {"a": 5}),
        change(4, "update", {"a": 5, "b": 8}, {"b": 7}, complete=True),
        change(6, "delete", before={"a": 5, "b": 8}, complete=True),
    ]
    none = BaseRows({}, 6)
    assert [at(changes, none, position) for position in (0, 1, 3, 4, 5, 6)] == [
        {"id": "k", "b": 7},
        *[{"id": "k", "a": 5, "b": 7}] * 2,
        *[{"id": "k", "a": 5, "b": 8}] * 2,
        None,
    ]
    assert whole_changes(TABLE, changes, [none])[0].row == {"id": "k", "a": 5, "b": 7}


def test_what_the_log_has_beyond_the_files_goes_on_from_the_base() -> None:
    tail = [change(5, "update", {"a": 1}), change(6, "delete"), change(7, "insert", {"a": 2, "b": None})]
    known = whole_changes(TABLE, tail, [base(4, a=0, b=3)])
    assert [(one.row, one.before, one.complete) for one in known] == [
        ({"id": "k", "a": 1, "b": 3}, {"a": 0}, True),
        (None, {"a": 1, "b": 3}, True),
        ({"id": "k", "a": 2, "b": None}, {}, True),
    ]


def test_a_batch_that_changed_nothing_makes_no_row_and_takes_none() -> None:
    none = change(1, "none")
    assert whole_changes(TABLE, [none], [BaseRows({}, 1)])[0].row is None
    assert whole_changes(TABLE, [none], [base(1, a=1, b=2)])[0].row == {"id": "k", "a": 1, "b": 2}
    gone = [change(1, "insert", {"a": 1, "b": 2}), change(2, "delete"), change(3, "none")]
    assert [one.row is None for one in whole_changes(TABLE, gone, [BaseRows({}, 3)])] == [False, True, True]
    assert [at(gone, BaseRows({}, 3), position) is None for position in (0, 1, 2, 3)] == [True, False, True, True]


@dataclass
class History:
    """The true states of a row (``truth``: before everything, and after each change), and those that files tell of."""

    truth: list[Row | None]
    changes: list[Change]
    base: BaseRows | None

    @property
    def bases(self) -> list[BaseRows]:
        return [] if self.base is None else [self.base]


@st.composite
def histories(draw: st.DrawFn) -> History:
    """A row's changes in runs of the compactor, of which one pulls the first base: as the compactor writes them, which
    knows the row before from the base, or from an insert or delete of the same run."""
    values = st.sampled_from([None, 0, 1, 2])
    row: Row | None = {"id": "k", "a": draw(values), "b": draw(values)} if draw(st.booleans()) else None
    truth, changes = [row], []
    ends = draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    based_after = draw(st.sampled_from([None, *range(len(ends))]))
    tail = draw(st.integers(0, 3))
    position, found = 0, None
    for run, count in enumerate([*ends, tail]):
        in_tail = run == len(ends)
        known = based_after is not None and run > based_after and row is not None and not in_tail
        for _ in range(count):
            position += 1
            old = row
            kind = draw(st.sampled_from(["none", "insert"] if row is None else ["none", "update", "delete"]))
            if kind == "insert":
                row = {"id": "k", "a": draw(values), "b": draw(values)}
                changes.append(Change(position, "B", 0, "N", kind, KEY, (), row, {}, True))
                known = not in_tail
            elif kind == "none":
                shown: Row = row if known and row is not None else {"id": "k"}
                changes.append(Change(position, "B", 0, "N", kind, KEY, (), shown, {}, known and row is not None))
            elif kind == "delete":
                before = {n: (old or {})[n] for n in REST} if known else {}
                row = None
                changes.append(Change(position, "B", 0, "N", kind, KEY, (), None, before, known))
                known = not in_tail
            else:
                names = tuple(draw(st.sets(st.sampled_from(REST), min_size=1)))
                row = {**(old or {}), **{name: draw(values) for name in names}}
                before = {n: (old or {})[n] for n in names} if known else {}
                given_row = row if known else {"id": "k", **{n: row[n] for n in names}}
                changes.append(Change(position, "B", 0, "N", kind, KEY, names, given_row, before, known))
            truth.append(row)
        if based_after is not None and based_after <= run < len(ends):
            found = BaseRows({} if row is None else {KEY: row}, position)
    return History(truth, changes, found)


def knowable(history: History, position: int, name: str) -> bool:
    """Whether anything tells a column of the row at a position: looked for backwards, then forwards."""
    base_at = -1 if history.base is None or not history.base.rows else history.base.position
    for one in reversed(history.changes[:position]):
        if one.position <= base_at <= position or one.type == "insert" or name in one.changed:
            return True
        if one.type in ("update", "none") and one.complete:
            return True
    if 0 <= base_at <= position:
        return True
    for one in history.changes[position:]:
        if 0 <= base_at < one.position:
            return True
        if one.type == "delete" or name in one.changed:
            return one.complete
        if one.type in ("update", "none") and one.complete:
            return True
    return base_at >= 0


@pytest.mark.slow
@settings(max_examples=600, deadline=None)
@given(histories())
def test_at_every_position_what_any_file_tells_is_known_and_nothing_else(history: History) -> None:
    found = states(TABLE, KEY, history.changes, history.bases)
    for position, row in enumerate(history.truth):
        state, then = found[position], at(history.changes, history.base, position)
        if row is None or (history.base is None and all(c.type == "none" for c in history.changes)):
            # Where nothing tells that there is a row, there is none.
            assert state in (None, row), position
            continue
        wanted = {n: cell for n, cell in row.items() if n == "id" or knowable(history, position, n)}
        assert state == then == wanted, position
    for one, row in zip(whole_changes(TABLE, history.changes, history.bases), history.truth[1:], strict=True):
        assert one.row is None or row is not None
        assert all(row is not None and row[n] == cell for n, cell in (one.row or {}).items())


INITIAL = 5


def grown(added: int, dropped: int) -> Table:
    """A table with all columns that it ever had: c was added at one position, b dropped at another."""
    added_one = Column("c", Kind.INT64, "bigint", initial=(INITIAL,), added_position=added)
    former = FormerColumn(Column("b", Kind.INT64, "bigint"), dropped)
    return Table("t", (*TABLE.columns[:2], added_one, former.column), ("id",), former=(former,))


@dataclass
class Altered:
    """The states of a row of ``table`` after each position, and what files tell of them. From ``based`` on there was a
    base."""

    table: Table
    truth: list[Row | None]
    changes: list[Change]
    bases: list[BaseRows]
    based: int


@st.composite
def altered(draw: st.DrawFn) -> Altered:
    """A row's changes in runs of the compactor, the last ones beyond all runs, while a column comes and one goes."""
    ends = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    based_after, tail = draw(st.sampled_from(range(len(ends)))), draw(st.integers(0, 3))
    count = sum(ends) + tail
    added, dropped = draw(st.integers(1, count + 1)), draw(st.integers(1, count + 1))
    table = grown(added, dropped)
    columns, values = Columns(table), st.sampled_from([None, 0, INITIAL])

    def fresh(position: int) -> Row:
        return {"id": "k", **{name: draw(values) for name in columns.at(position) if name != "id"}}

    row: Row | None = fresh(0) if draw(st.booleans()) else None
    truth, changes, earlier, base = [row], list[Change](), list[BaseRows](), None
    position, based = 0, count + 1
    for run, size in enumerate([*ends, tail]):
        known = base is not None and row is not None and run < len(ends)
        began = position
        for _ in range(size):
            position += 1
            # The effect of the schema change on the row, before the group's own effects.
            old = None if row is None else columns.shown(position, {"c": INITIAL, **row})
            row = old
            kind = draw(st.sampled_from(["none", "insert"] if row is None else ["none", "update", "delete", "nothing"]))
            place = position, "B", 0, "N", kind, KEY
            if kind == "insert":
                row, known = fresh(position), run < len(ends)
                changes.append(Change(*place, (), row, {}, True))
            elif kind == "delete" and old is not None:
                before = {n: cell for n, cell in old.items() if n != "id"} if known else {}
                changes.append(Change(*place, (), None, before, known))
                row, known = None, run < len(ends)
            elif kind == "update" and old is not None:
                names = tuple(draw(st.sets(st.sampled_from([n for n in old if n != "id"]), min_size=1)))
                row = {**old, **{name: draw(values) for name in names}}
                before = {n: old[n] for n in names} if known else {}
                given_row = row if known else {"id": "k", **{n: row[n] for n in names}}
                changes.append(Change(*place, names, given_row, before, known))
            elif kind == "none":
                shown: Row = old if known and old is not None else {"id": "k"}
                changes.append(Change(*place, (), shown, {}, known and old is not None))
            truth.append(row)
        if based_after <= run < len(ends):
            if base is not None and began < dropped <= position:
                earlier.append(base)
            base, based = BaseRows({} if row is None else {KEY: row}, position), min(based, position)
    return Altered(table, truth, changes, [*earlier, *([] if base is None else [base])], based)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(altered())
def test_a_row_is_told_in_the_columns_of_each_moment(told: Altered) -> None:
    columns = Columns(told.table)
    for position, row in enumerate(told.truth):
        found = as_of(told.table, told.bases, told.changes, position).get(KEY)
        if row is None:
            assert found is None, position
            continue
        if position >= told.based:
            assert found == row, position
        elif found is not None:
            assert {name: row[name] for name in found} == found, position
    for one in whole_changes(told.table, told.changes, told.bases):
        after = told.truth[one.position]
        assert one.row is None or (after is not None and {name: after[name] for name in one.row} == one.row)
        assert set(one.row or ()) <= set(columns.at(one.position))
        assert not one.complete or one.row is None or one.row == after
        assert one.complete or one.position <= told.based or one.type == "none", one


def test_a_row_that_never_changed_is_told_with_what_its_table_has_lost() -> None:
    table = grown(added=7, dropped=5)
    bases = [BaseRows({KEY: {"id": "k", "a": 1, "b": 2}}, 1), BaseRows({KEY: {"id": "k", "a": 1, "c": INITIAL}}, 9)]
    for position, wanted in ((0, {"a": 1, "b": 2}), (4, {"a": 1, "b": 2}), (5, {"a": 1}), (7, {"a": 1, "c": INITIAL})):
        assert as_of(table, bases, [], position) == {KEY: {"id": "k", **wanted}}
