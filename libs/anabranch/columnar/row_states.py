"""The states of a row before, between and after its changes, as far as they are known.

A change gives the values of some columns: an insert of all, an update of those that it changed, and, where the
compactor knew the row, of the others, with the values before. A base gives all columns at one position. A value given
by a change or a base holds from the last change of its column to the next one, so each column of each state is searched
in both directions: a row that changed before its table had a base is known from the base; a value in neither is not
known. A state has only the known columns; a missing column is not the same as NULL.

A table's columns come and go. ``table`` has all that it ever had (``FileTable.with_former``). Before a column was added
every row is taken to have its initial value, which is what it has from then on, unless a change gives another one. What
is shown of a moment are the columns that the table had then. A column that was dropped is in no base of after that, so
that there may be several bases of different positions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.values import Cell, Table

INSERT, UPDATE, DELETE, NONE = "insert", "update", "delete", "none"
Key = tuple[Cell, ...]
Row = dict[str, Cell]
_NEVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a row. ``row``: the row after it (None: there is none), with the columns that are known.
    ``before``: the earlier values of the columns that it changed, or of all columns of a deleted row. ``complete``:
    whether all columns are known, before and after."""

    position: int
    batch_id: str
    ordinal: int
    node_id: str
    type: str
    key: Key
    changed: tuple[str, ...]
    row: Row | None
    before: Row
    complete: bool

    @property
    def place(self) -> tuple[int, str, int]:
        """Its place in the total order."""
        return self.position, self.batch_id, self.ordinal


@dataclass(frozen=True, slots=True)
class BaseRows:
    """A table's rows at ``position``, by key."""

    rows: Mapping[Key, Row]
    position: int


class Columns:
    """The columns that a table had over time."""

    def __init__(self, table: Table) -> None:
        self.key = table.key_columns
        ends = {one.column.name: one.dropped_position for one in table.former}
        spans = [(one, one.added_position, ends.get(one.name, _NEVER)) for one in table.columns]
        # Of each stretch of positions: its first one, the names, and the initial values of what comes later.
        self._begins = sorted({0, *(add for _, add, _ in spans), *(end for _, _, end in spans if end != _NEVER)})
        self._names = [[one.name for one, add, end in spans if add <= at < end] for at in self._begins]
        self._later = [
            {one.name: one.initial[0] for one, add, _ in spans if one.initial and at < add} for at in self._begins
        ]

    def at(self, position: int) -> list[str]:
        """The names of the columns that the table had at a position."""
        return self._names[self._stretch(position)]

    def known(self, position: int, row: Row) -> Row:
        """A row of a position, of the columns that the table had then, and with the initial values of later ones."""
        at = self._stretch(position)
        return {**{name: row[name] for name in self._names[at] if name in row}, **self._later[at]}

    def shown(self, position: int, row: Row) -> Row:
        """A row's known cells in the columns that the table had at a position."""
        return {name: row[name] for name in self.at(position) if name in row}

    def _stretch(self, position: int) -> int:
        return max(0, bisect_right(self._begins, position) - 1)


def states(table: Table, key: Key, changes: Sequence[Change], bases: Sequence[BaseRows]) -> list[Row | None]:
    """A row before its first change, and after each of them; None where there was none. ``changes`` are all of one
    registration, in the order of the log; ``bases`` in the order of their positions. A state may have more columns than
    its moment."""
    return _states(Columns(table), key, changes, bases)


def _states(columns: Columns, key: Key, changes: Sequence[Change], bases: Sequence[BaseRows]) -> list[Row | None]:
    waiting = [(one.position, columns.known(one.position, one.rows[key])) for one in bases if key in one.rows]
    found: list[Row | None] = [_first(columns, key, changes, waiting)]
    for change in changes:
        while waiting and change.position > waiting[0][0]:
            found[-1] = _with(found[-1], waiting.pop(0)[1])
        if change.complete and change.type in (UPDATE, DELETE):
            found[-1] = _with(found[-1], {**(change.row or {}), **change.before})
        found.append(_after(columns, change, found[-1]))
    for _, row in waiting:
        found[-1] = _with(found[-1], row)
    for at in range(len(changes) - 1, -1, -1):
        found[at] = _going_back(changes[at], found[at], found[at + 1])
    return found


