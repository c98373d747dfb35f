"""Policies of columns: what a column does when two have written it.

``lww`` (no entry in ``Policy.columns``) and ``reject`` choose between two values and live in ``rows``. The
ones in ``COMPUTED`` take the stored value, the incoming one and what the device showed before it, and give
the value to store. None of them reads a key, so that the order in which updates come can't matter:

* ``max`` and ``min`` are joins of an order, ``union`` of sets: each commutes (of two updates either may come
  first), associates (devices, server and log may be put together in any grouping) and is idempotent (the same
  update twice is the update once). NULL is the least of all: it never beats a value. So each only ever moves
  one way, and what was taken off again comes back.
* ``counter`` is a group: it adds the difference that was made. It commutes and associates, and is not
  idempotent: two that each add 1 have added 2. That a batch has one effect is promised elsewhere.
* A function of one's own has whatever algebra its author gives it; nothing here leans on any.

A further policy of this sort is one more entry in ``COMPUTED``; that it is computed on both sides, server and
device, follows from their sharing this table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from anabranch.errors import AnabranchError
from anabranch.merge.model import Cell, Policy
from anabranch.values.calendar import OutOfRangeError, moment_rank
from anabranch.values.cells import TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY

Compute = Callable[[Cell, Cell, Cell], Cell]

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FUNCTION = "function:"
"""What stands before a function's name in the policy of its column."""
_bits = struct.Struct(">d").pack


class ComputeError(AnabranchError, ArithmeticError):
    """There is no value to store. ``sqlstate`` is what Postgres would say."""

    def __init__(self, sqlstate: str, text: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


def _counter(stored: Cell, value: Cell, before: Cell) -> Cell:
    """What was added on the device is added to what is stored. NULL counts as 0, but stays NULL where nothing
    was added."""
    added = (value or 0) - (before or 0)
    if not added:
        return stored
    total = (stored or 0) + added
    if not INT64_MIN <= total <= INT64_MAX:
        raise ComputeError("22003", "the number leaves the range of its type")
    return total


def _rank(cell: Cell) -> tuple[int, int]:
    if isinstance(cell, str):
        try:
            return moment_rank(cell)
        except ValueError as error:
            raise ComputeError("22008" if isinstance(error, OutOfRangeError) else "22007", str(error)) from None
    return 0, cell


def _moment(cell: Cell) -> tuple[int, int]:
    """The rank of a cell that meets text, and so is a timestamp: a number of microseconds where 64 bits hold it, and
    where a device sent no words for it; else the text."""
    if cell == TIMESTAMP_INFINITY and not isinstance(cell, str):
        return 1, 0
    if cell == TIMESTAMP_MINUS_INFINITY and not isinstance(cell, str):
        return -1, 0
    return _rank(cell)


def _later(stored: Cell, value: Cell) -> bool:
    if isinstance(stored, str) or isinstance(value, str):
        return _moment(value) > _moment(stored)
    return bool(value > stored)


def _max(stored: Cell, value: Cell, before: Cell) -> Cell:
    if stored is None or value is None:
        return value if stored is None else stored
    return value if _later(stored, value) else stored


def _min(stored: Cell, value: Cell, before: Cell) -> Cell:
    if stored is None or value is None:
        return value if stored is None else stored
    return value if _later(value, stored) else stored


def _elements(cell: Cell) -> Iterator[tuple[Cell, Cell]]:
    """The elements of an array, those of further dimensions too, each with what it is told apart by (see
    ``same``)."""
    if isinstance(cell, str):
        raise ComputeError("2202E", "an array with bounds of its own is no set")
    for element in cell:
        if isinstance(element, tuple):
            yield from _elements(element)
        elif isinstance(element, float):
            yield (float, "nan" if element != element else _bits(element)), element
        else:
            yield (type(element), element), element


def _union(stored: Cell, value: Cell, before: Cell) -> Cell:
    """Every element of either, once: those that are stored in their order, then the others in theirs. An array in
    which nothing is new stays as it is."""
    if stored is None or value is None:
        return value if stored is None else stored
    found = dict(_elements(stored))
    known = len(found)
    for name, element in _elements(value):
        found.setdefault(name, element)
    return stored if len(found) == known else tuple(found.values())


COMPUTED: Mapping[str, Compute] = MappingProxyType({"counter": _counter, "max": _max, "min": _min, "union": _union})
"""Policy to its function of (stored, incoming, what the device showed before). ``counter`` takes 64 bit integers,
``union`` arrays, ``max`` and ``min`` integers, dates, times and timestamps. Raise ``ComputeError``."""

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
        if name not in _COLUMNS and not function_of(name):
            known = ", ".join(sorted(_COLUMNS))
            wrong.append(f"the policy of column {column!r} is {name!r}, not one of {known}, or {FUNCTION}NAME")
    if wrong:
        raise ValueError("; ".join(wrong))


def function_of(policy: str | None) -> str:
    """The name of the function that a column's policy asks; "" where it asks none."""
    return policy[len(FUNCTION) :] if policy is not None and policy.startswith(FUNCTION) else ""


def compute(
    policy: str, stored: Mapping[str, Cell], column: str, value: Cell, before: Mapping[str, Cell] | None
) -> Cell:
    """The value to store in ``column``. A counter whose undo says nothing is set: it can't be told what was
    added.

    Raises:
        ComputeError: there is none.
    """
    now = stored.get(column)
    return COMPUTED[policy](now, value, before.get(column, now) if before else now)
