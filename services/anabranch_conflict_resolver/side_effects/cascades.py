"""Takes the changes that the group's own statements caused beside those that they named: by cascades and by triggers.

Such rows are captured in the group's own transaction, and are effects of the batch that caused them: they get further
ordinals in its log entry and count in histories and sums like its own writes. To know which batch it was, such a batch
is alone between two looks: a batch whose changes can cause others (``Context.may_cause``) has a wave of its own, and is
decided only when the changes caused before it are in the view. Batches that cause none share waves as before.

Most triggers cause nothing that is synced, and most groups hold nothing that cascades. So a group is first tried
optimistically, as if nothing were caused, and one look at its end shows whether anything was (``UNFORESEEN``); only
then it is tried again with such batches apart, and the next groups are tried so at once until nothing was caused any
more. A batch that is alone has caused it all.

A row that a batch named itself and that a trigger changed besides has an effect for each.

Three things are found out late, and each has its way:

* Changes by a deferred constraint trigger are caused when the constraints are judged, for all batches together. Where
  there were several batches (``ENTANGLED``), the group is cut down to the first one.
* A caused row may have a captured change of another session that was not there when the group drained (``OVERTAKEN``):
  it stands before this one in the order of the row, so the group starts again from the locks, with that row locked,
  too.
* A table that was taken to cause nothing may have got a trigger since. ``records`` looks before the group is committed,
  and from then on every table is taken to cause something.

Where caused changes are too many to be held (``large``), the rows are too many to be locked before the group drains, or
to be remembered for a look at its end. So before they are logged the captured changes of others are drained once more:
a session that changed one of the rows before the group caused it to change has committed by then, because the group's
statement had to wait for it, and a session that comes later waits for this transaction. Its batch stands before those
of devices, where it belongs. Only where it changed a row that the group's own batches touch, or where it changed too
many, the group starts again from the locks.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from anabranch.merge import Write
from anabranch.store.capture import captured
from anabranch.store.capture import large as store
from anabranch.store.capture.captured import Captured
from anabranch.store.capture.growth import growth
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Accepting, Applied, Made, Result
from anabranch_conflict_resolver.batch.shown import learn
from anabranch_conflict_resolver.captured.dependencies import needed_by
from anabranch_conflict_resolver.captured.intake import log_rows
from anabranch_conflict_resolver.captured.pieces import in_pieces
from anabranch_conflict_resolver.captured.server_batches import Drained, Step
from anabranch_conflict_resolver.captured.steps import know, steps_of
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.cuts import is_watched
from anabranch_conflict_resolver.group.setback import Setback, Why
from anabranch_conflict_resolver.group.statements import carry_out
from anabranch_conflict_resolver.side_effects.large import spill
from anabranch_conflict_resolver.side_effects.row import carry_over, key_of, rows_now, touched_rows

MOST_HELD = 2_500
"""Captured changes that one step of a batch may cause and that are held until the group is recorded."""
MOST_BYTES = captured.MOST_BYTES
"""The most bytes of the images of these changes."""
MOST_ARRIVED = 1_000
"""Captured changes of others that are looked at once the group has drained."""
_DELETE = 3


def write_step(
    context: Context, progress: Progress, accepting: Accepting, step: Sequence[Write], made: Made
) -> Setback | None:
    """Write a step of one batch, and take the changes it caused where those are watched; both are added to ``made``.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    written = carry_out(
        context.conn,
        context.synced.tables,
        progress.view,
        [(accepting, step)],
        rights=progress.rights,
        role=context.role,
    )
    if isinstance(written, Setback):
        return written
    made.changes += written[0]
    if not is_watched(progress.watched, accepting.candidate):
        return None
    return absorb(context, progress, accepting, made)


def absorb(context: Context, progress: Progress, accepting: Accepting, made: Made) -> Setback | None:
    """Take the changes caused since the last look, as changes of a batch: one for each row, from its state before, or
    from the state that the batch itself had given it, to its state now."""
    conn, synced, view = context.conn, context.synced, progress.view
    own = _take_own(context, progress)
    if own is None:
        return _absorb_large(context, progress, accepting, made)
    if not own:
        return None
    rows: dict[RowKey, list[Step]] = {}
    for steps in steps_of(conn, synced, own).values():
        for step in steps:
            rows.setdefault(step.at, []).append(step)
    know(conn, synced, view, rows)
    keys = {at: key_of(steps[0]) for at, steps in rows.items()}
    progress.caused.update(keys)
    stand = rows_now(conn, synced.tables, keys)
    learn(conn, synced.restricted, touched_rows(rows, view, stand))
    for at, steps in rows.items():
        policy = synced.database.table_policy(at[0])
        change = carry_over(policy, view, view, accepting, at, steps, stand.get(at))
        if isinstance(change, Setback):
            return change
        if change is not None:
            made.changes.append(change)
    return None