def _first(columns: Columns, key: Key, changes: Sequence[Change], in_bases: Sequence[tuple[int, Row]]) -> Row | None:
    for change in changes:
        if change.type == INSERT:
            return None
        if change.type in (UPDATE, DELETE):
            return columns.known(0, dict(zip(columns.key, key, strict=True)))
    if in_bases:
        return _merged(row for _, row in in_bases)
    # A row that a batch left unchanged may have existed, or not: only a whole row proves it.
    return next((change.row for change in changes if change.complete), None)


def _with(row: Row | None, known: Row | None) -> Row | None:
    return row if row is None or known is None else {**row, **known}


def _merged(rows: Iterable[Row]) -> Row:
    found: Row = {}
    for row in rows:
        found |= row
    return found


def _after(columns: Columns, change: Change, before: Row | None) -> Row | None:
    if change.type == DELETE:
        return None
    if change.type == NONE:
        return before
    row = columns.known(change.position, change.row or {})
    if change.type == INSERT or change.complete:
        return row
    return {**row, **(before or {}), **(change.row or {})}


def _going_back(change: Change, before: Row | None, after: Row | None) -> Row | None:
    if before is None or after is None or after.keys() <= before.keys():
        return before
    return {**{name: cell for name, cell in after.items() if name not in change.changed}, **before}


def whole_changes(table: Table, changes: Iterable[Change], bases: Sequence[BaseRows]) -> list[Change]:
    """Changes of one registration, each with all known columns of its row, in the order in which they come."""
    given, columns = list(changes), Columns(table)
    of_key: dict[Key, list[int]] = {}
    for at, change in enumerate(given):
        of_key.setdefault(change.key, []).append(at)
    done = list(given)
    for key, places in of_key.items():
        mine = [given[at] for at in places]
        found = _states(columns, key, mine, bases)
        for at, change, before, after in zip(places, mine, found[:-1], found[1:], strict=True):
            done[at] = _whole_change(columns, change, before, after)
    return done


def _whole_change(columns: Columns, change: Change, before: Row | None, after: Row | None) -> Change:
    there = columns.at(change.position)
    names = {UPDATE: change.changed, DELETE: tuple(there)}.get(change.type, ())
    wanted = [name for name in names if name not in columns.key]
    known = {name: before[name] for name in wanted if before is not None and name in before}
    row = None if after is None else columns.shown(change.position, after)
    whole = len(known) == len(wanted) and (row is None or len(row) == len(there))
    return replace(change, row=row, before=known, complete=whole)


def as_of(table: Table, bases: Sequence[BaseRows], changes: Iterable[Change], position: int) -> dict[Key, Row]:
    """A table's rows at ``position``, by key, each with the columns of then that are known. ``changes`` are all of one
    registration, in the order of the log; ``bases`` in the order of their positions.

    A row that changed at or before ``position`` is as its last such change left it. A row that changed only later is as
    it was before its first change. A row that never changed is as the base has it. An effect that left a row unchanged
    does not prove that the row exists.
    """
    columns, rows = Columns(table), {}
    for key, row in bases[-1].rows.items() if bases else ():
        earlier = [columns.known(one.position, one.rows[key]) for one in bases[:-1] if key in one.rows]
        rows[key] = columns.shown(position, _merged([*earlier, columns.known(bases[-1].position, row)]))
    of_key: dict[Key, list[Change]] = {}
    for change in changes:
        of_key.setdefault(change.key, []).append(change)
    for key, mine in of_key.items():
        row_then = _at(columns, key, mine, bases, position)
        _put(rows, key, None if row_then is None else columns.shown(position, row_then))
    return rows


def _put(rows: dict[Key, Row], key: Key, row: Row | None) -> None:
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def _at(columns: Columns, key: Key, changes: Sequence[Change], bases: Sequence[BaseRows], position: int) -> Row | None:
    count = sum(change.position <= position for change in changes)
    last = next((change for change in reversed(changes[:count]) if change.type != NONE), None)
    if last is not None and (last.type in (INSERT, DELETE) or last.complete):
        return None if last.row is None else columns.known(last.position, last.row)
    return _states(columns, key, changes, bases)[count]
