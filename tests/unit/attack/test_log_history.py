"""The history that a log tells: rows with their audiences by the hunt's own rules, memberships, and what lost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf import struct_pb2

from anabranch.testkit.attack.log_history import Effect, Lost, Row, Rows, Rules, history_of
from anabranch.testkit.attack.marks import Marks
from anabranch.v1 import change_pb2, value_pb2

NULL = value_pb2.Value(null_value=struct_pb2.NULL_VALUE)
INSERT, UPDATE, DELETE = (
    change_pb2.EFFECT_TYPE_INSERT,
    change_pb2.EFFECT_TYPE_UPDATE,
    change_pb2.EFFECT_TYPE_DELETE,
)
NOBODY: frozenset[str] = frozenset()
T1, T2 = frozenset({"team:t1"}), frozenset({"team:t2"})
MARKS = Marks()
ONE, TWO, THREE, OLD = (MARKS.new(a) for a in (T1, T2, T1, T1))


def of_team(row: Row) -> Iterable[str]:
    return [f"team:{row['team']}"] if row["team"] else []


def members(rows: Mapping[str, Rows]) -> Mapping[str, Iterable[str]]:
    return {str(row["user"]): [f"team:{row['team']}"] for row in rows.get("member", {}).values()}


RULES = Rules({"job": of_team}, members, frozenset({"member"}))


def effect(
    position: int, batch: str, table: str, key: str, kind: change_pb2.EffectType.ValueType, **cells: str | None
) -> Effect:
    made = change_pb2.Effect(table=table, columns=cells)
    made.type = kind
    for cell in cells.values():
        made.values.append(NULL if cell is None else value_pb2.Value(string_value=cell))
    return Effect(position, batch, table, key, made)


def test_rows_move_by_the_values_that_their_audiences_are_made_of() -> None:
    past = history_of(
        RULES,
        {"job": {"0": {"team": "t1", "title": OLD}}},
        [
            effect(10, "a", "job", "1", INSERT, team="t1", title=ONE),
            effect(20, "b", "job", "1", UPDATE, team="t2"),
            effect(30, "c", "job", "1", UPDATE, title=TWO),
            effect(40, "d", "job", "1", UPDATE, team=None),
            effect(50, "e", "job", "1", DELETE),
        ],
    )
    assert past.audiences(ONE) == [T1, T2]
    assert past.audiences(TWO) == [T2, NOBODY]
    assert past.sees("x", T1, OLD, 0)
    assert past.sees("x", T1, ONE, 10)
    assert not past.sees("x", T1, TWO, 99)
    assert past.counts("job", "team:t2", 99) == {0, 1}


def test_memberships_change_with_the_rows_that_give_them() -> None:
    past = history_of(
        RULES,
        {"member": {"m0": {"user": "bob", "team": "t1"}}},
        [
            effect(10, "a", "job", "1", INSERT, team="t1", title=ONE),
            effect(10, "a", "job", "2", INSERT, team="t2", title=TWO),
            effect(20, "b", "member", "m0", DELETE),
            effect(20, "b", "job", "1", UPDATE, title=THREE),
            effect(30, "c", "member", "m1", INSERT, user="carol", team="t2"),
        ],
    )
    assert past.sees("bob", NOBODY, ONE, 10)
    assert not past.sees("bob", NOBODY, THREE, 99)
    assert past.groups == [10, 20, 30]
    # A grant by SQL already counts in the group before the one that has it, and no earlier.
    assert not past.sees("carol", NOBODY, TWO, 19)
    assert past.sees("carol", NOBODY, TWO, 20)


def test_a_membership_that_came_and_went_within_a_group_counted_before_it() -> None:
    past = history_of(
        RULES,
        {},
        [
            effect(10, "a", "job", "1", INSERT, team="t1", title=ONE),
            effect(20, "b", "job", "1", UPDATE, title=THREE),
            effect(30, "c", "member", "m0", INSERT, user="bob", team="t1"),
            effect(30, "d", "member", "m0", DELETE),
            effect(30, "e", "job", "1", UPDATE, title=TWO),
            effect(40, "f", "job", "1", UPDATE, title=OLD),
        ],
    )
    assert [past.sees("bob", NOBODY, mark, 99) for mark in (ONE, THREE, TWO, OLD)] == [False, True, False, False]


def test_what_lost_has_the_audiences_of_its_row_around_that_change() -> None:
    log = [
        effect(10, "a", "job", "1", INSERT, team="t1", title="x"),
        effect(20, "b", "job", "1", UPDATE, team="t2"),
    ]
    lost = [
        Lost(20, "b", "job", "1", frozenset({ONE})),
        Lost(20, "z", "job", "1", frozenset({TWO})),
        Lost(20, "z", "job", "gone", frozenset({THREE})),
    ]
    past = history_of(RULES, {}, log, lost)
    assert not past.sees("x", T1, ONE, 99)
    assert past.sees("x", T1 | T2, ONE, 99)
    assert past.sees("x", T2, TWO, 99)
    assert not past.sees("x", T1, TWO, 99)
    assert past.knows(THREE)
    assert not past.sees("x", T1 | T2, THREE, 99)
