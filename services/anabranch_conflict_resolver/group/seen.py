"""The rows that a batch's principal may read and write: what the rules see of them, and the refusal of a batch that
does more than it may.

A row that is not read is to the rules as if it had never been; one that is read and may not be written is refused, as
it is before the change and after it, as far as that is known before anything is written.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from anabranch.merge import MutationType, RowState, Write
from anabranch.store.group.rows import Row
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Accepting, Candidate, Rejection, forbidden
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.blame.taken_words import taken_words
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.group.view import View

_UNIQUE_VIOLATION = "23505"


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


def refusal(synced: SyncedDatabase, view: View, accepting: Accepting, rights: Rights | None) -> Rejection | None:
    """The rejection of a batch that the rules accept, where its principal may not do all of it; None where it may, as
    far as that is known before anything is written."""
    if rights is None:
        return None
    for write in accepting.decision.writes:
        audiences = synced.tables[write.table].audiences
        if audiences is None:
            continue
        at = (write.table, write.key)
        there = view.rows.get(at)
        if there is not None and write.type is MutationType.INSERT:
            # It has the key of a row that is not seen, and learns no more of it than that.
            return _taken_key(synced, accepting, write)
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


def _taken_key(synced: SyncedDatabase, accepting: Accepting, write: Write) -> Rejection:
    """The rejection that a key gives which a row has already, for one who does not see that row."""
    name = synced.tables[write.table].primary_key
    words = taken_words(synced.database, write.table, name)
    return Rejection(
        accepting.candidate.taken,
        errors_pb2.REASON_CONSTRAINT,
        f"{words} (SQLSTATE {_UNIQUE_VIOLATION})",
        write.mutation,
        write.table,
        accepting.candidate.decoded.keys[write.table, write.key],
        constraint=name,
        sqlstate=_UNIQUE_VIOLATION,
    )
