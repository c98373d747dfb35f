from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.store.catalog.table_order import table_order

NAMES = st.sampled_from("abcdefg")
GRAPHS = st.dictionaries(NAMES, st.frozensets(NAMES))


def test_who_is_pointed_to_comes_first() -> None:
    found = table_order(
        {"flights": {"planes", "airlines"}, "planes": set(), "airlines": {"airports"}, "airports": set()}
    )
    assert found.tables == ("airports", "planes", "airlines", "flights")
    assert found.cycles == ()


def test_a_table_that_points_to_itself_is_no_circle() -> None:
    found = table_order({"tree": {"tree", "forest"}, "forest": set()})
    assert found.tables == ("forest", "tree")
    assert found.cycles == ()


def test_a_circle_is_told_and_stands_after_what_it_leans_on() -> None:
    found = table_order({"a": {"b"}, "b": {"a", "z"}, "z": set(), "c": {"a"}})
    assert found.tables == ("z", "a", "b", "c")
    assert found.cycles == (("a", "b"),)


def test_what_is_not_synced_has_no_place() -> None:
    assert table_order({"a": {"elsewhere"}}).tables == ("a",)


@given(GRAPHS)
def test_every_order_is_whole_and_only_circles_break_it(points_to: dict[str, frozenset[str]]) -> None:
    found = table_order(points_to)
    assert sorted(found.tables) == sorted(points_to)
    place = {table: i for i, table in enumerate(found.tables)}
    in_one_circle = {(a, b) for cycle in found.cycles for a in cycle for b in cycle}
    for table, targets in points_to.items():
        for target in targets & points_to.keys() - {table}:
            assert place[target] < place[table] or (table, target) in in_one_circle


@given(GRAPHS)
def test_told_circles_are_circles(points_to: dict[str, frozenset[str]]) -> None:
    for cycle in table_order(points_to).cycles:
        for start in cycle:
            reached: set[str] = set()
            ahead = {start}
            while ahead:
                ahead = {t for a in ahead for t in points_to[a] if t in points_to} - reached
                reached |= ahead
            assert set(cycle) <= reached
