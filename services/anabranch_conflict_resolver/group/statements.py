"""Accepted writes into the tables: one statement for each (table, type, column set), and the rows that came back.

Inserts go first, tables that are pointed to before those that point to them; then updates; then deletes, the other way
round. The stored rows come back with RETURNING: they give the effects, and the next batch is decided on them.

As a rule rows are stored as they were written. So the effects are made from the writes while Postgres works, and made
again only for rows that came back different: by defaults, triggers, generated columns or a type that rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from anabranch.merge import MutationType, Outcome, RowState, Write, applied
from anabranch.store.audiences.row_audiences import Audiences
from anabranch.store.audiences.rules import claims_text
from anabranch.store.group.acting import act_as, act_as_oneself
from anabranch.store.group.rows import Answer, Row
from anabranch.store.inbox.claim import shorten_waits
from anabranch.store.session.binary import flush
from anabranch.store.session.engine import Session
from anabranch.values import Cell
from anabranch.wire.effects import Effect
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Accepting, Applied, Change, Made
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.batch.shown import Shown, learn, shown_to
from anabranch_conflict_resolver.group.setback import Setback, Why
from anabranch_conflict_resolver.group.table import SyncedTable
from anabranch_conflict_resolver.group.view import View

_INSERT, _UPDATE, _DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE
_LEAVING = (_INSERT, _UPDATE)
"""Types of writes that leave a row."""
_NO_RIGHTS: Mapping[str, Rights] = MappingProxyType({})
Job = tuple[Accepting, Sequence[Write]]
"""A batch, and those of its writes that are to be carried out."""
Key = tuple[Cell, ...]
Shape = tuple[str, tuple[str, ...], tuple[str, ...]]
"""Table, columns that are given, columns that get their default."""


_Sent = tuple[list[tuple[str, Answer[dict[str, Row]]]], list[tuple[str, Answer[set[str]]]]]
"""The answers to what was sent: of inserts and updates, and of deletes, each with its table."""


class _Step(NamedTuple):
    """One write on its way, and its results as far as they are known: the row after it, its effect, and the row's
    state. The row is None where there is none, and where only Postgres knows it: then the others are None, too.
    ``shown``: of a restricted table, whom the row was and is for."""

    at: RowKey
    write: Write
    row: Row | None = None
    effect: Effect | None = None
    state: RowState | None = None
    shown: Shown | None = None


def carry_out(
    conn: Session,
    tables: Mapping[str, SyncedTable],
    view: View,
    jobs: Sequence[Job],
    judge: Callable[[], None] | None = None,
    rights: Mapping[str, Rights] = _NO_RIGHTS,
    role: str = "",
) -> list[list[Change]] | Setback:
    """Write, and carry ``view`` forward. No row may be named twice. ``judge`` is called when all has been sent, and
    may send further statements. ``rights``: by id, of batches that touch a restricted table. ``role``: the one that
    batches are written as, each with its principal's claims; "" for the session's own. Gives the changes of each
    job, or says that writes had no effect, or left rows that their batch may not write: then, and where Postgres
    refuses something, ``view`` is still as it was, and the statements' savepoint has to be rolled back.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    with conn.pipeline():
        shorten_waits(conn)
        pending, deleted = _send_as(conn, tables, jobs, role) if role else _send(conn, tables, jobs)
        if judge is not None:
            judge()
        flush(conn)
        expected = [_expect(tables, view, accepting, writes) for accepting, writes in jobs]
        # The first answer waits for all that was sent.
        stored: dict[str, dict[str, Row]] = {}
        for table, rows in pending:
            stored.setdefault(table, {}).update(rows())
        gone = _gone(deleted)
    ineffective: dict[str, Write] = {}
    others: list[tuple[Accepting, list[_Step], int, Row]] = []
    for (accepting, _), steps in zip(jobs, expected, strict=True):
        for place, step in enumerate(steps):
            write = step.write
            kind = write.type
            if kind is _DELETE:
                came = write.key in gone[write.table]
            elif kind is None or not (write.values or write.defaults):
                came = True
            else:
                row = stored[write.table].get(write.key)
                came = row is not None
                expected_row = step.row
                if row is not None and (
                    expected_row is None or row != expected_row or tables[write.table].effects.differ(row, expected_row)
                ):
                    others.append((accepting, steps, place, row))
            if not came:
                ineffective.setdefault(accepting.batch.id, write)
    if ineffective:
        return Setback(Why.INEFFECTIVE, frozenset(ineffective), ineffective)
    restricted = {name: one for name in stored if (one := tables[name].audiences) is not None}
    learn(conn, restricted, ((steps[place].at[0], row) for _, steps, place, row in others))
    for accepting, steps, place, row in others:
        steps[place] = _derive(tables, view, accepting, steps[place].write, row, stored=True)
    forbidden = dict(_forbidden(jobs, expected, rights)) if rights else {}
    if forbidden:
        return Setback(Why.FORBIDDEN, frozenset(forbidden), forbidden)
    return [_forward(tables, view, steps) for steps in expected]


