"""A dry run: decides a batch as if it arrived now, and writes nothing.

First the checks of ingest, then the same steps as a group of this one batch, in a transaction that is always rolled
back. It makes no claim, so that it delays no group; rows that a group has locked count as busy, and it waits for no
lock longer than its session allows. A group that meets a row that a dry run has locked lets that batch rest for a
moment: so a dry run has few rows (``limits.MAX_EXPLAIN_ROWS``) and little time. Changes that were made by SQL and are
not in the log yet count, as they would in that group, and the answer says how many they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Event, Thread

from anabranch import limits
from anabranch.runtime.errors import CallError
from anabranch.store.capture.captured import UndecodableError
from anabranch.store.catalog.databases import UnknownDatabaseError
from anabranch.store.group.waves import DatabaseError
from anabranch.store.inbox import take
from anabranch.store.inbox.explain import KnownOfBatch, known
from anabranch.store.inbox.take import Taken
from anabranch.store.session.engine import Session
from anabranch.v1 import batch_pb2, change_pb2, errors_pb2, resolver_pb2, value_pb2, verdict_pb2
from anabranch.values.messages import column_writer
from anabranch.wire.envelopes import Received, least_id, receive
from anabranch_conflict_resolver.batch.results import Applied, Change, Rejection, Result
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.batch.verdicts import applied_verdict, rejected_verdict, waiting_verdict
from anabranch_conflict_resolver.captured.server_batches import schema_batch_id
from anabranch_conflict_resolver.functions.child import Asking, Functions
from anabranch_conflict_resolver.group.attempt import decide_group
from anabranch_conflict_resolver.group.cache import Cache, current
from anabranch_conflict_resolver.group.candidates import sort_out
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.group.next_try import Attempt
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.loop.sessions import Sessions
from anabranch_conflict_resolver.question import Question

_BUSY_MS = 100
_DAY_MS = 86_400_000
_CANCELED = "57014"
_AGAIN_S = 0.1
_GONE = "the database is gone"


@dataclass(slots=True)
class DryRuns:
    """One session for all dry runs of a process, one at a time; as the writer of the database that is asked about.
    ``explain`` blocks and belongs into a thread; it takes ``longest_s`` at most."""

    sessions: Sessions
    functions: Functions
    seal_key: Callable[[int], bytes] | None = None
    longest_s: float = 2.0
    _caches: dict[int, Cache] = field(default_factory=dict)

    def explain(self, question: Question, now_ms: int, clock_offset_ms: int) -> resolver_pb2.ExplainResponse:
        """The answer, without the server's state.

        Raises:
            CallError: OVERLOADED where it takes too long, or more waits to enter the log than one counts;
                LIMIT_EXCEEDED for a batch that has or causes more changes than it shows; WRONG_PRINCIPAL for another
                principal's node; UNKNOWN_DATABASE.
            psycopg.Error: Postgres refused a statement.
        """
        try:
            session = self.sessions.take(question.database_id)
        except UnknownDatabaseError as error:
            raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, _GONE) from error
        over, late = Event(), Event()
        clock = Thread(target=_end_late, args=(session, self.longest_s, over, late), name="dry-run-clock", daemon=True)
        clock.start()
        try:
            return self._explain(session, question, now_ms, clock_offset_ms)
        except DatabaseError as error:
            if error.sqlstate != _CANCELED:
                raise
            text = f"a dry run of this batch takes longer than {self.longest_s:g} s"
            raise CallError(errors_pb2.REASON_OVERLOADED, text, retry_after_ms="1000") from error
        finally:
            over.set()
            clock.join()
            try:
                if late.is_set():
                    # A request to end a statement may still be on its way to it.
                    session.close()
                elif not session.closed:
                    session.rollback()
            finally:
                self.sessions.give_back(question.database_id, session)

    def close(self) -> None:
        """End the session."""
        self.sessions.close()

    def _explain(
        self, conn: Session, question: Question, now_ms: int, clock_offset_ms: int
    ) -> resolver_pb2.ExplainResponse:
        envelope, database_id = question.envelope, question.database_id
        head = take.read_head(conn, database_id)
        if head is None:
            raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, _GONE)
        cache = self._caches.setdefault(database_id, Cache(self.seal_key))
        synced = current(conn, cache, head)
        if cache.altered:
            text = "a table was altered, and the change waits to enter the log"
            raise CallError(errors_pb2.REASON_OVERLOADED, text, retry_after_ms="1000")
        oldest = least_id(now_ms - synced.database.policy.retention_days * _DAY_MS)
        received = receive(envelope.payload, envelope.basis, envelope.prev, synced.database.name, oldest)
        batch_id = received.batch_id
        if not batch_id:
            # As ingest answers it: stored nowhere, so that nothing can be known of it.
            assert received.refusal is not None
            return _rejected(received.shown_id, *received.refusal)
        facts = known(conn, database_id, batch_id, envelope.prev, question.node_id)
        if facts.owner is not None and facts.owner != question.principal:
            raise CallError(errors_pb2.REASON_WRONG_PRINCIPAL, "the node belongs to another principal")
        own = (question.principal, received.payload_sha256)
        if facts.verdict is not None and (facts.principal, facts.payload_sha256) == own:
            return resolver_pb2.ExplainResponse(verdict=verdict_pb2.Verdict.FromString(facts.verdict))
        if facts.verdict is None and (facts.waiting_principal, facts.waiting_sha256) == own:
            return resolver_pb2.ExplainResponse(verdict=waiting_verdict(batch_id), waits_for=facts.waits_for)
        if facts.verdict is not None or facts.waiting_principal is not None:
            text = "the id was sent before with other content"
            return _rejected(batch_id, errors_pb2.REASON_ID_REUSED, text)
        if received.refusal is not None:
            return _rejected(batch_id, *received.refusal)
        rows = sum(len(mutation.rows) for mutation in batch_pb2.DbMutationBatch.FromString(envelope.payload).mutations)
        if rows > limits.MAX_EXPLAIN_ROWS:
            text = f"a batch of {rows} rows; a dry run takes {limits.MAX_EXPLAIN_ROWS}"
            raise CallError(errors_pb2.REASON_LIMIT_EXCEEDED, text, max_rows=str(limits.MAX_EXPLAIN_ROWS))
        taken = _as_taken(question, received, facts, now_ms)
        position = max(head.clock_ms + clock_offset_ms, head.position + 1)
        asking = Asking(self.functions)
        context = Context(conn, synced, position, now_ms, _BUSY_MS, [batch_id], synced.may_cause, asking, dry=True)
        return _tried(context, cache, taken, drains=head.any_captured)


def _end_late(session: Session, longest_s: float, over: Event, late: Event) -> None:
    """End the session's statements, one after the other, once it has taken too long."""
    while not over.wait(longest_s):
        late.set()
        session.cancel_safe()
        longest_s = _AGAIN_S


