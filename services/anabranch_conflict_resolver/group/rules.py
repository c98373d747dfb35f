"""Asks the rules about a batch, on the group's view as carried forward so far. No statement is run here."""

from __future__ import annotations

from anabranch.limits import BATCH_EXPIRY_MS
from anabranch.merge import Accepted, Asked, Batch, Parked, Rejected, resolve
from anabranch.store.inbox.parking import Parking
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.batch.carried import without_gone
from anabranch_conflict_resolver.batch.results import Accepting, Candidate, Rejection, Waiting
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.functions.ask import PutOff, Unanswered, with_answers
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.seen import refusal, seen_states
from anabranch_conflict_resolver.group.setback import Setback, Why
from anabranch_conflict_resolver.group.view import View


def decide(context: Context, progress: Progress, candidate: Candidate) -> Accepting | Rejection | Waiting | Setback:
    """Return the rules' decision on a batch, with all that were decided before it in the view. It may be out of turn: a
    change that a batch with a higher id has caused stands in its way."""
    view = progress.view
    taken, decoded = candidate.taken, candidate.decoded
    node, batch_id = taken.node_id, taken.batch_id
    if (progress.caused or progress.absorbed_up_to) and _out_of_turn(context, view, candidate):
        return Setback(Why.OUT_OF_TURN, frozenset({batch_id}))
    if view.busy and not view.busy.isdisjoint(decoded.keys):
        return wait(
            view, candidate, Parking(batch_id, context.now_ms + context.busy_ms), "a row that another session holds"
        )
    if candidate.may_wait and taken.prev in view.held:
        parking = Parking(batch_id, taken.arrived_ms + context.park_ms, taken.prev)
        return wait(view, candidate, parking, taken.prev or "")
    before = _pending_before(progress, candidate) if candidate.may_await_row else None
    batch = Batch(
        batch_id,
        node,
        # No node has seen the changes that are being decided now, whatever basis it claims.
        min(taken.basis, context.position - 1),
        decoded.time_ms,
        context.position,
        candidate.place,
        decoded.mutations,
        before is not None,
    )
    rights = progress.rights.get(batch_id)
    states = seen_states(view, candidate, rights, context.synced.database.restricted)
    decision = resolve(batch, states, context.synced.database.table_policy)
    if isinstance(decision, Accepted):
        return _allowed(context, view, Accepting(candidate, batch, without_gone(decoded, decision)), rights)
    if isinstance(decision, Asked):
        answered = with_answers(context.asking, context.synced, batch, states, decision)
        if isinstance(answered, PutOff):
            parking = Parking(batch_id, context.now_ms + context.busy_ms)
            return wait(view, candidate, parking, "a merge function that has no time yet")
        if isinstance(answered, Unanswered):
            return _unanswered(context, view, candidate, answered)
        if isinstance(answered, Accepted):
            return _allowed(context, view, Accepting(candidate, batch, without_gone(decoded, answered)), rights)
        decision = answered
    if isinstance(decision, Parked):
        table = context.synced.tables[decision.table].table
        # Looked at once more at the park time: from then on no batch waits for it any longer.
        most_ms = context.park_ms if candidate.may_wait else BATCH_EXPIRY_MS
        parking = Parking(batch_id, taken.arrived_ms + most_ms, before, table.id, decision.key)
        return wait(view, candidate, parking, f"row {decision.key} of {table.sql_name}, or batch {before}")
    return _rejection(view, candidate, decision)


def _allowed(context: Context, view: View, accepting: Accepting, rights: Rights | None) -> Accepting | Rejection:
    return refusal(context.synced, view, accepting, rights) or accepting


def _out_of_turn(context: Context, view: View, candidate: Candidate) -> bool:
    """Whether a higher id has changed a row that the batch names: such a row was changed without being named."""
    for at in candidate.decoded.keys:
        state = view.states.get(at)
        version = state.version if state is not None else None
        if version is None or version.last_position != context.position:
            continue
        if version.last_batch > candidate.taken.batch_id:
            return True
    return False


def wait(view: View, candidate: Candidate, parking: Parking, why: str) -> Waiting:
    """The batch waits, and so do those that wait for it."""
    view.held[candidate.taken.batch_id] = candidate.taken.node_id
    return Waiting(candidate.taken, parking, why)


def _pending_before(progress: Progress, candidate: Candidate) -> str | None:
    """An earlier batch of the node that has no verdict yet."""
    node, batch_id = candidate.taken.node_id, candidate.taken.batch_id
    for earlier in (progress.missing.get(node), progress.pending.get(node)):
        if earlier is not None and earlier < batch_id:
            return earlier
    if not progress.view.held:
        return None
    return next((held for held, of in progress.view.held.items() if of == node and held < batch_id), None)


MESSAGES = {
    errors_pb2.REASON_ROW_EXISTS: "the row exists already",
    errors_pb2.REASON_ROW_DELETED: "another node deleted the row",
    errors_pb2.REASON_ROW_NOT_FOUND: "there is no such row",
    errors_pb2.REASON_ALREADY_DELETED: "the row was deleted already",
    errors_pb2.REASON_CONCURRENT_UPDATE: "another node changed the row, unseen by this one",
}
"""The words of a rejection by the rules that has none of its own."""


def _rejection(view: View, candidate: Candidate, decision: Rejected) -> Rejection:
    at = (decision.table, decision.key)
    reason = errors_pb2.Reason.ValueType(decision.reason)
    return Rejection(
        candidate.taken,
        int(decision.reason),
        decision.text or MESSAGES[reason],
        decision.mutation,
        decision.table,
        candidate.decoded.keys[at],
        decision.columns,
        view.rows.get(at),
        sqlstate=decision.sqlstate,
    )


def _unanswered(context: Context, view: View, candidate: Candidate, unanswered: Unanswered) -> Rejection:
    question = unanswered.question
    column = context.synced.tables[question.table].table.by_name[question.column].sql_name
    at = (question.table, question.key)
    return Rejection(
        candidate.taken,
        errors_pb2.REASON_MERGE_FUNCTION,
        f'merge function "{question.function}" of column "{column}": {unanswered.why}',
        question.mutation,
        question.table,
        candidate.decoded.keys[at],
        (question.column,),
        view.rows.get(at),
    )
