"""The algebra that each computing policy states of itself in ``merge.columns``."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.merge import COMPUTED, Mutation, MutationType, Pending, Policy, RowChange, shown
from anabranch.merge.columns import ComputeError
from anabranch.merge.model import Cell
from anabranch.testkit.cell_strategies import arrays, scalars
from anabranch.testkit.memory_server import MemoryServer, MemoryTable, Sent
from anabranch.values import Kind
from anabranch.values.calendar import moment_rank
from anabranch.values.cells import Literal

numbers = st.none() | scalars(Kind.INT64)
small = st.none() | st.integers(-5, 5)
words = st.builds(
    lambda year, second: Literal(f"{abs(year) or 1:04}-02-28 10:00:{second:02}{' BC' if year < 0 else ''}"),
    st.integers(-4_713, 294_276) | st.integers(294_240, 294_276),
    st.integers(0, 59),
) | st.sampled_from([Literal("infinity"), Literal("-infinity")])
moments = st.none() | scalars(Kind.TIMESTAMP) | words
sets = st.none() | arrays(Kind.INT64) | arrays(Kind.DOUBLE) | st.lists(small, max_size=5).map(tuple)


def value_of(policy: str, cell: Cell) -> object:
    """The value that a cell stands for under a policy: a set of elements, a place in time, or itself."""
    if cell is None:
        return None
    if policy == "union":
        return Counter(dict.fromkeys(map(repr, flat(cell)), 1))
    if isinstance(cell, str):
        return moment_rank(cell)
    return {2**63 - 1: (1, 0), -(2**63): (-1, 0)}.get(cell, (0, cell)) if policy != "counter" else cell


def flat(cell: Cell) -> list[Cell]:
    return [e for part in cell for e in flat(part)] if isinstance(cell, tuple) else [cell]


JOINS = pytest.mark.parametrize(
    ("policy", "cells"), [("max", moments), ("min", moments), ("max", numbers), ("min", numbers), ("union", sets)]
)


@JOINS
@given(st.data())
def test_joins_commute_associate_and_take_twice_as_once(
    policy: str, cells: st.SearchStrategy[Cell], data: st.DataObject
) -> None:
    join = COMPUTED[policy]
    a, b, c = (data.draw(cells) for _ in "abc")
    ab = join(a, b, None)
    assert value_of(policy, ab) == value_of(policy, join(b, a, None))
    assert value_of(policy, join(ab, c, None)) == value_of(policy, join(a, join(b, c, None), None))
    assert value_of(policy, join(ab, b, None)) == value_of(policy, ab)
    assert value_of(policy, join(a, a, None)) == value_of(policy, a)
    assert value_of(policy, join(a, None, None)) == value_of(policy, a)
    if policy == "union":
        assert set(map(repr, flat(a or ()))) <= set(map(repr, flat(ab or ())))


@given(st.lists(st.tuples(small, small), max_size=6), st.integers(-100, 100), st.randoms())
def test_a_counter_adds_every_difference_in_whatever_order(
    changes: list[tuple[Cell, Cell]], start: int, random: st.DataObject
) -> None:
    shuffled = list(changes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    totals = []
    for order in (changes, shuffled):
        total: Cell = start
        for before, value in order:
            total = COMPUTED["counter"](total, value, before)
        totals.append(total)
    assert totals == [start + sum((value or 0) - (before or 0) for before, value in changes)] * 2


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_a_counter_never_leaves_64_bits_in_silence(stored: int, added: int) -> None:
    if -(2**63) <= stored + added <= 2**63 - 1:
        assert COMPUTED["counter"](stored, added, 0) == stored + added
    else:
        with pytest.raises(ComputeError) as caught:
            COMPUTED["counter"](stored, added, 0)
        assert caught.value.sqlstate == "22003"


@given(st.datetimes(timezones=st.just(UTC)), st.integers(-15 * 60, 15 * 60))
def test_a_moment_in_words_is_where_the_calendar_says(moment: datetime, east_minutes: int) -> None:
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    text = f"{moment.year:04}-{moment:%m-%d %H:%M:%S}.{moment.microsecond:06}"
    assert moment_rank(text) == (0, expected)
    sign = "-" if east_minutes < 0 else "+"
    offset = f"{sign}{abs(east_minutes) // 60:02}:{abs(east_minutes) % 60:02}"
    assert moment_rank(text + offset) == (0, expected - east_minutes * 60_000_000)


def test_the_years_around_the_first_and_those_past_64_bits_follow_each_other() -> None:
    texts = [
        "-infinity",
        "4714-11-24 00:00:00 BC",
        "0001-12-31 23:59:59.999999 BC",
        "0001-01-01 00:00:00",
        "294276-12-31 00:00:00",
        "infinity",
    ]
    ranks = [moment_rank(text) for text in texts]
    assert ranks == sorted(set(ranks))
    assert ranks[3][1] - ranks[2][1] == 1
    # The first day that Postgres knows is day 0 of the Julian calendar's count.
    assert ranks[1][1] == -2_440_588 * 86_400_000_000


TABLE = "row"
POLICIES = {"n": "counter", "top": "max", "low": "min", "tags": "union"}
updates = st.fixed_dictionaries(
    {}, optional={"n": st.integers(-9, 9), "top": small, "low": small, "tags": st.lists(small, max_size=3).map(tuple)}
).filter(bool)


@given(st.lists(updates, min_size=1, max_size=6), st.permutations(range(6)), st.sampled_from(["server", "edit"]))
def test_the_row_is_the_same_in_whatever_order_the_nodes_arrive(
    made: list[dict[str, Cell]], arrival: list[int], order: str
) -> None:
    """Every node saw the same row and changed it once; the server takes the batches one by one."""
    base = {"id": "x", "n": 3, "top": 0, "low": 0, "tags": (9,)}
    outcomes = []
    for numbers_ in (range(6), arrival):
        server = MemoryServer({TABLE: MemoryTable(dict.fromkeys(base))}, Policy(order=order, columns=POLICIES), 0)
        server.preset(TABLE, "x", base)
        for turn, i in enumerate(j for j in numbers_ if j < len(made)):
            before = {c: base[c] for c in made[i]}
            change = RowChange("x", made[i], before)
            sent = Sent(f"{i:026}", f"node{i}", 0, 10 + i, [Mutation(TABLE, MutationType.UPDATE, [change])])
            server.send(sent, 100 + turn)
            server.commit(100 + turn)
        assert all(not verdict.reason for verdict in server.verdicts.values())
        row = dict(server.live()[TABLE, "x"])
        outcomes.append({**row, "tags": set(row["tags"])})
        assert server.conflicts == []
    assert outcomes[0] == outcomes[1]


@given(st.lists(updates, max_size=4), st.lists(updates, max_size=4))
def test_a_device_shows_what_the_server_will_store(theirs: list[dict[str, Cell]], mine: list[dict[str, Cell]]) -> None:
    """Pending changes over whatever base comes, and the server's decision on them over the same row."""
    policy = Policy(columns=POLICIES)
    base: dict[str, Cell] = {"id": "x", "n": 0, "top": None, "low": None, "tags": None}
    pending: list[Pending] = []
    seen = dict(base)
    for change in mine:
        pending.append(Pending(MutationType.UPDATE, change, {c: seen[c] for c in change}))
        seen = dict(shown(base, pending, policy) or {})
    server = MemoryServer({TABLE: MemoryTable(dict.fromkeys(base))}, policy, 0)
    server.preset(TABLE, "x", base)
    for i, change in enumerate(theirs):
        row_change = RowChange("x", change, {c: base[c] for c in change})
        sent = Sent(f"{i:026}", f"them{i}", 0, 10, [Mutation(TABLE, MutationType.UPDATE, [row_change])])
        server.send(sent, 100 + i)
        server.commit(100 + i)
    new_base = server.live()[TABLE, "x"]
    foreseen = shown(new_base, pending, policy)
    for i, one in enumerate(pending):
        change_ = RowChange("x", one.values, one.before)
        sent = Sent(f"{50 + i:026}", "me", 0, 50, [Mutation(TABLE, MutationType.UPDATE, [change_])])
        server.send(sent, 200 + i)
        server.commit(200 + i)
    assert server.live()[TABLE, "x"] == foreseen
