"""Waves: which batches of a group are applied together, and what the rules and the tables say of them.

Two ways to cut a group into waves:

* ``levels``, tried first: a batch goes into the first wave after all that touched one of its rows, and never before an
  earlier batch of its node. A hot row costs a wave for each of its batches, and the other batches none. Batches of
  different nodes may change places; where that matters to a constraint, the group fails and is cut the other way.
* ``runs``: consecutive batches by id, as long as none touches a row already touched.

A batch that touches a row twice has statements of its own, one for each mutation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from anabranch.limits import BATCH_EXPIRY_MS
from anabranch.merge import Accepted, Asked, Batch, Outcome, Parked, Rejected, Write, resolve
from anabranch.store.group.rows import Row
from anabranch.store.group.waves import judge
from anabranch.store.inbox.take import Parking
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Applied, Candidate, Change, Rejection, Result, Waiting
from anabranch_conflict_resolver.functions.ask import PutOff, Unanswered, with_answers
from anabranch_conflict_resolver.group.context import Group
from anabranch_conflict_resolver.group.statements import Job, carry_out
from anabranch_conflict_resolver.group.view import View
from anabranch_conflict_resolver.side_effects.cascades import is_loud, write_step
from anabranch_conflict_resolver.side_effects.row import OutOfTurn


def levels(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """The candidates, which stand in the order of their ids, in waves."""
    waves: list[list[Candidate]] = []
    last_of_row: dict[RowKey, int] = {}
    last_of_node: dict[str, int] = {}
    for candidate in candidates:
        keys = candidate.decoded.keys
        node = candidate.taken.node_id
        level = last_of_node.get(node, 0)
        if not last_of_row.keys().isdisjoint(keys):
            level = max(level, *(last_of_row.get(at, -1) + 1 for at in keys))
        last_of_row.update(dict.fromkeys(keys, level))
        last_of_node[node] = level
        while len(waves) <= level:
            waves.append([])
        waves[level].append(candidate)
    return waves


def runs(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """The candidates, which stand in the order of their ids, in waves that keep this order."""
    waves: list[list[Candidate]] = []
    touched: set[RowKey] = set()
    for candidate in candidates:
        if not waves or not touched.isdisjoint(candidate.decoded.keys):
            waves.append([])
            touched.clear()
        touched.update(candidate.decoded.keys)
        waves[-1].append(candidate)
    return waves


def run_wave(group: Group, view: View, wave: Sequence[Candidate], *, last: bool = False) -> list[Result]:
    """Decide the batches of a wave and write what is accepted; ``view`` is carried forward. ``last``: the constraints
    that wait are judged, too.

    Raises:
        Swallowed: a write had no effect.
        psycopg.Error: what Postgres refused.
    """
    results: list[Result] = []
    accepted: list[tuple[Candidate, Accepted]] = []
    for candidate in wave:
        decided = decide(group, view, candidate)
        if isinstance(decided, Accepted):
            accepted.append((candidate, decided))
        else:
            results.append(decided)
    steps = {
        c: by_mutation(decision.writes) if c.decoded.twice else [decision.writes]
        for c, decision in accepted
        if c.decoded.twice or is_loud(group, c)
    }
    together: list[Job] = [(c, decision.writes) for c, decision in accepted if c not in steps]
    conn, tables = group.conn, group.synced.tables
    at_end = partial(judge, conn) if last else None
    changes = dict(
        zip(
            [c for c, _ in together],
            carry_out(conn, tables, view, together, None if steps else at_end),
            strict=True,
        )
    )
    for candidate, of_batch in steps.items():
        changes[candidate] = []
        for step in of_batch:
            changes[candidate] += write_step(group, view, candidate, step, len(changes[candidate]))
    if steps and at_end:
        carry_out(conn, tables, view, [], at_end)
    results += [applied_result(view, candidate, decision, changes[candidate]) for candidate, decision in accepted]
    return results


def applied_result(view: View, candidate: Candidate, decision: Accepted, changes: Sequence[Change]) -> Applied:
    """The result of a batch that was carried out."""
    superseded: dict[int, Row | None] = {
        number: view.rows.get((outcome.table, outcome.key))
        for number, outcome in enumerate(decision.outcomes)
        if outcome.outcome is Outcome.SUPERSEDED
    }
    return Applied(candidate, decision, changes, superseded)


def by_mutation(writes: Sequence[Write]) -> list[list[Write]]:
    """The writes of a batch in steps: one for each mutation, and a further one where it touches a row again."""
    steps: list[list[Write]] = []
    touched: set[str] = set()
    mutation = -1
    for write in writes:
        if write.mutation != mutation or write.key in touched:
            steps.append([])
            touched.clear()
            mutation = write.mutation
        touched.add(write.key)
        steps[-1].append(write)
    return steps


def decide(group: Group, view: View, candidate: Candidate) -> Accepted | Rejection | Waiting:
    """What the rules say of a batch, with all that were decided before it in ``view``.

    Raises:
        OutOfTurn: what a batch with a higher id has caused stands in its way.
    """
    taken, decoded = candidate.taken, candidate.decoded
    node, batch_id = taken.node_id, taken.batch_id
    if group.caused or group.absorbed_up_to:
        _check_turn(group, view, candidate)
    if view.busy and not view.busy.isdisjoint(decoded.keys):
        return wait(view, candidate, Parking(batch_id, group.now_ms + group.busy_ms), "a row that somebody else holds")
    if candidate.may_wait and taken.prev in view.held:
        parking = Parking(batch_id, taken.arrived_ms + group.park_ms, taken.prev)
        return wait(view, candidate, parking, taken.prev or "")
    before = _pending_before(group, view, candidate) if candidate.may_await_row else None
    candidate.spills = []
    candidate.batch = Batch(
        batch_id,
        node,
        # Nobody has seen what is being decided now, whatever a node says of itself.
        min(taken.basis, group.position - 1),
        decoded.time_ms,
        group.position,
        candidate.place,
        decoded.mutations,
        before is not None,
    )
    decision = resolve(candidate.batch, view.states, group.synced.database.table_policy)
    if isinstance(decision, Accepted):
        return decision
    if isinstance(decision, Asked):
        answered = with_answers(group.asking, group.synced, candidate.batch, view.states, decision)
        if isinstance(answered, PutOff):
            parking = Parking(batch_id, group.now_ms + group.busy_ms)
            return wait(view, candidate, parking, "a merge function that has no time yet")
        if isinstance(answered, Unanswered):
            return _unanswered(view, candidate, answered)
        if isinstance(answered, Accepted):
            return answered
        decision = answered
    if isinstance(decision, Parked):
        number = group.synced.tables[decision.table].table.id
        # Looked at once more at the park time: from then on nobody waits for it any longer.
        most_ms = group.park_ms if candidate.may_wait else BATCH_EXPIRY_MS
        parking = Parking(batch_id, taken.arrived_ms + most_ms, before, number, decision.key)
        return wait(view, candidate, parking, f"row {decision.key} of {decision.table}, or batch {before}")
    return _rejection(view, candidate, decision)


def _check_turn(group: Group, view: View, candidate: Candidate) -> None:
    """Who touches a row comes after the lower ids that do, except for rows that are changed without being named."""
    for at in candidate.decoded.keys:
        state = view.states.get(at)
        version = state.version if state is not None else None
        if version is None or version.last_position != group.position:
            continue
        if version.last_batch > candidate.taken.batch_id:
            raise OutOfTurn(candidate.taken.batch_id)


def wait(view: View, candidate: Candidate, parking: Parking, why: str) -> Waiting:
    """The batch waits, and so do those that wait for it."""
    view.held[candidate.taken.batch_id] = candidate.taken.node_id
    return Waiting(candidate.taken, parking, why)


def _pending_before(group: Group, view: View, candidate: Candidate) -> str | None:
    """An earlier batch of the node that has no verdict yet."""
    node, batch_id = candidate.taken.node_id, candidate.taken.batch_id
    for earlier in (group.missing.get(node), group.pending.get(node)):
        if earlier is not None and earlier < batch_id:
            return earlier
    if not view.held:
        return None
    return next((held for held, of in view.held.items() if of == node and held < batch_id), None)


_MESSAGES = {
    errors_pb2.REASON_ROW_EXISTS: "the row exists already",
    errors_pb2.REASON_ROW_DELETED: "another node deleted the row",
    errors_pb2.REASON_ROW_NOT_FOUND: "there is no such row",
    errors_pb2.REASON_ALREADY_DELETED: "the row was deleted already",
    errors_pb2.REASON_CONCURRENT_UPDATE: "another node changed the row, unseen by this one",
}


def _rejection(view: View, candidate: Candidate, decision: Rejected) -> Rejection:
    at = (decision.table, decision.key)
    reason = errors_pb2.Reason.ValueType(decision.reason)
    return Rejection(
        candidate.taken,
        int(decision.reason),
        decision.text or _MESSAGES[reason],
        decision.mutation,
        decision.table,
        candidate.decoded.keys[at],
        decision.columns,
        view.rows.get(at),
        sqlstate=decision.sqlstate,
    )


def _unanswered(view: View, candidate: Candidate, unanswered: Unanswered) -> Rejection:
    question = unanswered.question
    at = (question.table, question.key)
    return Rejection(
        candidate.taken,
        errors_pb2.REASON_MERGE_FUNCTION,
        f'merge function "{question.function}" of column "{question.column}": {unanswered.why}',
        question.mutation,
        question.table,
        candidate.decoded.keys[at],
        (question.column,),
        view.rows.get(at),
    )
