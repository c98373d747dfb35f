"""Policies of columns: what a column does when two have written it.

``lww`` (no entry in ``Policy.columns``) and ``reject`` choose between two values and live in ``rows``. The
ones here compute: they take the stored value, the incoming one and what the device showed before it, and give
the value to store. None reads a key, so that the order in which updates come can't matter. A further
policy of this sort is one more entry in ``COMPUTED``; that it is added on both sides, server and device,
follows from their sharing this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from anabranch.merge.model import Cell, Policy

Compute = Callable[[Cell, Cell, Cell], Cell]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class CounterOverflowError(ArithmeticError):
    """A counter would leave 64 bits."""


def _counter(stored: Cell, value: Cell, before: Cell) -> Cell:
    """What was added on the device is added to what is stored. NULL counts as 0, but stays NULL where nothing
    was added."""
    added = (value or 0) - (before or 0)
    if not added:
        return stored
    total = (stored or 0) + added
    if not INT64_MIN <= total <= INT64_MAX:
        raise CounterOverflowError(total)
    return total


def _rank(cell: Cell) -> tuple[int, str]:
    # A timestamp past what 64 bits hold is its text: after every other, before infinity, the year in six
    # digits.
    return (INT64_MAX - 1, cell) if isinstance(cell, str) else (cell, "")


def _max(stored: Cell, value: Cell, before: Cell) -> Cell:
    if stored is None or value is None:
        return value if stored is None else stored
    return max(stored, value, key=_rank)


def _min(stored: Cell, value: Cell, before: Cell) -> Cell:
    if stored is None or value is None:
        return value if stored is None else stored
    return min(stored, value, key=_rank)


COMPUTED: Mapping[str, Compute] = MappingProxyType({"counter": _counter, "max": _max, "min": _min})
"""Policy to its function of (stored, incoming, what the device showed before). Cells are 64 bit integers or,
but for ``counter``, dates, times and timestamps in their integer form; NULL never beats a value."""

_COLUMNS = frozenset({"lww", "reject", *COMPUTED})
_ORDERS = frozenset({"server", "edit"})
_DELETES = frozenset({"rejects", "wins"})


def check_policy(policy: Policy) -> None:
    """Refuses what the rules don't know; for registration, so that ``resolve`` need not look.

    Raises:
        ValueError: names every setting that is unknown, and what it may be.
    """
    wrong = []
    if policy.order not in _ORDERS:
        wrong.append(f"order is {policy.order!r}, not one of {', '.join(sorted(_ORDERS))}")
    if policy.delete not in _DELETES:
        wrong.append(f"delete is {policy.delete!r}, not one of {', '.join(sorted(_DELETES))}")
    for column, name in policy.columns.items():
        if name not in _COLUMNS:
            wrong.append(f"the policy of column {column!r} is {name!r}, not one of {', '.join(sorted(_COLUMNS))}")
    if wrong:
        raise ValueError("; ".join(wrong))


def compute(
    policy: str, stored: Mapping[str, Cell], column: str, value: Cell, before: Mapping[str, Cell] | None
) -> Cell:
    """The value to store in ``column``. A counter whose undo says nothing is set: it can't be told what was
    added.

    Raises:
        CounterOverflowError: the counter would leave 64 bits.
    """
    now = stored.get(column)
    return COMPUTED[policy](now, value, before.get(column, now) if before else now)
