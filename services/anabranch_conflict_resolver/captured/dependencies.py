"""The group's dependencies on changes that others committed after the group had drained. No statement is run here.

Postgres checks a statement's constraints against all that is committed by then: a child may refer to a parent, a
parent may be without children, a key or a unique value may be free, only because of a change that came since. Rows that
the group has touched are locked, and these are not. In the log such a change has to stand before the batch that depends
on it, or a reader that has read up to that batch has rows that break a constraint. So the group, before it is recorded,
looks at the changes that came to tables on which its own writes depend, and starts again from the locks where one of
them is of a value that they need, or need to be free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.merge import MutationType
from anabranch.store.catalog.relation import ForeignKey
from anabranch.store.group.rows import Row
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Applied, Change, Result
from anabranch_conflict_resolver.captured.server_batches import Step
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.group.view import View

_INSERT, _UPDATE, _DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE
Key = tuple[Cell, ...]
_Place = tuple[str, tuple[str, ...]]
"""A table and some of its columns."""


@dataclass(slots=True)
class Dependencies:
    """Values of some columns of a table, by place: ``there`` must be in a row, ``free`` in none. ``whatever``: places
    where it is not known which values must be in none."""

    synced: SyncedDatabase
    there: dict[_Place, set[tuple[Cell, ...]]] = field(default_factory=dict)
    free: dict[_Place, set[tuple[Cell, ...]]] = field(default_factory=dict)
    whatever: set[_Place] = field(default_factory=set)

    def add(self, change: Change, row: Row | None, key: Sequence[Cell] | None) -> None:
        """Add the dependencies of a write that leaves ``row`` (None: there is none). ``key``: the cells of its key,
        where they are known."""
        write = change.write
        table = write.table
        if write.type is _INSERT and key is not None:
            self.free.setdefault((table, self.synced.tables[table].table.key_columns), set()).add(tuple(key))
        if row is not None and write.type in (_INSERT, _UPDATE):
            self._add_row(table, row, None if write.type is _INSERT else {*write.values, *write.defaults})
        for child, reference in self.synced.referrers.get(table, ()):
            if write.type is _DELETE:
                self._add_left(child, reference, table, key)
            elif write.type is _UPDATE and not write.values.keys().isdisjoint(reference.to_columns):
                self._add_left(child, reference, table, None)

    def _add_row(self, table: str, row: Row, written: set[str] | None) -> None:
        constraints = self.synced.database.constraints[table]
        index = self.synced.tables[table].table.index
        for reference in constraints.foreign_keys:
            if written is None or not written.isdisjoint(reference.columns):
                values = tuple([row[index[name]] for name in reference.columns])
                if None not in values and reference.synced:
                    self.there.setdefault((reference.to_table, reference.to_columns), set()).add(values)
        for unique in constraints.unique:
            if not unique.primary and (written is None or not written.isdisjoint(unique.columns)):
                values = tuple([row[index[name]] for name in unique.columns])
                if None not in values or not unique.nulls_distinct:
                    self.free.setdefault((table, unique.columns), set()).add(values)

    def _add_left(self, child: str, reference: ForeignKey, table: str, key: Sequence[Cell] | None) -> None:
        place = child, reference.columns
        key_columns = self.synced.tables[table].table.key_columns
        if key is None or {*reference.to_columns} != {*key_columns}:
            self.whatever.add(place)
            return
        cells = dict(zip(key_columns, key, strict=True))
        self.free.setdefault(place, set()).add(tuple([cells[name] for name in reference.to_columns]))

    def tables(self) -> tuple[set[int], set[int]]:
        """The numbers of the tables in which something must be there, and of those in which something must be free."""
        there = {self.synced.tables[name].table.id for name, _ in self.there}
        return there, {self.synced.tables[name].table.id for name, _ in {*self.free, *self.whatever}}

    def places(self) -> dict[str, list[_Place]]:
        """All places, by table."""
        found: dict[str, list[_Place]] = {}
        for place in {*self.there, *self.free, *self.whatever}:
            found.setdefault(place[0], []).append(place)
        return found

    def need_any(self, steps: Iterable[Step]) -> bool:
        """Whether one of ``steps``, changes of others, has brought or taken away a value that is needed."""
        places = self.places()
        return any(self._needs(step, places.get(step.table.table.name, ())) for step in steps)

    def _needs(self, step: Step, places: Iterable[_Place]) -> bool:
        """Whether a change of others has brought a value that must be there, or taken one away that must be free;
        ``places``: those of its table."""
        index = step.table.table.index
        for place in places:
            before, after = (
                None if row is None else tuple([row[index[column]] for column in place[1]])
                for row in (step.before, step.after)
            )
            if before == after:
                continue
            if after in self.there.get(place, ()) or before in self.free.get(place, ()):
                return True
            if place in self.whatever and before is not None and None not in before:
                return True
        return False


def needed_by(
    synced: SyncedDatabase, view: View, caused: Mapping[RowKey, Key], results: Sequence[Result]
) -> Dependencies:
    """The dependencies of a group's accepted batches. ``caused``: the keys of rows changed without being named."""
    found = Dependencies(synced)
    for result in results:
        if isinstance(result, Applied):
            keys = result.candidate.decoded.keys
            for change in result.changes:
                at: RowKey = (change.write.table, change.write.key)
                found.add(change, view.rows.get(at), keys.get(at) or caused.get(at))
    return found
