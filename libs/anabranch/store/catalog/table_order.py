"""The order of tables in which foreign keys point backwards."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableOrder:
    """``tables``: a table that is referred to comes before the tables that refer to it, where possible; inserts go in
    this order, deletes in the reverse. ``cycles``: the sets of tables that refer to one another in a circle, for which
    no order holds."""

    tables: tuple[str, ...]
    cycles: tuple[tuple[str, ...], ...]


def table_order(points_to: Mapping[str, Set[str]]) -> TableOrder:
    """The order of the tables that are the keys of ``points_to``; equal ones by name. A table that points to
    itself is no circle: rows decide there, not tables. Names that are no key are left out."""
    nearest = {t: {p for p in points_to[t] if p in points_to and p != t} for t in points_to}
    above = {t: _reached(t, nearest) for t in nearest}
    circle = {t: frozenset(p for p in above[t] if t in above[p]) | {t} for t in nearest}
    waiting = set(nearest)
    order: list[str] = []
    while waiting:
        # A circle is ready when all tables outside of it that it points to are placed; there is always one.
        ready = sorted(t for t in waiting if not (above[t] - circle[t]) & waiting)
        order.extend(ready)
        waiting.difference_update(ready)
    return TableOrder(tuple(order), tuple(sorted({tuple(sorted(c)) for c in circle.values() if len(c) > 1})))


def _reached(start: str, nearest: Mapping[str, Set[str]]) -> set[str]:
    reached: set[str] = set()
    ahead = list(nearest[start])
    while ahead:
        table = ahead.pop()
        if table not in reached:
            reached.add(table)
            ahead.extend(nearest[table])
    return reached
