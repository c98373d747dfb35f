"""Many pending changes of one row, coalesced into two that show the same.

A row that was written thousands of times offline would otherwise cost as many steps whenever its base changes. These
are coalesced: at most one insert, before all other changes, and updates of columns that are plain (the last value is
shown) or counters (the sum of the additions is shown). A row with other pending changes is not coalesced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.client.writes.payload import RowPart
from anabranch.merge.columns import COMPUTED
from anabranch.merge.model import Cell, MutationType
from anabranch.merge.overlay import Pending

_SURELY_IN_RANGE = 1 << 32
"""Counters that change by more than this in all may pass their type's limits on the way."""


class Coalesced:
    """The pending changes of one row up to the batch ``upto``. ``policies`` maps columns of its table to their
    policies.

    Invariant: ``parts`` over any base shows what the changes themselves show over it, in their order."""

    __slots__ = ("_changes", "_counted", "_insert", "_key", "_last", "_policies", "_sums", "_turns", "upto")

    def __init__(self, policies: Mapping[str, str]) -> None:
        self.upto = ""
        self._policies = policies
        self._key: tuple[str, str, tuple[Any, ...]] | None = None
        self._insert: tuple[str, RowPart] | None = None
        self._last: dict[str, tuple[Cell, str]] = {}
        self._sums: dict[str, int] = {}
        self._turns: dict[str, int] = {}
        self._counted: dict[str, int] = {}
        self._changes = 0

    def add(self, batch: str, parts: Sequence[RowPart]) -> bool:
        """Add the next batch's changes of the row; return False if they can't be coalesced."""
        for part in parts:
            change = part.change
            if change.seen or change.type is MutationType.DELETE:
                return False
            self._key = (part.table, part.key_text, part.key)
            self._changes += 1
            if change.type is MutationType.INSERT:
                if self._changes > 1:
                    return False
                self._insert = (batch, part)
                continue
            for column, cell in change.values.items():
                policy = self._policies.get(column)
                if policy not in COMPUTED:
                    self._last[column] = (cell, batch)
                elif policy == "counter" and change.before and column in change.before:
                    self._count(column, cell, change.before[column], 1)
                    if self._turns[column] > _SURELY_IN_RANGE:
                        return False
                else:
                    return False
        self.upto = batch
        return True

    def _count(self, column: str, cell: Any, before: Any, sign: int) -> None:
        added = (cell or 0) - (before or 0)
        self._sums[column] = self._sums.get(column, 0) + sign * added
        self._turns[column] = self._turns.get(column, 0) + sign * abs(added)
        self._counted[column] = self._counted.get(column, 0) + sign
        if not self._counted[column]:
            # No remaining change counts in this column, not even by 0.
            del self._sums[column], self._turns[column], self._counted[column]

    def leave(self, batch: str, parts: Sequence[RowPart], is_first: bool) -> bool:
        """Remove a batch that was added; return whether the result of the others is still known. ``is_first``: no
        remaining batch comes before it."""
        if self._insert is not None and self._insert[0] == batch:
            self._insert = None
        for part in parts:
            self._changes -= 1
            if part.change.type is not MutationType.UPDATE:
                continue
            for column, cell in part.change.values.items():
                if column in self._sums:
                    assert part.change.before is not None
                    self._count(column, cell, part.change.before[column], -1)
                elif column in self._last and self._last[column][1] == batch:
                    if not is_first:
                        return False  # The earlier value that is shown now is not known here.
                    del self._last[column]
        return True

    def parts(self) -> list[RowPart] | None:
        """Parts that show the same as the changes, or None where only the changes themselves do: a counter that came
        back to its first value shows 0 over a base of NULL, not NULL. Empty where nothing is pending."""
        if not self._changes:
            return []
        out = [] if self._insert is None else [self._insert[1]]
        values: dict[str, Cell] = {column: cell for column, (cell, _) in self._last.items()}
        for column, total in self._sums.items():
            if not total and self._turns[column]:
                return None
            values[column] = total
        if values and self._key is not None:
            table, key_text, key = self._key
            before: dict[str, Cell] = dict.fromkeys(self._sums, 0)
            out.append(RowPart(table, key_text, key, Pending(MutationType.UPDATE, values, before)))
        return out