def _gone(deleted: Iterable[tuple[str, Callable[[], Iterable[str]]]]) -> dict[str, set[str]]:
    """The keys of the rows that are no longer there, by table."""
    gone: dict[str, set[str]] = {}
    for table, keys in deleted:
        gone.setdefault(table, set()).update(keys())
    return gone


def _forbidden(
    jobs: Sequence[Job], done: Sequence[Sequence[_Step]], rights: Mapping[str, Rights]
) -> Iterator[tuple[str, Write]]:
    """The batches that left a row which they may not write, each with such a write."""
    for (accepting, _), steps in zip(jobs, done, strict=True):
        of_batch = rights.get(accepting.batch.id)
        if of_batch is None:
            continue
        allowed: Audiences | None = None
        for step in steps:
            seen = step.shown
            if seen is None or seen.after is allowed or step.write.type not in _LEAVING:
                continue
            if of_batch.may_write(seen.after):
                allowed = seen.after
            else:
                yield accepting.batch.id, step.write


def try_out(conn: Session, tables: Mapping[str, SyncedTable], steps: Sequence[Job], role: str = "") -> None:
    """Write steps one behind the other, to see whether Postgres takes them, in a savepoint that is undone afterwards:
    the stored rows are not used. Only sends where the session is in a pipeline.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    for step in steps:
        if role:
            _send_as(conn, tables, [step], role)
        else:
            _send(conn, tables, [step])


def _send_as(conn: Session, tables: Mapping[str, SyncedTable], jobs: Sequence[Job], role: str) -> _Sent:
    """``_send``, principal by principal, with the claims of each. They stand in the order of their batches, so that one
    that leans on another one's row comes after it."""
    by_claims: dict[str, list[Job]] = {}
    for job in sorted(jobs, key=lambda one: one[0].batch.id):
        taken = job[0].candidate.taken
        by_claims.setdefault(taken.claims or claims_text(taken.principal, {}), []).append(job)
    sent: _Sent = ([], [])
    for claims, of_one in by_claims.items():
        act_as(conn, role, claims)
        pending, deleted = _send(conn, tables, of_one)
        sent[0].extend(pending)
        sent[1].extend(deleted)
    act_as_oneself(conn)
    return sent


def _send(conn: Session, tables: Mapping[str, SyncedTable], jobs: Sequence[Job]) -> _Sent:
    inserts: dict[tuple[str, tuple[str, ...]], list[list[Cell]]] = {}
    updates: dict[Shape, tuple[list[Key], list[list[Cell]]]] = {}
    deletes: dict[str, list[Key]] = {}
    for accepting, writes in jobs:
        keys = accepting.candidate.decoded.keys
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
    pending = []
    for table, columns in sorted(inserts, key=lambda shape: tables[shape[0]].rank):
        pending.append((table, tables[table].sql.insert(conn, columns, inserts[table, columns])))
    for shape in sorted(updates, key=lambda shape: tables[shape[0]].rank):
        table, columns, defaults = shape
        named, values = updates[shape]
        pending.append((table, tables[table].sql.update(conn, columns, named, values, defaults=defaults)))
    last_first = sorted(deletes, key=lambda table: -tables[table].rank)
    return pending, [(table, tables[table].sql.delete(conn, deletes[table])) for table in last_first]


