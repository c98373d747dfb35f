"""From a group that failed as a whole to the batches that are to blame.

Halves are tried under a savepoint each, in the order of the ids, so that a few bad batches cost a few times the group
and not a statement for every batch in it. Whatever was kept before has been carried forward: every batch is resolved
against what is then there. A batch that fails alone gets every chance: its writes in sets, then mutation by mutation,
then row by row, always in its own order; what it fails with last is its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from anabranch.merge import Accepted, MutationType, Write
from anabranch.store.group.waves import DatabaseError, judge, wave
from anabranch.store.inbox.take import Parking
from anabranch.store.session.errors import Fault, Remedy, read_error
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.batch.results import Candidate, Change, Rejection, Result
from anabranch_conflict_resolver.blame.evidence import LOCK_NOT_AVAILABLE
from anabranch_conflict_resolver.blame.refusal_words import column_of, message
from anabranch_conflict_resolver.blame.suspects import Suspects, stages, suspects_of
from anabranch_conflict_resolver.group.context import Group
from anabranch_conflict_resolver.group.statements import Swallowed, try_out
from anabranch_conflict_resolver.group.view import View
from anabranch_conflict_resolver.group.waves import applied_result, by_mutation, decide, levels, run_wave, runs, wait
from anabranch_conflict_resolver.side_effects.cascades import apart, write_step


def _nothing() -> None:
    """What a wave begins with whose rows are locked and read already."""


class Outdated(Exception):
    """A primary key was there that the view does not have: somebody wrote in between."""


def fault_of(group: Group, error: DatabaseError, *, blame_keys: bool) -> Fault:
    """What a failed statement on the synced tables means. ``blame_keys``: a duplicate primary key is the batch's fault.

    Raises:
        DatabaseError: nobody's data is at fault; roll back and try again.
        Outdated: start again from the locks.
    """
    fault = read_error(error, primary_keys=() if blame_keys else group.synced.primary_keys)
    if fault.remedy is Remedy.RESTART:
        raise Outdated from error
    if fault.remedy is Remedy.RETRY and (fault.sqlstate != LOCK_NOT_AVAILABLE or fault.raised):
        # A function that says of itself that it waited for a lock may say so for ever.
        raise error
    return fault


def pick_out(group: Group, view: View, candidates: Sequence[Candidate], *, blame_keys: bool) -> list[Result]:
    """Decide candidates that have failed together: those that a set query suspects each alone, the others together.
    Raises as ``isolate``."""
    suspects = suspects_of(group, view, candidates, apart=True)
    if not suspects.batches or len(candidates) == 1:
        return isolate(group, view, candidates, failed=True, blame_keys=blame_keys)
    results: list[Result] = []
    for suspected, part in stages(candidates, suspects):
        if suspected:
            results += [alone(group, view, one, blame_keys=blame_keys, suspects=suspects) for one in part]
        else:
            results += isolate(group, view, part, failed=False, blame_keys=blame_keys)
    return results


class Mistaken(Exception):
    """Somebody who was surely bad is not, or is for another reason, so that others may have been written too early."""


def set_apart(group: Group, view: View, candidates: Sequence[Candidate], *, blame_keys: bool) -> list[Result]:
    """The quick way of ``pick_out``: those that are surely bad are left out, the others are written together as if none
    was bad, and then each that was left out is tried, for Postgres to say no.

    That gives what the order of the ids does. Of a batch that is refused in whatever order nothing is there for others
    to see, before it or after it; and whoever touches one of its rows comes after it all the same.

    Raises:
        Mistaken, Swallowed, DatabaseError: it has to be done the long way, and all of it is to be undone.
        Outdated: a duplicate primary key, unless ``blame_keys``.
    """
    suspects = suspects_of(group, view, candidates, apart=False)
    results: list[Result] = []
    for suspected, part in stages(candidates, suspects, loose=True):
        if not suspected:
            results += [r for level in apart(group, levels(part)) for r in run_wave(group, view, level)]
            continue
        for one in part:
            result = alone(group, view, one, blame_keys=blame_keys, suspects=suspects)
            if one.taken.batch_id in suspects.sure and not (isinstance(result, Rejection) and result.by_itself):
                raise Mistaken
            results.append(result)
    judge(group.conn)
    return results


def isolate(
    group: Group, view: View, candidates: Sequence[Candidate], *, failed: bool, blame_keys: bool
) -> list[Result]:
    """Decide candidates that may have bad ones among them. ``failed``: they have failed together already.

    Raises:
        DatabaseError: nobody's data is at fault.
        Outdated: a duplicate primary key, unless ``blame_keys``.
    """
    if not candidates:
        return []
    if len(candidates) == 1:
        return [alone(group, view, candidates[0], blame_keys=blame_keys)]
    if not failed:
        trial = view.copy()
        try:
            with wave(group.conn, group.synced.database.schema_name, _nothing):
                results = [r for part in apart(group, runs(candidates)) for r in run_wave(group, trial, part)]
            view.become(trial)
            return results
        except Swallowed:
            pass
        except DatabaseError as error:
            fault_of(group, error, blame_keys=blame_keys)
    middle = len(candidates) // 2
    first = isolate(group, view, candidates[:middle], failed=False, blame_keys=blame_keys)
    # Where nothing went wrong in the first half, it will in the second.
    clean = not any(isinstance(r, Rejection) and r.reason in FAILURES for r in first)
    second = isolate(group, view, candidates[middle:], failed=clean, blame_keys=blame_keys)
    return first + second


FAILURES = frozenset({errors_pb2.REASON_CONSTRAINT, errors_pb2.REASON_NO_EFFECT, errors_pb2.REASON_FORBIDDEN})


def alone(
    group: Group, view: View, candidate: Candidate, *, blame_keys: bool, suspects: Suspects | None = None
) -> Result:
    """Decide one batch that may be a bad one. Where a write of it is suspected to fail in whatever order, and does,
    nothing else is tried. Raises as ``isolate``."""
    decision = decide(group, view, candidate)
    if not isinstance(decision, Accepted):
        return decision
    batch_id = candidate.taken.batch_id
    ways = plans(candidate, decision.writes)
    failure: Result | None = None
    for number, steps in enumerate(ways):
        if suspects is not None and batch_id in suspects.batches:
            # What surely fails is tried first; what perhaps does, in the batch's own order instead of row by row.
            first, last = number == 0, number == len(ways) - 1 and failure is not None
            if first if batch_id in suspects.sure else last:
                proof = _proven(group, view, candidate, decision.writes, suspects, blame_keys=blame_keys)
                if proof is not None:
                    return proof
        trial = view.copy()
        changes: list[Change] = []
        candidate.spills = []
        step: Sequence[Write] = ()
        try:
            with wave(group.conn, group.synced.database.schema_name, _nothing):
                for step in steps:
                    changes += write_step(group, trial, candidate, step, len(changes))
                # Whatever fails from here on is a constraint that had waited.
                step = decision.writes
            view.become(trial)
            return applied_result(view, candidate, decision, changes)
        except Swallowed as swallowed:
            failure = no_effect(view, candidate, swallowed.culprits[candidate.taken.batch_id])
        except DatabaseError as error:
            fault = fault_of(group, error, blame_keys=blame_keys)
            if fault.sqlstate == LOCK_NOT_AVAILABLE:
                parking = Parking(candidate.taken.batch_id, group.now_ms + group.busy_ms)
                return wait(view, candidate, parking, "a lock that somebody else holds")
            failure = _refused(group, view, candidate, step, fault)
    assert failure is not None
    return failure


def _proven(
    group: Group, view: View, candidate: Candidate, writes: Sequence[Write], suspects: Suspects, *, blame_keys: bool
) -> Rejection | None:
    """What becomes of a batch because of its suspected write: it is tried behind what stands before it in the batch,
    and nothing of that stays. None where Postgres takes it, or where something else is in the way. Raises as
    ``isolate``."""
    batch_id = candidate.taken.batch_id
    write = suspects.writes[batch_id]
    steps = up_to(candidate, writes, write)
    if not steps:
        return None
    *before, last = [(candidate, step) for step in steps]
    conn, tables = group.conn, group.synced.tables
    reached = False
    try:
        with wave(conn, group.synced.database.schema_name, partial(try_out, conn, tables, before)):
            reached = True
            try_out(conn, tables, [last])
            raise _TakenError
    except _TakenError:
        return None
    except DatabaseError as error:
        fault = fault_of(group, error, blame_keys=blame_keys)
        if not reached or fault.sqlstate == LOCK_NOT_AVAILABLE:
            return None
        refused = _refused(group, view, candidate, (write,), fault)
        broken = suspects.broken[batch_id]
        refused.by_itself = batch_id in suspects.sure and fault.sqlstate == broken.sqlstate
        refused.by_itself &= broken.constraint in ("", fault.constraint)
        return refused


class _TakenError(Exception):
    """Postgres has taken what it was to refuse: it is undone."""


def up_to(candidate: Candidate, writes: Sequence[Write], write: Write) -> list[Sequence[Write]]:
    """A batch's writes up to one of them, in steps of which it is the last. None where it is not among them."""
    for i, one in enumerate(writes):
        if one == write:
            before = writes[:i]
            steps: list[Sequence[Write]] = [*by_mutation(before)] if candidate.decoded.twice else [before]
            return [step for step in (*steps, [write]) if step]
    return []