def _as_taken(question: Question, received: Received, facts: KnownOfBatch, now_ms: int) -> Taken:
    """The batch as it would be taken if it arrived now."""
    envelope = question.envelope
    return Taken(
        batch_id=received.batch_id,
        node_id=question.node_id,
        principal=question.principal,
        basis=envelope.basis,
        prev=envelope.prev or None,
        payload=envelope.payload,
        payload_sha256=received.payload_sha256,
        traceparent=None,
        arrived_ms=now_ms,
        attempts=0,
        failure=None,
        refusal=None,
        refusal_message=None,
        decided=False,
        prev_decided=facts.prev_decided,
        last_accepted=facts.last_accepted,
        missing=facts.missing,
        size=len(envelope.payload),
        read_audiences=question.read_audiences,
        write_audiences=question.write_audiences,
        claims=question.claims,
    )


def _tried(context: Context, cache: Cache, taken: Taken, *, drains: bool) -> resolver_pb2.ExplainResponse:
    """Return the result of the tries of a group of this one batch. ``drains``: captured changes wait.

    Raises:
        CallError: OVERLOADED, LIMIT_EXCEEDED.
        psycopg.Error: Postgres refused a statement.
    """
    made = sort_out(context, [taken], cache.read)
    if not made.candidates:
        return _answer(context.synced, context.position, made.results[0], {})
    try:
        decided = decide_group(context, Attempt(drains=drains, held=made.held, restarts=1), made.candidates)
    except UndecodableError as error:
        context.synced.unreadable.add(error.table)
        raise CallError(errors_pb2.REASON_OVERLOADED, str(error)) from error
    if decided is None:
        text = "more changes that were made by SQL wait to enter the log than a dry run counts"
        raise CallError(errors_pb2.REASON_OVERLOADED, text)
    [result] = decided.results
    if isinstance(result, Applied) and result.spills:
        # Asking again changes nothing.
        text = "the batch changes more rows beside those that it names than a dry run shows"
        raise CallError(errors_pb2.REASON_LIMIT_EXCEEDED, text)
    answer = _answer(context.synced, context.position, result, decided.progress.rights)
    drained = decided.progress.drained
    answer.undrained = len(drained.ids) if drained is not None else 0
    return answer


