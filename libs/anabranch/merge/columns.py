"""Policies of columns: how a column resolves two writes.

``lww`` (no entry in ``Policy.columns``) and ``reject`` decide by who wrote when, and live in ``rows``. The ones in
``COMPUTED`` decide by the values alone: they take the stored value, the incoming one and the value that the device
showed before it, and give the value to store. None of them reads a key, so the order in which updates come can't
matter:

* ``max`` and ``min`` are joins of an order, ``union`` of sets: each commutes (of two updates either may come first),
  associates (devices, server and log may be put together in any grouping) and is idempotent (the same update twice is
  the update once). NULL is the least of all: it never beats a value. So each only ever moves one way, and a value or
  element that was removed comes back.
* ``counter`` is a group: it adds the difference that the device made. It commutes and associates, and is not
  idempotent: two updates that each add 1 add 2. Other modules ensure that a batch has one effect.
* A function of the application has the algebra that its author gives it; no code here depends on any.

A further policy of this sort is one more entry in ``COMPUTED``; server and device share this table, so both compute it.
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
"""The prefix of a function's name in the policy of its column."""
_bits = struct.Struct(">d").pack


class ComputeError(AnabranchError, ArithmeticError):
    """There is no value to store. ``sqlstate`` is the code that Postgres would give."""

    def __init__(self, sqlstate: str, text: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


def _counter(stored: Cell, value: Cell, before: Cell) -> Cell:
    """Add the device's addition to the stored value. NULL counts as 0, but stays NULL where nothing was added."""
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
    """The rank of a cell that is compared with text, and so is a timestamp: a number of microseconds where 64 bits hold
    it and the device did not send it as text; else the text."""
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
    """The elements of an array, those of further dimensions too, each with the value by which it is distinguished (see
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
    """Every element of either, once: the stored ones in their order, then the others in theirs. If no element is new,
    the stored array stays as it is."""
    if stored is None or value is None:
        return value if stored is None else stored
    found = dict(_elements(stored))
    known = len(found)
    for name, element in _elements(value):
        found.setdefault(name, element)
    return stored if len(found) == known else tuple(found.values())


COMPUTED: Mapping[str, Compute] = MappingProxyType({"counter": _counter, "max": _max, "min": _min, "union": _union})
"""Policy to its function of (stored, incoming, and earlier shown value). ``counter`` takes 64 bit integers, ``union``
arrays, ``max`` and ``min`` integers, dates, times and timestamps. Raise ``ComputeError``."""

_COLUMNS = frozenset({"lww", "reject", *COMPUTED})
_ORDERS = frozenset({"server", "edit"})
_DELETES = frozenset({"rejects", "wins"})


def check_policy(policy: Policy) -> None:
    """Refuse settings that the rules don't know; registration calls this, so that ``resolve`` need not check.

    Raises:
        ValueError: names every unknown setting, and its possible values.
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
    """The name of the function that a column's policy calls; "" where it calls none."""
    return policy[len(FUNCTION) :] if policy is not None and policy.startswith(FUNCTION) else ""


def compute(
    policy: str, stored: Mapping[str, Cell], column: str, value: Cell, before: Mapping[str, Cell] | None
) -> Cell:
    """The value to store in ``column``. A counter without a value in the undo is set: the addition is not known.

    Raises:
        ComputeError: there is no value to store.
    """
    now = stored.get(column)
    return COMPUTED[policy](now, value, before.get(column, now) if before else now)