def plans(candidate: Candidate, writes: Sequence[Write]) -> list[list[Sequence[Write]]]:
    """The ways to cut a batch's writes into steps, from the coarsest to the finest; equal ones once."""
    mutations = by_mutation(writes)
    ways: list[list[Sequence[Write]]] = [] if candidate.decoded.twice else [[writes]]
    if not ways or len(mutations) > 1:
        ways.append(list(mutations))
    if len(writes) > len(mutations):
        ways.append([[write] for write in writes])
    return ways


def no_effect(view: View, candidate: Candidate, write: Write) -> Rejection:
    """The rejection of a batch with a write that changed nothing."""
    verb = {MutationType.INSERT: "insert", MutationType.UPDATE: "update", MutationType.DELETE: "delete"}
    message = (
        f"the {verb[write.type]} changed nothing: a trigger or rule of the table swallowed it" if write.type else ""
    )
    return _rejection(view, candidate, errors_pb2.REASON_NO_EFFECT, message, write, exact=True)


def _refused(group: Group, view: View, candidate: Candidate, step: Sequence[Write], fault: Fault) -> Rejection:
    write = next((write for write in step if write.table == fault.table), step[0])
    if fault.reason is None:
        raise AssertionError("only who is blamed is rejected")
    column = column_of(group, write, fault)
    said = message(group, write, fault, column)
    rejection = _rejection(view, candidate, int(fault.reason), said, write, exact=len(step) == 1)
    if column:
        rejection.columns = (column,)
    rejection.constraint, rejection.sqlstate = fault.constraint, fault.sqlstate
    return rejection


def _rejection(view: View, candidate: Candidate, reason: int, message: str, write: Write, *, exact: bool) -> Rejection:
    """A rejection because of ``write``; its row is named where it is known to be the one (``exact``)."""
    at = (write.table, write.key)
    rejection = Rejection(candidate.taken, reason, message, write.mutation, write.table)
    if exact:
        rejection.key, rejection.server_row = candidate.decoded.keys[at], view.rows.get(at)
    return rejection