def _is_seen(change: Change, rights: Rights | None) -> bool:
    """Whether the sender may see an effect. One that it caused in a row that it may not read, or reads no longer, is
    left out."""
    if change.shown is None:
        return True
    return rights is not None and rights.may_read(change.shown.after or change.shown.before)


def _rejected(batch_id: str, reason: errors_pb2.Reason.ValueType, message: str) -> resolver_pb2.ExplainResponse:
    return resolver_pb2.ExplainResponse(
        verdict=verdict_pb2.Verdict(
            batch_id=batch_id, status=verdict_pb2.VERDICT_STATUS_REJECTED, reason=reason, message=message
        )
    )


def _answer(
    synced: SyncedDatabase, position: int, result: Result, rights: Mapping[str, Rights]
) -> resolver_pb2.ExplainResponse:
    tables, of_batch = synced.tables, rights.get(result.taken.batch_id)
    if isinstance(result, Rejection):
        return resolver_pb2.ExplainResponse(verdict=rejected_verdict(tables, position, result, of_batch))
    if not isinstance(result, Applied):
        verdict = waiting_verdict(result.taken.batch_id)
        return resolver_pb2.ExplainResponse(verdict=verdict, waits_for=result.why)
    decoded = result.candidate.decoded
    keys = decoded.keys
    losers = []
    for conflict in result.decision.conflicts:
        table = tables[conflict.table]
        # A conflict is always about a row that the batch names.
        key: list[value_pb2.Value] = table.key_values(keys[conflict.table, conflict.key])
        losers.append(
            change_pb2.Loser(
                table=conflict.table,
                key=key,
                column=conflict.column,
                value=table.writers[conflict.column](conflict.losing_value),
                batch_id=conflict.losing_batch,
                node_id=conflict.losing_node,
                winner_batch_id=conflict.winning_batch,
            )
        )
    losers += [
        change_pb2.Loser(
            table=lost.table,
            key=tables[lost.table].key_values(keys[lost.table, lost.key]),
            column=lost.former.column.name,
            value=column_writer(lost.former.column)(lost.value),
            batch_id=result.taken.batch_id,
            node_id=result.taken.node_id,
            winner_batch_id=schema_batch_id(lost.former.dropped_position),
            cause=change_pb2.LOSS_CAUSE_COLUMN_DROPPED,
        )
        for lost in decoded.lost
    ]
    return resolver_pb2.ExplainResponse(
        verdict=applied_verdict(tables, position, result, of_batch),
        effects=[change_pb2.Effect.FromString(one.effect.data) for one in result.changes if _is_seen(one, of_batch)],
        losers=losers,
    )
