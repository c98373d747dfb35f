"""Decides a whole batch."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from anabranch.merge.forward import applied
from anabranch.merge.model import (
    Accepted,
    Answers,
    Asked,
    Batch,
    Conflict,
    Decision,
    MutationOutcome,
    MutationType,
    Outcome,
    Parked,
    Policy,
    Question,
    Rejected,
    RejectionReason,
    RowState,
    View,
    Write,
)
from anabranch.merge.rows import Refusal, rule

_INSERT, _UPDATE = MutationType.INSERT, MutationType.UPDATE
_APPLIED = Outcome.APPLIED
_NO_ANSWERS: Answers = MappingProxyType({})


def resolve(batch: Batch, view: View, policy_of: Callable[[str], Policy], answers: Answers = _NO_ANSWERS) -> Decision:
    """The decision on ``batch``: all of it, or none.

    ``view`` maps (table, key text) to the row as it stands, with every batch decided before carried forward
    (``applied``); a row that is missing in it is unknown. ``policy_of`` gives the policy of a table by name. Neither is
    changed. The mutations are taken in their order, each on the rows as the earlier ones of the batch left them, so
    that a row may be deleted, inserted anew and updated in one batch. The first that is refused decides: ``Rejected``,
    or ``Parked`` where it depends on a row that an earlier batch of the node, still without a verdict, may bring;
    without such a batch the row can't come, and the batch is rejected at once, ``ROW_NOT_FOUND``.

    Where functions of the application decide columns, the decision is ``Asked`` until ``answers`` has their results,
    because the rules run no functions. A row that waits for an answer is carried forward as if the incoming value
    stood, and asks no further question until it has the answer.

    An inserted row, and an updated one without unseen writes of others or own later ones, is taken as a whole; only
    other rows are judged column by column.
    """
    writes: list[Write] = []
    outcomes: list[MutationOutcome] = []
    conflicts: list[Conflict] = []
    touched: dict[tuple[str, str], tuple[RowState | None, Write]] = {}
    questions: dict[tuple[str, str], list[Question]] = {}
    batch_id, node, basis = batch.id, batch.node, batch.basis
    for number, mutation in enumerate(batch.mutations):
        table, kind = mutation.table, mutation.type
        policy = policy_of(table)
        policies = policy.columns
        remember = policy.resurrect or policy.delete == "wins"
        strongest, deciding, columns = _APPLIED, "", ()  # type: tuple[Outcome, str, tuple[str, ...]]
        for row, change in enumerate(mutation.rows):
            key = change.key
            at = (table, key)
            earlier = touched.get(at)
            state = view.get(at) if earlier is None else applied(earlier[0], batch, earlier[1])
            write: Write | None = None
            if state is None:
                if kind is _INSERT:
                    write = Write(table, key, _INSERT, change.values, number, row, remember=remember)
            elif (
                kind is _UPDATE
                and state.values is not None
                and (not policies or policies.keys().isdisjoint(change.values))
            ):
                version = state.version
                if version is None or (
                    version.other_position <= basis and version.last_batch <= batch_id
                    if version.last_node == node
                    else version.last_position <= basis
                ):
                    write = Write(table, key, _UPDATE, change.values, number, row, remember=remember)
            if write is None:
                ruling = rule(batch, policy, kind, change, state, answers.get((number, row)))
                if isinstance(ruling, Refusal):
                    return _refused(batch, ruling, number, table, key)
                if ruling.questions and at not in questions:
                    questions[at] = [Question(number, row, q[0], table, key, *q[1:]) for q in ruling.questions]
                write = Write(
                    table,
                    key,
                    ruling.type,
                    ruling.values,
                    number,
                    row,
                    ruling.late_insert,
                    ruling.defaults,
                    ruling.kept,
                    remember,
                )
                if ruling.outcome > strongest:
                    strongest, deciding, columns = ruling.outcome, key, ruling.columns
                conflicts += [
                    Conflict(table, key, loss.column, loss.value, *loss.losing, *loss.winning) for loss in ruling.losses
                ]
            touched[at] = (state, write)
            writes.append(write)
        if strongest is _APPLIED:
            deciding = mutation.rows[0].key if mutation.rows else ""
        outcomes.append(MutationOutcome(strongest, table, deciding, columns))
    if questions:
        return Asked([question for of_row in questions.values() for question in of_row])
    return Accepted(writes, outcomes, conflicts)


def _refused(batch: Batch, refusal: Refusal, mutation: int, table: str, key: str) -> Decision:
    if refusal.reason is not None:
        return Rejected(refusal.reason, mutation, table, key, refusal.columns, refusal.sqlstate, refusal.text)
    if batch.earlier_pending:
        return Parked(table, key)
    return Rejected(RejectionReason.ROW_NOT_FOUND, mutation, table, key)
