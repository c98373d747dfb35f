"""Tries of a group: from candidates to results, by the locks, the rules and the tables.

First all of them together, in as few waves as can be, under one savepoint that also holds the rows' locks: rows that
are locked outside of a savepoint and written inside cost Postgres a multixact each. Only when that fails, or where the
last group had bad ones, they are looked for: the quick way (``_set_apart``), and where that fails, the long one
(``_one_by_one``). ``next_try`` says which try follows which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from anabranch.store.group.waves import DatabaseError, judge, locked_tables, wave
from anabranch.store.inbox import neighbours
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Candidate, Result
from anabranch_conflict_resolver.batch.rights import Rights
from anabranch_conflict_resolver.blame.alone import alone, nothing
from anabranch_conflict_resolver.blame.bisect import bisect
from anabranch_conflict_resolver.blame.evidence import LOCK_NOT_AVAILABLE
from anabranch_conflict_resolver.blame.keys import refused_keys
from anabranch_conflict_resolver.blame.rejections import any_failed, fault_of
from anabranch_conflict_resolver.blame.suspects import Suspects, is_as_sure, stages, suspects_of
from anabranch_conflict_resolver.captured.drain import drain
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.cuts import at_once, in_order, in_waves
from anabranch_conflict_resolver.group.next_try import Attempt, Retry, Tried, is_in_company, next_try
from anabranch_conflict_resolver.group.rights import rights_of
from anabranch_conflict_resolver.group.seen import learn_expected
from anabranch_conflict_resolver.group.setback import Setback, Why
from anabranch_conflict_resolver.group.view import load_view
from anabranch_conflict_resolver.group.waves import run_waves
from anabranch_conflict_resolver.side_effects.cascades import finish


@dataclass(frozen=True, slots=True)
class Decided:
    """The results of the candidates, of each node's perhaps only up to some point, and what the last try has done.
    ``any_bad``: some of them broke a constraint."""

    results: list[Result]
    progress: Progress
    any_bad: bool


def decide_group(context: Context, attempt: Attempt, batches: Sequence[Candidate]) -> Decided | None:
    """Decide the batches, which stand in the order of their ids, and write those that are accepted. A batch that is
    left gets no result and stays in the inbox for the next group. None where more captured changes wait than a group
    takes that has batches.

    Raises:
        DatabaseError: no batch is at fault; roll back and try again.
    """
    done: list[Result] = []
    left: Sequence[Candidate] = at_once(batches, context.synced.once_a_group)
    while True:
        outcome = run(context, attempt, left)
        if isinstance(outcome, Decided):
            return Decided(done + outcome.results, outcome.progress, outcome.any_bad)
        if outcome.why is Why.TOO_MUCH_CAPTURED:
            return None
        done += outcome.results
        attempt, left = outcome.attempt, outcome.left


def run(context: Context, attempt: Attempt, batches: Sequence[Candidate]) -> Decided | Retry:
    """Try once. Nothing of it is left where it is to be tried again.

    Raises:
        DatabaseError: no batch is at fault; roll back and try again.
    """
    outcome: Decided | Setback
    if not batches:
        progress = _load(context, attempt, ())
        outcome = progress if isinstance(progress, Setback) else Decided([], progress, attempt.expects_bad)
    else:
        loaded = False
        try:
            first, judged = partial(_load, context, attempt, batches), not attempt.one_by_one
            with wave(context.conn, context.synced.database.schema_name, first, judged=judged) as opened:
                loaded = True
                outcome = _decide(context, attempt, batches, opened.begun)
                if isinstance(outcome, Setback):
                    opened.undo()
        except DatabaseError as error:
            keys = {} if loaded else refused_keys(context, batches, error)
            if keys:
                outcome = Setback(Why.KEYS_REFUSED, frozenset(keys), keys=keys)
            elif attempt.one_by_one:
                raise
            else:
                outcome = _setback_of(context, attempt, batches, error)
    if isinstance(outcome, Decided):
        return outcome
    until_ms = context.now_ms + context.busy_ms
    called = {name: synced.table.sql_name for name, synced in context.synced.tables.items()}
    return next_try(Tried(attempt, batches, outcome, bool(context.may_cause), until_ms, bool(context.role), called))


def _decide(
    context: Context, attempt: Attempt, batches: Sequence[Candidate], progress: Progress | Setback
) -> Decided | Setback:
    if isinstance(progress, Setback):
        return progress
    _ask_pending(context, progress, batches)
    looking = attempt.one_by_one or attempt.looks_first(batches)
    if attempt.one_by_one:
        results = _one_by_one(context, progress, batches, blame_keys=attempt.blames_keys)
    elif looking:
        results = _set_apart(context, progress, batches, blame_keys=attempt.blames_keys)
    else:
        results = run_waves(context, progress, in_waves(batches, progress.watched), last=True)
    if isinstance(results, Setback):
        return results
    if looking and is_in_company(batches, results):
        return Setback(Why.IN_COMPANY)
    results = finish(context, progress, results)
    return results if isinstance(results, Setback) else Decided(results, progress, any_failed(results))


def _set_apart(
    context: Context, progress: Progress, candidates: Sequence[Candidate], *, blame_keys: bool
) -> list[Result] | Setback:
    """The quick way to the bad ones: those that are surely bad are left out, the others are written together as if none
    was bad, and then each that was left out is tried, for Postgres to say no.

    The result is the same as in the order of the ids. A batch that is refused in whatever order leaves nothing that
    others could see, before it or after it; and a batch that touches one of its rows comes after it all the same.

    Raises:
        DatabaseError: it has to be done the long way, or no batch is at fault.
    """
    suspects = suspects_of(context, progress, candidates, apart=False)
    results: list[Result] = []
    for suspected, part in stages(candidates, suspects, loose=True):
        if not suspected:
            written = run_waves(context, progress, in_waves(part, progress.watched))
            if isinstance(written, Setback):
                return written
            results += written
            continue
        refused = _each_alone(context, progress, part, suspects, blame_keys=blame_keys, sure=True)
        if isinstance(refused, Setback):
            return refused
        results += refused
    judge(context.conn)
    return results


def _one_by_one(
    context: Context, progress: Progress, candidates: Sequence[Candidate], *, blame_keys: bool
) -> list[Result] | Setback:
    """The long way, for candidates that have failed together: those that a set query suspects each alone, the others
    together, and by halves where that fails.

    Raises:
        DatabaseError: no batch is at fault.
    """
    suspects = suspects_of(context, progress, candidates, apart=True)
    found = suspects if suspects.batches and len(candidates) > 1 else None
    halves = partial(
        bisect,
        together=partial(_together, context, progress, blame_keys=blame_keys),
        alone=partial(alone, context, progress, blame_keys=blame_keys),
        any_failed=any_failed,
    )
    if found is None:
        return halves(candidates, failed=True)
    results: list[Result] = []
    for suspected, part in stages(candidates, found):
        if not suspected:
            decided = halves(part, failed=False)
            if isinstance(decided, Setback):
                return decided
            results += decided
            continue
        refused = _each_alone(context, progress, part, found, blame_keys=blame_keys)
        if isinstance(refused, Setback):
            return refused
        results += refused
    return results


def _each_alone(
    context: Context,
    progress: Progress,
    candidates: Sequence[Candidate],
    suspects: Suspects,
    *,
    blame_keys: bool,
    sure: bool = False,
) -> list[Result] | Setback:
    """Try the candidates one after the other, until one is set back, or, where all are ``sure`` to be bad, is not."""
    results: list[Result] = []
    for one in candidates:
        result = alone(context, progress, one, blame_keys=blame_keys, suspects=suspects)
        if isinstance(result, Setback):
            return result
        if sure and not is_as_sure(suspects, result):
            return Setback(Why.MISJUDGED)
        results.append(result)
    return results


def _together(
    context: Context, progress: Progress, candidates: Sequence[Candidate], *, blame_keys: bool
) -> list[Result] | Setback:
    """Run candidates in waves that keep their order; nothing is left of them where they are set back.

    Raises:
        DatabaseError: no batch is at fault.
    """
    trial = progress.copy()
    try:
        with wave(context.conn, context.synced.database.schema_name, nothing) as opened:
            results = run_waves(context, trial, in_order(candidates, progress.watched))
            if isinstance(results, Setback):
                opened.undo()
    except DatabaseError as error:
        fault = fault_of(context, error, blame_keys=blame_keys)
        return fault if isinstance(fault, Setback) else Setback(Why.REFUSED)
    if not isinstance(results, Setback):
        progress.become(trial)
    return results


def _setback_of(context: Context, attempt: Attempt, batches: Sequence[Candidate], error: DatabaseError) -> Setback:
    """Judge a refusal of a try's statement by Postgres.

    Raises:
        DatabaseError: no batch is at fault.
    """
    if error.sqlstate == LOCK_NOT_AVAILABLE:
        # A batch that touches a table that another session has locked as a whole fails for as long as that lasts, and
        # the whole group would fail with it.
        locked = locked_tables(context.conn, context.synced.database.schema_name)
        names = {name for name, synced in context.synced.tables.items() if synced.table.sql_name in locked}
        held = [c.taken.batch_id for c in batches if any(table in names for table, _ in c.decoded.keys)]
        if held:
            return Setback(Why.TABLE_LOCKED, frozenset(held))
    fault = fault_of(context, error, blame_keys=attempt.blames_keys)
    if isinstance(fault, Setback):
        return fault
    return Setback(Why.REFUSED, waited=fault.sqlstate == LOCK_NOT_AVAILABLE)


def _load(context: Context, attempt: Attempt, candidates: Sequence[Candidate]) -> Progress | Setback:
    """Begin a try: lock and read the rows, and drain the waiting captured changes behind the locks."""
    keys: dict[RowKey, tuple[Cell, ...]] = {}
    expecting: set[RowKey] = set()
    for candidate in candidates:
        keys.update(candidate.decoded.keys)
        if candidate.decoded.expects_rows:
            expecting.update(candidate.decoded.keys)
    new = keys.keys() - expecting
    keys.update(attempt.lock_too)
    view = load_view(context.conn, context.synced.tables, keys, new=new)
    drained = None
    if attempt.drains:
        drained = drain(context, view, keys.keys())
        if drained is None:
            return Setback(Why.TOO_MUCH_CAPTURED)
    view.held.update(attempt.held)
    watched = {} if attempt.optimistic else context.may_cause
    rights: Mapping[str, Rights] = {}
    if context.synced.restricted:
        changed = drained is not None and any(one.changed for one in drained.batches)
        rights = rights_of(context, candidates, memberships_changed=changed)
        learn_expected(context.conn, context.synced, view, candidates)
    return Progress(view, watched, keys.keys(), drained=drained, rights=rights)


def _ask_pending(context: Context, progress: Progress, candidates: Sequence[Candidate]) -> None:
    """Ask which earlier batches are still to come, of the nodes whose batches update or delete rows that aren't
    there."""
    states = progress.view.states.keys()
    expecting = {
        c.taken.node_id
        for c in candidates
        if c.decoded.expects_rows and c.may_await_row and not c.decoded.keys.keys() <= states
    }
    if not expecting:
        return
    conn, database_id, at_hand = context.conn, context.synced.database.id, context.at_hand
    progress.pending = neighbours.earliest_pending(conn, database_id, expecting, at_hand)
    # Named as the one before, by a batch of the group or by one that was decided without it.
    of_nodes = [c.taken for c in candidates if c.taken.node_id in expecting]
    named = {(t.node_id, i) for t in of_nodes for i in (None if t.prev_decided else t.prev, t.missing) if i}
    named = {(node_id, batch_id) for node_id, batch_id in named if batch_id not in at_hand}
    if named:
        undecided = neighbours.undecided(conn, database_id, {batch_id for _, batch_id in named})
        # The earliest of each node stands last, and stays.
        progress.missing = {n: i for n, i in sorted(named, reverse=True) if i in undecided}
