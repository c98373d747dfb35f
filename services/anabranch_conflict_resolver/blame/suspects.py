"""Looks for the batches of a failed group that would break a constraint, with a few set queries, so that they need not
be found by failing again and again.

A suspicion decides nothing. Suspects are run alone, each after the batches of the group that it is related to; the
answer of Postgres then is their verdict. A failure without a suspect is found by halving (``blame.bisect``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from anabranch.merge import MutationType, Write, applied
from anabranch.store.catalog.relation import ForeignKey, UniqueKey
from anabranch.store.group import suspects as store
from anabranch.store.group.waves import DatabaseError, wave
from anabranch.store.session.engine import Session
from anabranch.values import Cell, Table
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Accepting, Candidate, Rejection, Result
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.rules import decide
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.group.view import View

Values = Mapping[str, Cell]


@dataclass(slots=True, eq=False)
class After:
    """A row as a write would leave it, as far as that is known: columns that get a default are not in ``values``.
    ``before``: the row as it is now; empty where it is not there. ``behind``: the batches of the group that write it
    before."""

    batch_id: str
    write: Write
    key: tuple[Cell, ...]
    before: Values
    values: Values
    behind: tuple[str, ...]


Rows = dict[str, list[After]]
"""By table."""
Link = tuple[str, tuple[Cell, ...]]
"""The name of a foreign key or of a unique one, and the values that two batches have in common."""


NOT_NULL, FOREIGN_KEY, UNIQUE, CHECK = "23502", "23503", "23505", "23514"


class Broken(NamedTuple):
    """The constraint that a row is suspected to break: the SQLSTATE, and the name ("": any of that kind)."""

    sqlstate: str
    constraint: str = ""


@dataclass(frozen=True, slots=True)
class _Double:
    """Two rows of a group with the same values of a unique key. ``stays``: the group writes the first one's once."""

    first: After
    second: After
    link: Link
    stays: bool


@dataclass(slots=True)
class Suspects:
    """``batches``: ids of the suspects. ``writes``: of each the first write that is suspected, and of what
    (``broken``). ``sure``: those whose write breaks that in whatever order the group's rows are written. ``links``: by
    batch id, the values that relate batches of the group: batches that have a link in common belong together.
    ``doubles``, and of those in ``sure`` the batches that wrote their rows before (``behind``), are looked at when all
    else is known."""

    batches: set[str] = field(default_factory=set)
    sure: set[str] = field(default_factory=set)
    writes: dict[str, Write] = field(default_factory=dict)
    broken: dict[str, Broken] = field(default_factory=dict)
    links: dict[str, set[Link]] = field(default_factory=dict)
    doubles: list[_Double] = field(default_factory=list)
    behind: dict[str, set[str]] = field(default_factory=dict)

    def weigh(self) -> None:
        """Judge the suspicions that depend on the other suspects."""
        for double in self.doubles:
            self.add_double(double)
        # A refused batch's change of a row is not there for the next batch.
        self.sure -= {one for one in self.sure if not self.batches.isdisjoint(self.behind.get(one, ()))}

    def add_double(self, double: _Double) -> None:
        """Suspect the second of two rows with a value of which there may be one. It surely fails where the first is not
        suspected, and no other write changes the first."""
        first, second = double.first, double.second
        self.add(second, Broken(UNIQUE, double.link[0]), sure=double.stays and first.batch_id not in self.batches)
        if first.batch_id != second.batch_id:
            for batch_id in (first.batch_id, second.batch_id):
                self.links.setdefault(batch_id, set()).add(double.link)

    def add(self, row: After, broken: Broken, *, sure: bool) -> None:
        """``row`` is suspected. A write that surely fails comes before one that perhaps does."""
        batch_id, write = row.batch_id, row.write
        self.batches.add(batch_id)
        if sure:
            self.behind.setdefault(batch_id, set()).update(row.behind)
        known = self.writes.get(batch_id)
        if known is None or _comes_before(write, sure, known, batch_id in self.sure):
            self.writes[batch_id], self.broken[batch_id] = write, broken
        if sure:
            self.sure.add(batch_id)


