"""One batch that may be a bad one, decided for itself.

It gets every chance: its writes in sets, then mutation by mutation, then row by row, always in its own order; its last
failure is its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from anabranch.merge import Write
from anabranch.store.group.waves import DatabaseError, wave
from anabranch.store.inbox.parking import Parking
from anabranch_conflict_resolver.batch.results import Accepting, Candidate, Made, Rejection, Result, forbidden
from anabranch_conflict_resolver.blame.evidence import LOCK_NOT_AVAILABLE
from anabranch_conflict_resolver.blame.rejections import fault_of, no_effect, refused
from anabranch_conflict_resolver.blame.suspects import Suspects
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.cuts import plans, up_to
from anabranch_conflict_resolver.group.rules import decide, wait
from anabranch_conflict_resolver.group.setback import Setback, Why
from anabranch_conflict_resolver.group.statements import applied_result, try_out
from anabranch_conflict_resolver.side_effects.cascades import write_step


def nothing() -> None:
    """Do nothing: the beginning of a wave whose rows are locked and read already."""


def alone(
    context: Context,
    progress: Progress,
    candidate: Candidate,
    *,
    blame_keys: bool,
    suspects: Suspects | None = None,
) -> Result | Setback:
    """Decide one batch that may be a bad one. Where a write of it is suspected to fail in whatever order, and does,
    nothing else is tried.

    Raises:
        DatabaseError: no batch is at fault.
    """
    accepting = decide(context, progress, candidate)
    if not isinstance(accepting, Accepting):
        return accepting
    batch_id = candidate.taken.batch_id
    ways = plans(candidate, accepting.decision.writes)
    failure: Result | None = None
    for number, steps in enumerate(ways):
        if suspects is not None and batch_id in suspects.batches:
            # A write that surely fails is tried first; one that may fail, in the batch's own order instead of by row.
            first, last = number == 0, number == len(ways) - 1 and failure is not None
            if first if batch_id in suspects.sure else last:
                proof = _proven(context, progress, accepting, suspects, blame_keys=blame_keys)
                if proof is not None:
                    return proof
        outcome = _in_steps(context, progress, accepting, steps, blame_keys=blame_keys)
        if not isinstance(outcome, Rejection):
            return outcome
        failure = outcome
    assert failure is not None
    return failure


def _in_steps(
    context: Context,
    progress: Progress,
    accepting: Accepting,
    steps: Sequence[Sequence[Write]],
    *,
    blame_keys: bool,
) -> Result | Setback:
    """Write an accepted batch in steps; where one of them fails, nothing of it stays."""
    candidate, view = accepting.candidate, progress.view
    trial, made = progress.copy(), Made()
    step: Sequence[Write] = ()
    setback: Setback | None = None
    try:
        with wave(context.conn, context.synced.database.schema_name, nothing) as opened:
            for step in steps:
                setback = write_step(context, trial, accepting, step, made)
                if setback is not None:
                    opened.undo()
                    break
            # A failure from here on is that of a deferred constraint.
            step = accepting.decision.writes
    except DatabaseError as error:
        fault = fault_of(context, error, blame_keys=blame_keys)
        if isinstance(fault, Setback):
            return fault
        if fault.sqlstate == LOCK_NOT_AVAILABLE:
            parking = Parking(candidate.taken.batch_id, context.now_ms + context.busy_ms)
            return wait(view, candidate, parking, "a lock that another session holds")
        return refused(context, view, candidate, step, fault)
    if setback is None:
        progress.become(trial)
        return applied_result(view, accepting, made)
    if setback.why is Why.FORBIDDEN or (setback.why is Why.INEFFECTIVE and context.role):
        write = setback.writes[candidate.taken.batch_id]
        return forbidden(candidate, write, context.synced.tables[write.table].table.sql_name)
    if setback.why is Why.INEFFECTIVE:
        return no_effect(view, candidate, setback.writes[candidate.taken.batch_id])
    return setback


def _proven(
    context: Context, progress: Progress, accepting: Accepting, suspects: Suspects, *, blame_keys: bool
) -> Rejection | Setback | None:
    """Return the result of a batch because of its suspected write: the write is tried behind those before it in the
    batch, and all of them are undone. None where Postgres takes it, or where another failure comes first.

    Raises:
        DatabaseError: no batch is at fault.
    """
    candidate, batch_id = accepting.candidate, accepting.batch.id
    write = suspects.writes[batch_id]
    steps = up_to(candidate, accepting.decision.writes, write)
    if not steps:
        return None
    *before, last = [(accepting, step) for step in steps]
    conn, tables = context.conn, context.synced.tables
    reached = False
    try:
        first = partial(try_out, conn, tables, before, context.role)
        with wave(conn, context.synced.database.schema_name, first) as opened:
            reached = True
            try_out(conn, tables, [last], context.role)
            # Postgres has taken the write that it was expected to refuse.
            opened.undo()
    except DatabaseError as error:
        fault = fault_of(context, error, blame_keys=blame_keys)
        if isinstance(fault, Setback):
            return fault
        if not reached or fault.sqlstate == LOCK_NOT_AVAILABLE:
            return None
        broken = suspects.broken[batch_id]
        as_suspected = fault.sqlstate == broken.sqlstate and broken.constraint in ("", fault.constraint)
        by_itself = batch_id in suspects.sure and as_suspected
        return refused(context, progress.view, candidate, (write,), fault, by_itself=by_itself)
    return None
