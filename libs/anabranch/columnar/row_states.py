"""The states of a row before, between and after its changes, as far as they are known.

A change gives the values of some columns: an insert of all, an update of those that it changed, and, where the
compactor knew the row, of the others, with the values before. A base gives all columns at one position. A value given
by a change or a base holds from the last change of its column to the next one, so each column of each state is searched
in both directions: a row that changed before its table had a base is known from the base; a value in neither is not
known. A state has only the known columns; a missing column is not the same as NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.values import Cell, Table

INSERT, UPDATE, DELETE, NONE = "insert", "update", "delete", "none"
Key = tuple[Cell, ...]
Row = dict[str, Cell]


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


def states(table: Table, key: Key, changes: Sequence[Change], base: BaseRows | None) -> list[Row | None]:
    """A row before its first change, and after each of them; None where there was none. ``changes`` are all of one
    registration, in the order of the log."""
    in_base = None if base is None else base.rows.get(key)
    found: list[Row | None] = [_first(table, key, changes, in_base)]
    waits = in_base is not None
    for change in changes:
        if base is not None and waits and change.position > base.position:
            found[-1], waits = _with(found[-1], in_base), False
        if change.complete and change.type in (UPDATE, DELETE):
            found[-1] = _with(found[-1], {**(change.row or {}), **change.before})
        found.append(_after(change, found[-1]))
    if waits:
        found[-1] = _with(found[-1], in_base)
    for at in range(len(changes) - 1, -1, -1):
        found[at] = _going_back(changes[at], found[at], found[at + 1])
    return found


def _first(table: Table, key: Key, changes: Sequence[Change], in_base: Row | None) -> Row | None:
    for change in changes:
        if change.type == INSERT:
            return None
        if change.type in (UPDATE, DELETE):
            return dict(zip(table.key_columns, key, strict=True))
    if in_base is not None:
        return dict(in_base)
    # A row that a batch left unchanged may have existed, or not: only a whole row proves it.
    return next((change.row for change in changes if change.complete), None)


def _with(row: Row | None, known: Row | None) -> Row | None:
    return row if row is None or known is None else {**row, **known}


def _after(change: Change, before: Row | None) -> Row | None:
    if change.type == DELETE:
        return None
    if change.type == NONE:
        return before
    if change.type == INSERT or change.complete:
        return change.row
    return {**(before or {}), **(change.row or {})}


def _going_back(change: Change, before: Row | None, after: Row | None) -> Row | None:
    if before is None or after is None or len(before) >= len(after):
        return before
    return {**{name: cell for name, cell in after.items() if name not in change.changed}, **before}


def whole_changes(table: Table, changes: Iterable[Change], base: BaseRows | None) -> list[Change]:
    """Changes of one registration, each with all known columns of its row, in the order in which they come."""
    given = list(changes)
    of_key: dict[Key, list[int]] = {}
    for at, change in enumerate(given):
        of_key.setdefault(change.key, []).append(at)
    done = list(given)
    for key, places in of_key.items():
        mine = [given[at] for at in places]
        for at, (change, before, after) in zip(places, _steps(table, key, mine, base), strict=True):
            done[at] = _whole_change(table, change, before, after)
    return done


def _steps(
    table: Table, key: Key, changes: Sequence[Change], base: BaseRows | None
) -> Iterable[tuple[Change, Row | None, Row | None]]:
    found = states(table, key, changes, base)
    return zip(changes, found[:-1], found[1:], strict=True)


def _whole_change(table: Table, change: Change, before: Row | None, after: Row | None) -> Change:
    names = {UPDATE: change.changed, DELETE: tuple(table.column_names)}.get(change.type, ())
    wanted = [name for name in names if name not in table.key_columns]
    known = {name: before[name] for name in wanted if before is not None and name in before}
    whole = len(known) == len(wanted) and (after is None or len(after) == len(table.columns))
    return replace(change, row=after, before=known, complete=whole)


def as_of(table: Table, base: BaseRows | None, changes: Iterable[Change], position: int) -> dict[Key, Row]:
    """A table's rows at ``position``, by key, each with the columns that are known. ``changes`` are all of one
    registration, in the order of the log.

    A row that changed at or before ``position`` is as its last such change left it. A row that changed only later is as
    it was before its first change. A row that never changed is as the base has it. An effect that left a row unchanged
    does not prove that the row exists.
    """
    rows = {} if base is None else dict(base.rows)
    of_key: dict[Key, list[Change]] = {}
    for change in changes:
        of_key.setdefault(change.key, []).append(change)
    for key, mine in of_key.items():
        _put(rows, key, _at(table, key, mine, base, position))
    return rows


def _put(rows: dict[Key, Row], key: Key, row: Row | None) -> None:
    if row is None:
        rows.pop(key, None)
    else:
        rows[key] = row


def _at(table: Table, key: Key, changes: Sequence[Change], base: BaseRows | None, position: int) -> Row | None:
    count = sum(change.position <= position for change in changes)
    last = next((change for change in reversed(changes[:count]) if change.type != NONE), None)
    if last is not None and (last.type in (INSERT, DELETE) or last.complete):
        return last.row
    return states(table, key, changes, base)[count]