def _comes_before(write: Write, sure: bool, other: Write, other_sure: bool) -> bool:
    if sure != other_sure:
        return sure
    return (write.mutation, write.row) < (other.mutation, other.row)


@dataclass(frozen=True, slots=True)
class Look:
    """``ask`` sends the query and returns the reader of its answer, which gives places; ``suspect`` takes each one."""

    ask: Callable[[Session], store.Places]
    suspect: Callable[[int], None]


def suspects_of(context: Context, progress: Progress, candidates: Sequence[Candidate], *, apart: bool) -> Suspects:
    """The suspects among candidates, as they would be decided on the view, which stays as it is. ``apart``: each look
    has a savepoint of its own, so that one that Postgres can't do is left out; else all go together.

    Raises:
        DatabaseError: Postgres can't do a look, unless ``apart``.
    """
    conn, synced = context.conn, context.synced
    after, gone = outlook(context, progress, candidates)
    checks = store.checks(conn, context.synced.database.schema_name, [synced.tables[name].table for name in after])
    suspects = Suspects()
    asked = questions(synced, suspects, progress.view, after, gone, checks)
    for question, places in zip(asked, _answers(context, asked, apart=apart), strict=True):
        for place in places:
            question.suspect(place)
    suspects.weigh()
    return suspects


def questions(
    synced: SyncedDatabase,
    suspects: Suspects,
    view: View,
    after: Rows,
    gone: Rows,
    checks: Mapping[str, store.Checks],
) -> list[Look]:
    """The queries to Postgres about rows as they would be ``after`` the group, and about those that would be ``gone``.
    A row that needs no query is suspected at once."""
    asked: list[Look] = []
    for name, rows in after.items():
        asked += _look(synced, suspects, view, synced.tables[name].table, checks.get(name), rows)
    for name, rows in after.items():
        for key in synced.database.constraints[name].foreign_keys:
            to = synced.tables[key.to_table].table if key.synced else None
            brought = () if to is None else after.get(to.name, ())
            asked += _orphans(suspects, key, synced.tables[name].table, to, rows, brought)
    for name in synced.tables:
        for key in synced.database.constraints[name].foreign_keys:
            deleted = gone.get(key.to_table, ()) if key.synced else ()
            if deleted and key.on_delete in "ar":
                asked += _still_referred_to(synced, suspects, key, synced.tables[name].table, deleted)
    return asked


def _answers(context: Context, asked: Sequence[Look], *, apart: bool) -> list[list[int]]:
    if apart:
        return [_tried(context, question) for question in asked]
    with context.conn.pipeline():
        sent = [question.ask(context.conn) for question in asked]
        return [answer() for answer in sent]


def _tried(context: Context, question: Look) -> list[int]:
    """The answer to a query; empty where Postgres can't answer it."""
    try:
        with wave(context.conn, context.synced.database.schema_name, partial(question.ask, context.conn)) as opened:
            return opened.begun()
    except DatabaseError:
        # The batch is then found by its failure; where the session is lost, the next statement says so.
        return []


