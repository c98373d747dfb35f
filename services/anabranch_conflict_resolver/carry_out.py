"""Accepted writes into the tables: one statement for each (table, type, column set), and what Postgres made of it.

Inserts go first, tables that are pointed to before those that point to them; then updates; then deletes, the other way
round. What was stored comes back with RETURNING: it is the effect, and what the next batch is decided on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.merge import MutationType, Write, applied
from anabranch.schema import Cell
from anabranch.store.engine import Session
from anabranch.store.rows import Row
from anabranch_conflict_resolver.model import Candidate, Change
from anabranch_conflict_resolver.tables import SyncedTable
from anabranch_conflict_resolver.view import View

_INSERT, _UPDATE, _DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE
Job = tuple[Candidate, Sequence[Write]]
Key = tuple[Cell, ...]
Shape = tuple[str, tuple[str, ...], tuple[str, ...]]
"""Table, columns that are given, columns that get their default."""


class Swallowed(Exception):
    """Statements changed fewer rows than they named. ``culprits``: a write of each batch that this befell, by batch
    id."""

    def __init__(self, culprits: Mapping[str, Write]) -> None:
        super().__init__(f"{len(culprits)} batches had no effect")
        self.culprits = culprits


def carry_out(conn: Session, tables: Mapping[str, SyncedTable], view: View, jobs: Sequence[Job]) -> list[list[Change]]:
    """Write, and carry ``view`` forward. No row may be named twice. Gives the changes of each job.

    Raises:
        Swallowed: a write had no effect.
        psycopg.Error: what Postgres refused. In both cases ``view`` is still as it was, and the statements' savepoint
            has to be rolled back.
    """
    stored, gone = _execute(conn, tables, jobs)
    culprits: dict[str, Write] = {}
    for candidate, writes in jobs:
        for write in writes:
            kind = write.type
            if kind is None or (kind is _UPDATE and not write.values and not write.defaults):
                continue
            if write.key not in (gone if kind is _DELETE else stored)[write.table]:
                culprits.setdefault(candidate.taken.batch_id, write)
    if culprits:
        raise Swallowed(culprits)
    return [_changes(tables, view, candidate, writes, stored) for candidate, writes in jobs]


def _execute(
    conn: Session, tables: Mapping[str, SyncedTable], jobs: Sequence[Job]
) -> tuple[dict[str, dict[str, Row]], dict[str, set[str]]]:
    inserts: dict[tuple[str, tuple[str, ...]], list[list[Cell]]] = {}
    updates: dict[Shape, tuple[list[Key], list[list[Cell]]]] = {}
    deletes: dict[str, list[Key]] = {}
    stored: dict[str, dict[str, Row]] = {}
    gone: dict[str, set[str]] = {}
    for candidate, writes in jobs:
        keys = candidate.decoded.keys
        for write in writes:
            kind, table = write.type, write.table
            if kind is _INSERT:
                inserts.setdefault((table, tuple(write.values)), []).append(list(write.values.values()))
            elif kind is _UPDATE:
                if write.values or write.defaults:
                    shape = (table, tuple(write.values), write.defaults)
                    named, values = updates.setdefault(shape, ([], []))
                    named.append(keys[table, write.key])
                    values.append(list(write.values.values()))
            elif kind is _DELETE:
                deletes.setdefault(table, []).append(keys[table, write.key])
    for table, columns in sorted(inserts, key=lambda shape: tables[shape[0]].rank):
        stored.setdefault(table, {}).update(tables[table].sql.insert(conn, columns, inserts[table, columns]))
    for shape in sorted(updates, key=lambda shape: tables[shape[0]].rank):
        table, columns, defaults = shape
        named, values = updates[shape]
        found = tables[table].sql.update(conn, columns, named, values, defaults=defaults)
        stored.setdefault(table, {}).update(found)
    for table in sorted(deletes, key=lambda table: -tables[table].rank):
        gone[table] = tables[table].sql.delete(conn, deletes[table])
    return stored, gone


def _changes(
    tables: Mapping[str, SyncedTable],
    view: View,
    candidate: Candidate,
    writes: Sequence[Write],
    stored: Mapping[str, Mapping[str, Row]],
) -> list[Change]:
    batch = candidate.batch
    assert batch is not None
    rows, states = view.rows, view.states
    changes: list[Change] = []
    for write in writes:
        name, key, kind = write.table, write.key, write.type
        at = (name, key)
        table = tables[name]
        before = rows.get(at)
        known: dict[str, Cell] | None = None
        if kind is _INSERT:
            row = stored[name][key]
            effect = table.effects.insert(row)
            rows[at] = row
            known = dict(zip(table.names, row, strict=True))
        elif kind is _DELETE:
            assert before is not None
            effect = table.effects.delete(before)
            del rows[at]
        elif kind is _UPDATE and (write.values or write.defaults):
            assert before is not None
            row = stored[name][key]
            effect = table.effects.update(before, row)
            rows[at] = row
            expected, index = list(before), table.table.index
            for column, cell in write.values.items():
                expected[index[column]] = cell
            if expected != row:
                known = dict(zip(table.names, row, strict=True))
        else:
            effect = table.effects.none(candidate.decoded.keys[at])
        old = states.get(at)
        new = applied(old, batch, write, known)
        if new is not old and new.version is not None:
            states[at] = new
            view.changed.add(at)
        changes.append(Change(write, effect))
    return changes
