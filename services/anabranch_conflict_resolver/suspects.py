"""Which batches of a group that failed would break a constraint: looked for with a few set queries, so that they need
not be found by running into them again and again.

A suspicion decides nothing. Suspects are run alone, each after whatever of the group it is related to; what Postgres
says then is their verdict. What nobody is suspected of is found by halving (``isolate``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from anabranch.merge import Accepted, MutationType, Write
from anabranch.schema import Cell, Table
from anabranch.store import suspects as store
from anabranch.store.relation import ForeignKey, UniqueKey
from anabranch.store.waves import DatabaseError, wave
from anabranch_conflict_resolver.decode import RowKey
from anabranch_conflict_resolver.model import Candidate
from anabranch_conflict_resolver.view import View
from anabranch_conflict_resolver.waves import Group, decide

Values = Mapping[str, Cell]


@dataclass(slots=True, eq=False)
class _After:
    """A row as a write would leave it, as far as that is known: columns that get a default are not in ``values``."""

    batch_id: str
    write: Write
    key: tuple[Cell, ...]
    values: Values


Link = tuple[str, tuple[Cell, ...]]
"""A foreign key's name, and the values that refer."""


@dataclass(slots=True)
class Suspects:
    """``batches``: ids of the suspects. ``sure``: by batch id, the first write that breaks a constraint in whatever
    order rows are written; a constraint between rows may be kept in another order. ``links``: by batch id, references
    that the group brings together: who has one in common belongs together."""

    batches: set[str] = field(default_factory=set)
    sure: dict[str, Write] = field(default_factory=dict)
    links: dict[str, set[Link]] = field(default_factory=dict)

    def add(self, rows: Iterable[_After], *, sure: bool) -> None:
        """``rows`` are suspected."""
        for row in rows:
            self.batches.add(row.batch_id)
            if sure:
                known = self.sure.setdefault(row.batch_id, row.write)
                if (row.write.mutation, row.write.row) < (known.mutation, known.row):
                    self.sure[row.batch_id] = row.write


def suspects_of(group: Group, view: View, candidates: Sequence[Candidate]) -> Suspects:
    """The suspects among candidates, as they would be decided on ``view``, which stays as it is."""
    suspects = Suspects()
    after, gone = _after(group, view, candidates)
    for name, rows in after.items():
        _look(group, suspects, group.synced.tables[name].table, rows)
    for name, rows in after.items():
        for key in group.synced.database.constraints[name].foreign_keys:
            brought = after.get(key.to_table, ()) if key.to_schema == group.synced.database.schema_name else ()
            _orphans(group, suspects, key, group.synced.tables[name].table, rows, brought)
    for name in group.synced.tables:
        for key in group.synced.database.constraints[name].foreign_keys:
            deleted = gone.get(key.to_table, ())
            if deleted and key.to_schema == group.synced.database.schema_name and key.on_delete in "ar":
                _still_referred_to(group, suspects, key, group.synced.tables[name].table, deleted)
    return suspects


def _after(
    group: Group, view: View, candidates: Sequence[Candidate]
) -> tuple[dict[str, list[_After]], dict[str, list[_After]]]:
    """Rows as inserts and updates would leave them, and rows that would be deleted, as they were, by table."""
    after: dict[str, list[_After]] = {}
    gone: dict[str, list[_After]] = {}
    trial = view.copy()
    for candidate in candidates:
        decision = decide(group, trial, candidate)
        if not isinstance(decision, Accepted):
            continue
        batch_id = candidate.taken.batch_id
        for write in decision.writes:
            at: RowKey = (write.table, write.key)
            names = group.synced.tables[write.table].names
            before = dict(zip(names, view.rows[at], strict=True)) if at in view.rows else {}
            key = candidate.decoded.keys[at]
            if write.type is MutationType.INSERT:
                after.setdefault(write.table, []).append(_After(batch_id, write, key, write.values))
            elif write.type is MutationType.UPDATE:
                values = {**before, **write.values}
                for name in write.defaults:
                    values.pop(name, None)
                after.setdefault(write.table, []).append(_After(batch_id, write, key, values))
            elif write.type is MutationType.DELETE:
                gone.setdefault(write.table, []).append(_After(batch_id, write, key, before))
    return after, gone