def outlook(context: Context, progress: Progress, candidates: Sequence[Candidate]) -> tuple[Rows, Rows]:
    """Rows as inserts and updates would leave them, and rows that would be deleted, as they were, by table."""
    after: dict[str, list[After]] = {}
    gone: dict[str, list[After]] = {}
    view, trial = progress.view, progress.copy()
    # The rows as the batches before leave them, as far as that is known: later batches are decided on them.
    made: dict[RowKey, Values] = {}
    by: dict[RowKey, tuple[str, ...]] = {}
    # A column that an insert does not give and that has no default is NULL.
    blanks = {
        name: {column.name: None for column in synced.table.columns if not (column.has_default or column.generated)}
        for name, synced in context.synced.tables.items()
    }
    for candidate in candidates:
        decided = decide(context, trial, candidate)
        if not isinstance(decided, Accepting):
            continue
        batch = decided.batch
        for write in decided.decision.writes:
            at: RowKey = (write.table, write.key)
            before, row_by = made.get(at), by.get(at, ())
            if before is None:
                row = view.rows.get(at)
                before = {} if row is None else dict(zip(context.synced.tables[write.table].names, row, strict=True))
            values = {**blanks[write.table], **write.values}
            if write.type is MutationType.UPDATE:
                values = {**before, **write.values}
                for name in write.defaults:
                    values.pop(name, None)
            if write.type is None:
                continue
            to = gone if write.type is MutationType.DELETE else after
            key = candidate.decoded.keys[at]
            to.setdefault(write.table, []).append(After(batch.id, write, key, before, values, row_by))
            made[at] = values
            by[at] = (*row_by, batch.id)
            trial.view.states[at] = applied(trial.view.states.get(at), batch, write)
    return after, gone


def _changes(row: After, columns: Sequence[str]) -> bool:
    """Whether a write gives one of ``columns`` another value than the row has."""
    if row.write.type is MutationType.INSERT:
        return True
    values, before = row.write.values, row.before
    return any(name in values and (name not in before or values[name] != before[name]) for name in columns)


def _look(
    synced: SyncedDatabase,
    suspects: Suspects,
    view: View,
    table: Table,
    checks: store.Checks | None,
    rows: Sequence[After],
) -> Iterator[Look]:
    """Not-null, checks and unique values of one table."""
    for column in table.columns:
        if column.not_null and not column.generated:
            name = column.name
            for row in rows:
                # Of an update only the values that it gives: the rest was there, or an earlier batch is to blame.
                given = row.write.values if row.write.type is MutationType.UPDATE else row.values
                if name in given and given[name] is None:
                    suspects.add(row, Broken(NOT_NULL), sure=True)
    if checks is not None:
        known = [(row, cells) for row in rows if (cells := _cells(row, checks.columns)) is not None]
        if known:
            yield Look(
                lambda conn: store.unchecked(conn, table, checks, [cells for _, cells in known]),
                lambda place: suspects.add(known[place][0], Broken(CHECK), sure=True),
            )
    for unique in synced.database.constraints[table.name].unique:
        if not unique.primary:
            yield from _doubles(synced, suspects, view, table, unique, rows)


def _cells(row: After, columns: Sequence[str]) -> tuple[Cell, ...] | None:
    """The row's cells in these columns; None where one is not known."""
    values = row.values
    try:
        return tuple([values[name] for name in columns])
    except KeyError:
        return None


def _doubles(
    synced: SyncedDatabase, suspects: Suspects, view: View, table: Table, unique: UniqueKey, rows: Sequence[After]
) -> Iterator[Look]:
    given = _given([row for row in rows if _changes(row, unique.columns)], unique.columns)
    if not given:
        return
    times = Counter(row.key for row, _ in given)
    seen: dict[tuple[Cell, ...], After] = {}
    for row, values in given:
        first = seen.setdefault(values, row)
        if first.key != row.key:
            suspects.doubles.append(_Double(first, row, (unique.name, values), times[first.key] == 1))
    # A row that the group touches may make room for another one.
    places = [table.index[name] for name in unique.columns]
    moving = {tuple([row[i] for i in places]) for (name, _), row in view.rows.items() if name == table.name}
    schema_name = synced.database.schema_name

    def suspect(place: int) -> None:
        row, values = given[place]
        suspects.add(row, Broken(UNIQUE, unique.name), sure=values not in moving)

    yield Look(
        lambda conn: store.taken_values(
            conn, schema_name, table, unique, [row.key for row, _ in given], [values for _, values in given]
        ),
        suspect,
    )


