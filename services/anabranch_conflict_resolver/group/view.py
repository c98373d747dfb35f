"""The view that a group is decided on: the touched rows, locked, with their histories, carried forward write by write.

A row is ``busy`` where another transaction holds it. A row that is in neither the table nor ``row_versions`` has no
state: the rules call it unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from anabranch.merge import RowState, RowVersion
from anabranch.store.audiences.row_audiences import Audiences
from anabranch.store.group.rows import Row
from anabranch.store.group.versions import read_versions
from anabranch.store.session.engine import Session
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.shown import Shown
from anabranch_conflict_resolver.group.table import SyncedTable


@dataclass(slots=True)
class View:
    """``rows``: the rows in their tables, cells in the table's order. ``states``: what the rules see, by row; one that
    is not in it is unknown. ``versioned``: rows that have a history in Postgres. ``changed``: rows whose history this
    group has changed. ``held``: batches of this group that wait, and their nodes. ``audiences``: of restricted tables,
    whom a row is for, or was for where it is gone."""

    rows: dict[RowKey, Row] = field(default_factory=dict)
    states: dict[RowKey, RowState] = field(default_factory=dict)
    versioned: frozenset[RowKey] = frozenset()
    busy: frozenset[RowKey] = frozenset()
    changed: set[RowKey] = field(default_factory=set)
    held: dict[str, str] = field(default_factory=dict)
    audiences: dict[RowKey, Audiences] = field(default_factory=dict)

    def copy(self) -> View:
        """Another view that can be carried forward without this one."""
        rows, states, changed, held = dict(self.rows), dict(self.states), set(self.changed), dict(self.held)
        return View(rows, states, self.versioned, self.busy, changed, held, dict(self.audiences))

    def become(self, other: View) -> None:
        """Take the state of ``other``, a copy that was carried forward."""
        self.rows, self.states = other.rows, other.states
        self.changed, self.held, self.versioned = other.changed, other.held, other.versioned
        self.audiences = other.audiences

    def note_audiences(self, at: RowKey, changed: Shown | None, *, there: bool) -> None:
        """Note whom a changed row of a restricted table is for; one that is not ``there`` any more keeps those whom it
        was for."""
        if changed is not None:
            self.audiences[at] = changed.after if there else changed.before


def load_view(
    conn: Session,
    tables: Mapping[str, SyncedTable],
    keys: Mapping[RowKey, tuple[Cell, ...]],
    *,
    new: Set[RowKey],
) -> View:
    """Lock and read the rows of ``keys`` (with their cells), one table after the other, and read their histories; all
    at once where the session is in a pipeline. ``new`` are those that probably have no row.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    view = View()
    known: dict[str, list[tuple[Cell, ...]]] = {}
    unknown: dict[str, list[tuple[Cell, ...]]] = {}
    for at, cells in keys.items():
        (unknown if at in new else known).setdefault(at[0], []).append(cells)
    by_table = sorted(known.keys() | unknown.keys(), key=lambda name: tables[name].rank)
    answers = [tables[name].sql.lock(conn, known.get(name, ()), new=unknown.get(name, ())) for name in by_table]
    histories = read_histories(conn, tables, keys)
    rows, states = view.rows, view.states
    busy: set[RowKey] = set()
    for name, answer in zip(by_table, answers, strict=True):
        locked = answer()
        names = tables[name].names
        for key, row in locked.rows.items():
            at = (name, key)
            rows[at] = row
            states[at] = RowState(dict(zip(names, row)), None)  # noqa: B905 - a row has a cell for each column
        busy.update((name, key) for key in locked.busy)
    versioned = []
    for at, version in histories().items():
        versioned.append(at)
        state = states.get(at)
        if state is None:
            states[at] = RowState(None, version)
            if version.audience is not None:
                view.audiences[at] = version.audience
        else:
            state.version = version
    view.versioned, view.busy = frozenset(versioned), frozenset(busy)
    for name in by_table:
        of_table = tables[name].audiences
        if of_table is not None:
            there = {at: row for at, row in rows.items() if at[0] == name}
            view.audiences.update(zip(there, of_table.of_all(conn, there.values()), strict=True))
    return view


def read_histories(
    conn: Session, tables: Mapping[str, SyncedTable], rows: Iterable[RowKey]
) -> Callable[[], dict[RowKey, RowVersion]]:
    """Ask for the histories of those rows that have one; the returned function reads the answer. A history that is
    older than its table is may name columns that were retyped since: their stamps count for the columns that they
    became.

    Raises:
        psycopg.Error: Postgres refused the statement.
    """
    rows = list(rows)
    numbers = {tables[name].table.id: name for name in {name for name, _ in rows}}
    asked = read_versions(conn, [(tables[name].table.id, key) for name, key in rows])

    def answer() -> dict[RowKey, RowVersion]:
        found = {(numbers[number], key): version for (number, key), version in asked().items()}
        for name in numbers.values():
            if became := tables[name].successors:
                for (of, _), version in found.items():
                    if of == name and version.stamps:
                        _carry_stamps(version, became)
        return found

    return answer


def _carry_stamps(version: RowVersion, became: Mapping[str, str]) -> None:
    stamps = version.stamps
    for name in became.keys() & stamps.keys():
        stamp, there = stamps.pop(name), stamps.get(became[name])
        if there is None or there.position < stamp.position:
            stamps[became[name]] = stamp
