"""Finds the batches of a group that name a key which Postgres can't take as a value of its column's type: a label that
an enumeration lacks, a day that there is not.

The rows of a group are looked up together, so that one such key fails the look-up for all of its batches. It is found
without looking at any table. Which days there are is known, and the labels of an enumeration can be asked for: of those
that are surely wrong one is tried, for Postgres's reason. The rest is found by halves: each statement casts the values
of one key column of many batches. An error that says nothing about a value (a lock, a lost session) is nobody's here as
well; any other one is that of the value, whatever its class.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anabranch.store.group.value_probe import out_of_range, refusal
from anabranch.store.group.waves import DatabaseError
from anabranch.store.session.engine import Session
from anabranch.store.session.errors import BatchReason, is_nobodys, read_error
from anabranch.values import Cell, Column, Table
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Candidate
from anabranch_conflict_resolver.blame.refusal_words import of_key
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.group.setback import RefusedKey


@dataclass(frozen=True, slots=True)
class _Named:
    """A batch, and the different values of one key column that it names, each with the first row that has it."""

    candidate: Candidate
    cells: dict[Cell, RowKey]


def refused_keys(context: Context, batches: Sequence[Candidate], error: DatabaseError) -> dict[str, RefusedKey]:
    """By batch, a key that it names and Postgres can't take, after the look-up of their rows has failed with ``error``;
    none where it failed for another reason.

    Raises:
        DatabaseError: a statement failed for no value.
    """
    if is_nobodys(error):
        return {}
    refused: dict[str, RefusedKey] = {}
    schema_name = context.synced.database.schema_name
    for name in {name for one in batches for name, _ in one.decoded.keys}:
        table = context.synced.tables[name].table
        for place, column in enumerate(table.by_name[key] for key in table.key_columns):
            named = [
                _Named(one, {cells[place]: at for at, cells in one.decoded.keys.items() if at[0] == name})
                for one in batches
                if one.taken.batch_id not in refused
            ]
            probe = _Probe(context.conn, schema_name, column)
            for bad, cell, why in probe.look([one for one in named if one.cells]):
                refused[bad.candidate.taken.batch_id] = _key(table, column, bad, cell, why)
    return refused


@dataclass(frozen=True, slots=True)
class _Probe:
    conn: Session
    schema_name: str
    column: Column

    def refusal(self, cells: Sequence[Cell]) -> DatabaseError | None:
        """The refusal of one of the values. Raises DatabaseError where a statement failed for no value."""
        error = refusal(self.conn, self.schema_name, self.column, cells) if cells else None
        if error is not None and is_nobodys(error):
            raise error
        return error

    def look(self, named: Sequence[_Named]) -> Iterator[tuple[_Named, Cell, DatabaseError]]:
        """The batches that name a value which is refused, with the first one."""
        wrong = out_of_range(self.conn, self.column, _cells(named))
        why = self.refusal(list(wrong)[:1])
        rest = []
        for one in named:
            cell = next((cell for cell in one.cells if cell in wrong), None) if why is not None else None
            if why is None or cell is None:
                rest.append(one)
            else:
                yield one, cell, why
        for bad in self.bad(rest):
            yield bad, *self.first(list(bad.cells))

    def bad(self, named: Sequence[_Named]) -> Iterator[_Named]:
        """The batches that name a value which is refused."""
        if self.refusal(_cells(named)) is None:
            return
        if len(named) == 1:
            yield named[0]
            return
        middle = len(named) // 2
        yield from self.bad(named[:middle])
        yield from self.bad(named[middle:])

    def first(self, cells: Sequence[Cell]) -> tuple[Cell, DatabaseError]:
        """The first of the values, one of which is refused, that is, and its refusal."""
        while len(cells) > 1:
            middle = len(cells) // 2
            cells = cells[:middle] if self.refusal(cells[:middle]) is not None else cells[middle:]
        error = self.refusal(cells)
        assert error is not None, "a value that is refused among others is refused alone"
        return cells[0], error


def _cells(named: Sequence[_Named]) -> list[Cell]:
    """The different values that batches name."""
    return list({cell for one in named for cell in one.cells})


def _key(table: Table, column: Column, bad: _Named, cell: Cell, error: DatabaseError) -> RefusedKey:
    fault = read_error(error)
    at = bad.cells[cell]
    mutations = bad.candidate.decoded.mutations
    of_row = (i for i, one in enumerate(mutations) if one.table == at[0] and any(row.key == at[1] for row in one.rows))
    reason = int(fault.reason or BatchReason.CONSTRAINT)
    message = of_key(table, column, cell, fault)
    return RefusedKey(reason, message, next(of_row), at, column.name, fault.constraint, fault.sqlstate)