def _look(group: Group, suspects: Suspects, table: Table, rows: Sequence[_After]) -> None:
    """Not-null, checks and unique values of one table."""
    for column in table.columns:
        if column.not_null and not column.generated:
            missing = _NOTHING if column.has_default else None
            suspects.add((row for row in rows if row.values.get(column.name, missing) is None), sure=True)
    schema_name = group.synced.database.schema_name
    whole = [row for row in rows if len(row.values) == len(table.columns)]
    cells = [[row.values[name] for name in table.column_names] for row in whole]

    def false_checks() -> list[int]:
        expressions = store.check_expressions(group.conn, schema_name, table)
        return store.unchecked(group.conn, table, expressions, cells) if expressions and cells else []

    suspects.add((whole[i] for i in _tried(group, false_checks)), sure=True)
    for unique in group.synced.database.constraints[table.name].unique:
        if not unique.primary:
            _doubles(group, suspects, table, unique, rows)


_NOTHING = object()


def _doubles(group: Group, suspects: Suspects, table: Table, unique: UniqueKey, rows: Sequence[_After]) -> None:
    given = _given(rows, unique.columns)
    seen: dict[tuple[Cell, ...], tuple[Cell, ...]] = {}
    for row, values in given:
        if seen.setdefault(values, row.key) != row.key:
            suspects.add([row], sure=False)

    def taken() -> list[int]:
        keys = [row.key for row, _ in given]
        schema_name = group.synced.database.schema_name
        return store.taken_values(group.conn, schema_name, table, unique, keys, [v for _, v in given])

    if given:
        suspects.add((given[i][0] for i in _tried(group, taken)), sure=False)


def _orphans(
    group: Group,
    suspects: Suspects,
    key: ForeignKey,
    table: Table,
    rows: Sequence[_After],
    brought: Sequence[_After],
) -> None:
    """Rows that refer to none, also not to one that the group brings (``brought``)."""
    coming = {values: row for row, values in _given(brought, key.to_columns)}
    given = []
    for row, values in _given(rows, key.columns):
        parent = coming.get(values)
        if parent is None:
            given.append((row, values))
        elif parent.batch_id != row.batch_id:
            for batch_id in (parent.batch_id, row.batch_id):
                suspects.links.setdefault(batch_id, set()).add((key.name, values))
    columns = [table.by_name[name] for name in key.columns]
    if given:
        asked = [values for _, values in given]
        found = _tried(group, lambda: store.without_parent(group.conn, key, columns, asked))
        suspects.add((given[i][0] for i in found), sure=True)


def _still_referred_to(
    group: Group, suspects: Suspects, key: ForeignKey, table: Table, deleted: Sequence[_After]
) -> None:
    given = _given(deleted, key.to_columns)
    to = group.synced.tables[key.to_table].table
    schema_name = group.synced.database.schema_name
    if given:
        values = [values for _, values in given]
        found = _tried(group, lambda: store.with_children(group.conn, key, schema_name, table, to, values))
        suspects.add((given[i][0] for i in found), sure=False)


def _given(rows: Iterable[_After], columns: Sequence[str]) -> list[tuple[_After, tuple[Cell, ...]]]:
    """The rows that have all of ``columns``, none of them NULL, with their cells."""
    given = []
    for row in rows:
        values = tuple([row.values.get(name) for name in columns])
        if None not in values:
            given.append((row, values))
    return given


def _tried(group: Group, ask: Callable[[], list[int]]) -> list[int]:
    """What a query says; nothing where Postgres can't say it."""
    try:
        with wave(group.conn, group.synced.database.schema_name, lambda: None):
            return ask()
    except DatabaseError:
        # It is looked for by running into it; where the session is lost, the next statement says so.
        return []


def stages(candidates: Sequence[Candidate], suspects: Suspects) -> Iterator[tuple[bool, list[Candidate]]]:
    """The candidates, which stand in the order of their ids, in parts that are to be run one after the other:
    suspects (True) and others, so that each comes after all before it that touch one of its rows, are of its node, or
    bring what it refers to. A suspect that may be in the right comes after all before it."""
    others: list[list[Candidate]] = []
    suspected: list[list[Candidate]] = []
    last: dict[RowKey | Link | str, tuple[int, bool]] = {}
    highest = 0
    for candidate in candidates:
        batch_id = candidate.taken.batch_id
        suspect = batch_id in suspects.batches
        related: list[RowKey | Link | str] = [
            candidate.taken.node_id,
            *candidate.decoded.keys,
            *suspects.links.get(batch_id, ()),
        ]
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
