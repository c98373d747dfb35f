"""The rows that a batch's principal may read and write: what the rules see of them, and the refusal of a batch that
does more than it may.

A row that is not read is to the rules as if it had never been; one that is read and may not be written is refused, as
it is before the change and after it, as far as that is known before anything is written.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from anabranch.merge import MutationType, RowState, Write
from anabranch.store.audiences.row_audiences import Audiences, Key
from anabranch.store.session.engine import Session
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Accepting, Candidate, Rejection, forbidden
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.blame.taken_words import taken_words
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.group.view import View

_INSERT, _DELETE = MutationType.INSERT, MutationType.DELETE
_UNIQUE_VIOLATION = "23505"


def seen_states(
    view: View, candidate: Candidate, rights: Rights | None, restricted: Container[str]
) -> Mapping[RowKey, RowState]:
    """The states that the rules see for a batch: without those of rows that its principal may not read."""
    states, audiences = view.states, view.audiences
    if rights is None:
        return states
    # Rows that stand together are mostly of the same audiences: these are asked about once.
    allowed: Audiences | None = None
    for at in candidate.decoded.keys:
        whose = audiences.get(at, ())
        if whose is not allowed and at in states and at[0] in restricted:
            if not rights.may_read(whose):
                break
            allowed = whose
    else:
        return states
    return {
        at: states[at]
        for at in candidate.decoded.keys
        if at in states and (at[0] not in restricted or rights.may_read(audiences.get(at, ())))
    }


def refusal(synced: SyncedDatabase, view: View, accepting: Accepting, rights: Rights | None) -> Rejection | None:
    """The rejection of a batch that the rules accept, where its principal may not do all of it; None where it may, as
    far as that is known before anything is written."""
    if rights is None:
        return None
    allowed: Audiences | None = None
    for write in accepting.decision.writes:
        audiences = synced.restricted.get(write.table)
        if audiences is None:
            continue
        at = (write.table, write.key)
        there, kind = view.rows.get(at), write.type
        if kind is _INSERT:
            # First whether it may write such a row: else the answer would tell whether there is one that is not seen.
            after = audiences.expected(None, write.values)
            if after is not None and after is not allowed and not rights.may_write(after):
                return forbidden(accepting.candidate, write, synced.tables[write.table].table.sql_name)
            if there is not None:
                # It has the key of a row that is not seen, and learns no more of it than that.
                return _taken_key(synced, accepting, write)
            allowed = after or allowed
            continue
        if there is not None:
            before = view.audiences[at]
            if before is not allowed and not rights.may_write(before):
                return forbidden(accepting.candidate, write, synced.tables[write.table].table.sql_name)
            allowed = before
            if audiences.reads.isdisjoint(write.values):
                continue
        if kind is None or kind is _DELETE or write.defaults:
            continue
        after = audiences.expected(there, write.values)
        if after is None or after is allowed:
            continue
        if not rights.may_write(after):
            return forbidden(accepting.candidate, write, synced.tables[write.table].table.sql_name)
        allowed = after
    return None


def learn_expected(conn: Session, synced: SyncedDatabase, view: View, candidates: Sequence[Candidate]) -> None:
    """Evaluate whom rows will be for, as the batches would leave them if nothing else came of their mutations: all
    together, before the rules are asked.

    Raises:
        psycopg.Error: Postgres refused an expression.
    """
    wanted: dict[str, list[Key]] = {}
    for candidate in candidates:
        for mutation in candidate.decoded.mutations:
            name, kind = mutation.table, mutation.type
            audiences = synced.restricted.get(name)
            # All rows of a mutation have the same columns. One that keeps what the expression reads was learned.
            if audiences is None or (kind is not _INSERT and audiences.reads.isdisjoint(mutation.rows[0].values)):
                continue
            keys = wanted.setdefault(name, [])
            if kind is _INSERT:
                keys += audiences.keys_of_new([change.values for change in mutation.rows])
                continue
            for change in mutation.rows:
                there = view.rows.get((name, change.key))
                if there is not None:
                    keys.append(audiences.key_with(there, change.values))
    for name, keys in wanted.items():
        synced.restricted[name].learn_keys(conn, keys)


def _taken_key(synced: SyncedDatabase, accepting: Accepting, write: Write) -> Rejection:
    """The rejection that a key gives which a row has already, for one who does not see that row."""
    table = synced.tables[write.table]
    name = table.primary_key
    words = taken_words(synced.database, table.table.sql_name, name)
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
