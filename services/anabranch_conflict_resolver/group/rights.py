"""Whether a batch may do what it does: by the audiences that its principal may read, and those that it may write.

A row that the principal may not read is to the rules as if it had never been; one that it reads and may not write is
refused, as it is before the change and after it. Claims count as they were when the batch was sent, memberships as they
are when it is decided.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from anabranch.merge import MutationType, RowState, Write
from anabranch.store.audiences import principals
from anabranch.store.audiences.principals import Given
from anabranch.store.group.rows import Row
from anabranch.store.inbox.take import Taken
from anabranch.store.session import steps
from anabranch.store.session.errors import BatchReason, Fault, Remedy
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Accepting, Candidate, Rejection
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.blame.rejections import forbidden, refused
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.group.view import View

_UNIQUE_VIOLATION = "23505"
_NOTHING = Given()


def learn_principals(context: Context, candidates: Sequence[Candidate]) -> None:
    """Know what membership queries give the principals of batches that touch a restricted table. Called before any
    savepoint of the group is open: who was never known is kept, and ``given`` must not say so of one who is not.

    Raises:
        psycopg.Error: a membership query can't be run.
    """
    database = context.synced.database
    names = sorted({taken.principal for taken in _concerned(context, candidates)} - context.given.keys())
    if names and database.audience_rules.memberships and not context.dry:
        context.given.update(steps.run(context.conn, principals.learn(database, names, context.now_ms)))


def rights_of(context: Context, candidates: Sequence[Candidate], *, memberships_changed: bool) -> Mapping[str, Rights]:
    """The rights of those batches that touch a restricted table, by id. ``memberships_changed``: changes that are
    drained with this group may have changed what queries give.

    Raises:
        psycopg.Error: a membership query can't be run.
    """
    concerned = _concerned(context, candidates)
    given: Mapping[str, Given] = context.given
    if concerned and (memberships_changed or context.dry):
        names = sorted({taken.principal for taken in concerned})
        given = steps.run(context.conn, principals.evaluate(context.synced.database, names))
    return {taken.batch_id: _rights(taken, given.get(taken.principal, _NOTHING)) for taken in concerned}


def _concerned(context: Context, candidates: Sequence[Candidate]) -> list[Taken]:
    restricted = context.synced.database.restricted
    if not restricted:
        return []
    return [c.taken for c in candidates if any(table in restricted for table, _ in c.decoded.keys)]


def _rights(taken: Taken, given: Given) -> Rights:
    read = taken.read_audiences or ()
    write = taken.write_audiences if taken.write_audiences is not None else read
    return Rights(given.read.union(read), given.write.union(write))


def seen_states(
    view: View, candidate: Candidate, rights: Rights | None, restricted: Container[str]
) -> Mapping[RowKey, RowState]:
    """The states that the rules see for a batch: without those of rows that its principal may not read."""
    if rights is None:
        return view.states
    return {
        at: view.states[at]
        for at in candidate.decoded.keys
        if at in view.states and (at[0] not in restricted or rights.may_read(view.audiences.get(at, ())))
    }


def refusal(context: Context, view: View, accepting: Accepting, rights: Rights | None) -> Rejection | None:
    """The rejection of a batch that the rules accept, where its principal may not do all of it; None where it may, as
    far as that is known before anything is written."""
    if rights is None:
        return None
    synced = context.synced
    for write in accepting.decision.writes:
        audiences = synced.tables[write.table].audiences
        if audiences is None:
            continue
        at = (write.table, write.key)
        there = view.rows.get(at)
        if there is not None and write.type is MutationType.INSERT:
            # It has the key of a row that is not seen, and learns no more of it than that.
            return _taken_key(context, accepting, write)
        if there is not None and not rights.may_write(view.audiences[at]):
            return forbidden(accepting.candidate, write)
        after = _expected(synced, write, there)
        known = audiences.known(after) if after is not None else None
        if known is not None and not rights.may_write(known):
            return forbidden(accepting.candidate, write)
    return None


def _expected(synced: SyncedDatabase, write: Write, there: Row | None) -> Row | None:
    """The row after a write, as far as an audience expression reads it; None where that is not known yet."""
    table = synced.tables[write.table]
    audiences = table.audiences
    assert audiences is not None
    if write.type is MutationType.INSERT and audiences.reads_only(write.values):
        return [write.values.get(name) for name in table.names]
    if write.type is MutationType.UPDATE and there is not None and not write.defaults and audiences.reads(write.values):
        row = there.copy()
        for name, cell in write.values.items():
            row[table.table.index[name]] = cell
        return row
    return None


def expected_rows(synced: SyncedDatabase, view: View, candidates: Sequence[Candidate]) -> list[tuple[str, Row | None]]:
    """Rows as the batches would leave them if nothing else came of their mutations, for tables with audiences: so that
    these are evaluated together, before the rules are asked."""
    rows: list[tuple[str, Row | None]] = []
    for candidate in candidates:
        for mutation in candidate.decoded.mutations:
            table = synced.tables.get(mutation.table)
            if table is None or table.audiences is None or mutation.type is MutationType.DELETE:
                continue
            for change in mutation.rows:
                write = Write(mutation.table, change.key, mutation.type, change.values, 0, 0)
                there = view.rows.get((mutation.table, change.key))
                rows.append((mutation.table, _expected(synced, write, there)))
    return rows


def _taken_key(context: Context, accepting: Accepting, write: Write) -> Rejection:
    """The rejection that a key gives which a row has already, for one who does not see that row."""
    name = context.synced.tables[write.table].primary_key
    fault = Fault(Remedy.BLAME, _UNIQUE_VIOLATION, BatchReason.CONSTRAINT, constraint=name, table=write.table)
    return refused(context, View(), accepting.candidate, [write], fault)