def _orphans(
    suspects: Suspects,
    key: ForeignKey,
    table: Table,
    to: Table | None,
    rows: Sequence[After],
    brought: Sequence[After],
) -> Iterator[Look]:
    """Rows that refer to none, also not to one that the group brings (``brought``). ``to``: the table that they refer
    to, where it is synced."""
    coming = {values: row for row, values in _given(brought, key.to_columns)}
    referring: dict[tuple[Cell, ...], list[After]] = {}
    for row, values in _given([row for row in rows if _changes(row, key.columns)], key.columns):
        parent = coming.get(values)
        if parent is None:
            referring.setdefault(values, []).append(row)
        elif parent.batch_id != row.batch_id:
            for batch_id in (parent.batch_id, row.batch_id):
                suspects.links.setdefault(batch_id, set()).add((key.name, values))
    if not referring:
        return
    columns, asked = [table.by_name[name] for name in key.columns], list(referring)

    def suspect(place: int) -> None:
        for row in referring[asked[place]]:
            suspects.add(row, Broken(FOREIGN_KEY, key.name), sure=True)

    yield Look(lambda conn: store.without_parent(conn, key, columns, to, asked), suspect)


def _still_referred_to(
    synced: SyncedDatabase, suspects: Suspects, key: ForeignKey, table: Table, deleted: Sequence[After]
) -> Iterator[Look]:
    given = _given(deleted, key.to_columns)
    to = synced.tables[key.to_table].table
    schema_name = synced.database.schema_name
    if given:
        values = [values for _, values in given]
        yield Look(
            lambda conn: store.with_children(conn, key, schema_name, table, to, values),
            lambda place: suspects.add(given[place][0], Broken(FOREIGN_KEY, key.name), sure=False),
        )


def _given(rows: Iterable[After], columns: Sequence[str]) -> list[tuple[After, tuple[Cell, ...]]]:
    """The rows that have all of ``columns``, none of them NULL, with their cells."""
    given = []
    for row in rows:
        values = _cells(row, columns)
        if values is not None and None not in values:
            given.append((row, values))
    return given


def is_as_sure(suspects: Suspects, result: Result) -> bool:
    """Whether a suspect that was sure to be refused was refused alone; True for one that was not sure."""
    surely_bad = result.taken.batch_id in suspects.sure
    return not surely_bad or (isinstance(result, Rejection) and result.by_itself)


def stages(
    candidates: Sequence[Candidate], suspects: Suspects, *, loose: bool = False
) -> Iterator[tuple[bool, list[Candidate]]]:
    """The candidates, which stand in the order of their ids, in parts that are to be run one after the other:
    suspects (True) and others, so that each comes after all before it that touch one of its rows, are of its node, or
    bring a row that it refers to. A suspect that may be accepted comes after all before it. ``loose``: a suspect that
    is surely refused keeps no order with its node's others."""
    others: list[list[Candidate]] = []
    suspected: list[list[Candidate]] = []
    last: dict[RowKey | Link | str, tuple[int, bool]] = {}
    highest = 0
    for candidate in candidates:
        batch_id = candidate.taken.batch_id
        suspect = batch_id in suspects.batches
        related: list[RowKey | Link | str] = [*candidate.decoded.keys, *suspects.links.get(batch_id, ())]
        if not (loose and batch_id in suspects.sure):
            related.append(candidate.taken.node_id)
        # Within a stage the others come first, and suspects in their order.
        stage = max((at + (was and not suspect) for at, was in (last[r] for r in related if r in last)), default=0)
        if suspect and batch_id not in suspects.sure:
            stage = max(stage, highest)
        highest = max(highest, stage)
        last.update(dict.fromkeys(related, (stage, suspect)))
        while len(others) <= stage:
            others.append([])
            suspected.append([])
        (suspected if suspect else others)[stage].append(candidate)
    for clean, bad in zip(others, suspected, strict=True):
        if clean:
            yield False, clean
        if bad:
            yield True, bad