def _take_own(context: Context, progress: Progress) -> list[Captured] | None:
    conn, number, after = context.conn, context.synced.database.id, progress.looked_up_to
    if not context.synced.growing:
        return captured.take_own(conn, number, after, MOST_HELD, MOST_BYTES)
    with conn.transaction() as trial:
        own = captured.take_own(conn, number, after, MOST_HELD, MOST_BYTES)
        if own is not None and growth(context.synced.growing, own) > MOST_BYTES:
            # They are put back, and taken piece by piece.
            own, trial.force_rollback = None, True
    return own


def _absorb_large(context: Context, progress: Progress, accepting: Accepting, made: Made) -> Setback | None:
    conn, synced = context.conn, context.synced
    transaction = store.own(conn, context.synced.database.id, progress.absorbed_up_to)
    if transaction is None:
        return None
    before = with_arrived(progress) or Drained((), (), 0)
    rows = captured.read_arrived(conn, context.synced.database.id, before.ids, MOST_ARRIVED)
    if _has_any_of(context, rows, progress.touched | progress.caused.keys()):
        return overtaken(progress)
    progress.arrived = (*progress.arrived, log_rows(context, progress.view, rows, first=len(before.batches)))
    gone = transaction.once and transaction.least == _DELETE
    setback = spill(context, progress, accepting, made, in_pieces(conn, synced, transaction), gone=gone)
    progress.absorbed_up_to = max(progress.absorbed_up_to, transaction.last)
    return setback


def finish(context: Context, progress: Progress, results: Sequence[Result]) -> list[Result] | Setback:
    """When the constraints have been judged: take the changes that this caused; then check whether any caused change of
    this group came before its turn, or depends on changes of others. Gives the results as they are then.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    results = list(results)
    number = context.synced.database.id
    if context.may_cause and captured.ask_for_own(context.conn, number, progress.looked_up_to).fetchone():
        accepted = [(place, result) for place, result in enumerate(results) if isinstance(result, Applied)]
        if not progress.watched and (len(results) != 1 or accepted[0][1].candidate.decoded.twice):
            return Setback(Why.UNFORESEEN)
        if len(accepted) != 1:
            return Setback(Why.ENTANGLED)
        [(place, only)] = accepted
        made = Made(list(only.changes), list(only.spills))
        setback = absorb(context, progress, only.accepting, made)
        if setback is not None:
            return setback
        results[place] = replace(only, changes=made.changes, spills=made.spills)
    progress.drained, progress.arrived = with_arrived(progress), ()
    drained = progress.drained.ids if progress.drained is not None else ()
    if progress.caused:
        rows = captured.read_arrived(context.conn, number, drained, MOST_ARRIVED)
        if _has_any_of(context, rows, progress.caused):
            return overtaken(progress)
    # Where nothing was drained, any change at all is looked for in the end (``records``).
    if progress.drained is not None and _needed(context, progress, drained, results):
        return overtaken(progress)
    return results


def overtaken(progress: Progress) -> Setback:
    """Return the setback of a try that changes of others have overtaken, where it can't take them in any more."""
    return Setback(Why.OVERTAKEN, caused=dict(progress.caused))


def with_arrived(progress: Progress) -> Drained | None:
    """The changes that the try has drained, with those that it drained later."""
    drained = progress.drained
    if not progress.arrived:
        return drained
    all_of_it = ([drained] if drained is not None else []) + list(progress.arrived)
    batches = [batch for one in all_of_it for batch in one.batches]
    # Changes that the group's own statements cause have greater numbers than those that were there at its first drain.
    return Drained(batches, [n for one in all_of_it for n in one.ids], drained.up_to if drained is not None else 0)


def _arrived_steps(context: Context, rows: Sequence[Captured]) -> list[Step] | None:
    """The captured changes of others, of which ``MOST_ARRIVED`` are read at most; None where they are too many to be
    looked at."""
    size = captured.size(rows) + growth(context.synced.growing, rows)
    if len(rows) >= MOST_ARRIVED or size > captured.MOST_BYTES:
        return None
    return [step for steps in steps_of(context.conn, context.synced, rows).values() for step in steps]


def _has_any_of(context: Context, rows: Sequence[Captured], keys: Container[RowKey]) -> bool:
    """Whether captured changes of others are of one of these rows, or too many to be looked at."""
    steps = _arrived_steps(context, rows)
    return steps is None or any(step.at in keys for step in steps)


def _needed(context: Context, progress: Progress, drained: Sequence[int], results: Sequence[Result]) -> bool:
    """Whether batches of the group depend on changes since it drained, or those are too many to be looked at."""
    conn, number = context.conn, context.synced.database.id
    if not captured.read_arrived(conn, number, drained, 1):
        return False
    needed = needed_by(context.synced, progress.view, progress.caused, results)
    there, free = needed.tables()
    if not there and not free:
        return False
    steps = _arrived_steps(context, captured.read_depended_on(conn, number, there, free, drained, MOST_ARRIVED))
    return steps is None or needed.need_any(steps)