def _expect(
    tables: Mapping[str, SyncedTable], view: View, accepting: Accepting, writes: Sequence[Write]
) -> list[_Step]:
    """The results of writes if Postgres stores them as they are. Where it is not known whom a row is for, the row as it
    comes back is asked about."""
    rows, states, batch = view.rows, view.states, accepting.batch
    steps: list[_Step] = []
    new: Shown | None = None
    for write in writes:
        kind, values = write.type, write.values
        at = (write.table, write.key)
        table = tables[write.table]
        audiences, seen = table.audiences, None
        if kind is _INSERT:
            if len(values) != len(table.names):
                steps.append(_Step(at, write))
                continue
            row = [values[name] for name in table.names]
            if audiences is not None:
                now = audiences.known(row)
                if now is None:
                    steps.append(_Step(at, write))
                    continue
                # Changes of rows of the same audiences share it.
                if new is None or new.after is not now:
                    new = Shown((), now)
                seen = new
            effect = table.effects.insert(row)
        elif kind is _UPDATE and values and not write.defaults:
            before = rows[at]
            row = before.copy()
            index = table.table.index
            for name, cell in values.items():
                row[index[name]] = cell
            effect = table.effects.update(before, row)
            if audiences is not None:
                was = view.audiences[at]
                now = was if audiences.reads.isdisjoint(values) else audiences.known(row)
                if now is None:
                    steps.append(_Step(at, write))
                    continue
                effect, seen = shown_to(was, now, table.effects, before, row, effect)
        else:
            known_later = write.defaults and kind is not None
            steps.append(
                _Step(at, write) if known_later else _derive(tables, view, accepting, write, None, stored=False)
            )
            continue
        steps.append(_Step(at, write, row, effect, applied(states.get(at), batch, write), seen))
    return steps


def _derive(
    tables: Mapping[str, SyncedTable],
    view: View,
    accepting: Accepting,
    write: Write,
    row: Row | None,
    *,
    stored: bool,
) -> _Step:
    """The results of a write that leaves ``row``; ``stored``: the row is as Postgres returned it, and not as it was
    written."""
    at = (write.table, write.key)
    table = tables[write.table]
    before, after = view.rows.get(at), row
    if write.type is _DELETE:
        effect = table.effects.delete(view.rows[at])
    elif row is None:
        effect = table.effects.none(accepting.candidate.decoded.keys[at])
        after = before
    elif write.type is _INSERT:
        effect = table.effects.insert(row)
    else:
        effect = table.effects.update(view.rows[at], row)
    known = dict(zip(table.names, row, strict=True)) if stored and row is not None else None
    seen, audiences = None, table.audiences
    if audiences is not None:
        was = view.audiences[at] if before is not None else ()
        now = () if after is None else was if after is before else audiences.of(after)
        effect, seen = shown_to(was, now, table.effects, before, after, effect)
    return _Step(at, write, row, effect, applied(view.states.get(at), accepting.batch, write, known), seen)


def _forward(tables: Mapping[str, SyncedTable], view: View, steps: Sequence[_Step]) -> list[Change]:
    rows, states, changed = view.rows, view.states, view.changed
    changes = []
    for at, write, row, effect, state, seen in steps:
        assert effect is not None
        assert state is not None
        before = rows.get(at)
        if row is not None:
            rows[at] = row
        elif write.type is _DELETE:
            del rows[at]
        if before is not None or row is not None:
            view.note_audiences(at, seen, there=at in rows)
        if state.version is not None and state is not states.get(at):
            states[at] = state
            changed.add(at)
        moved = (before, rows.get(at)) if tables[write.table].gives_audiences else None
        changes.append(Change(write, effect, seen, moved))
    return changes


def applied_result(view: View, accepting: Accepting, made: Made) -> Applied:
    """The result of a batch that was carried out."""
    superseded: dict[int, Row | None] = {
        number: view.rows.get((outcome.table, outcome.key))
        for number, outcome in enumerate(accepting.decision.outcomes)
        if outcome.outcome is Outcome.SUPERSEDED
    }
    return Applied(accepting.candidate.taken, accepting, made.changes, made.spills, superseded)
