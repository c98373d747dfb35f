"""From candidates to results: the locks, the rules, the tables, and what to do when the database says no."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from anabranch.store.group.waves import DatabaseError, locked_tables, wave
from anabranch.store.inbox import take
from anabranch.store.inbox.take import Parking
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Candidate, Rejection, Result
from anabranch_conflict_resolver.blame.bisect import (
    FAILURES,
    Mistaken,
    Outdated,
    fault_of,
    no_effect,
    pick_out,
    set_apart,
)
from anabranch_conflict_resolver.blame.evidence import LOCK_NOT_AVAILABLE
from anabranch_conflict_resolver.captured.drain import drain
from anabranch_conflict_resolver.group.context import Group
from anabranch_conflict_resolver.group.statements import Swallowed
from anabranch_conflict_resolver.group.view import View, load_view
from anabranch_conflict_resolver.group.waves import levels, run_wave, wait
from anabranch_conflict_resolver.side_effects.cascades import Caused, Entangled, apart, finish
from anabranch_conflict_resolver.side_effects.row import Again, OutOfTurn

FOREIGN_KEY_VIOLATION = "23503"


class _CompanyError(Exception):
    """The group is to end before any row is touched again."""


@dataclass(slots=True)
class Decided:
    """The results of the candidates, of each node's perhaps only up to some point, and the view carried forward over
    them."""

    results: list[Result]
    view: View


def decide_group(group: Group, candidates: Sequence[Candidate], *, at_hand: Sequence[str], restarts: int) -> Decided:
    """Decide the candidates, which stand in the order of their ids, and write what is accepted.

    First all of them together, in as few waves as can be, under one savepoint that also holds the rows' locks: rows
    that are locked outside of a savepoint and written inside cost Postgres a multixact each. Only when that fails, or
    where the last group had bad ones, they are looked for: the quick way (``set_apart``), and where that does not work
    out, the long one (``pick_out``). Where one of them is, or may be, bad only for the company it came in
    (``_in_company``), the group ends before any row is touched again: what is left gets no result and stays in the
    inbox for the next group.

    ``at_hand``: the ids of all batches that were taken. ``restarts``: how often to start again where a primary key was
    there that the view did not have; after that it is the batch's fault.

    Raises:
        DatabaseError: nobody's data is at fault; roll back and try again.
    """
    refused: list[Result] = []
    left = _before_touched_again(candidates, group.synced.once_a_group)
    schema = group.synced.database.schema_name
    again = 0
    quick, picking = True, False
    # Each round ends the loop, takes a batch away, or is counted; after one that fails, the next may pick.
    while left:
        looking = quick and group.poisoned and len(left) > 1
        picks, picking = picking, False
        try:
            with wave(group.conn, schema, partial(_load, group, left), judged=not picks) as view:
                _ask_pending(group, view, left, at_hand)
                if picks:
                    results = pick_out(group, view, left, blame_keys=restarts <= 0)
                elif looking:
                    results = set_apart(group, view, left, blame_keys=restarts <= 0)
                else:
                    parts = apart(group, levels(left))
                    results = [r for part in parts for r in run_wave(group, view, part, last=part is parts[-1])]
                if (picks or looking) and _in_company(left, results):
                    raise _CompanyError
                finish(group, view, results)
            group.poisoned = any(isinstance(r, Rejection) and r.reason in FAILURES for r in results)
            return Decided(refused + results, view)
        except Mistaken:
            quick = False
        except _CompanyError:
            left = levels(left)[0]
        except Outdated:
            # Whoever came between was captured, if it was not by a batch.
            restarts -= 1
            group.draining = True
        except Caused:
            group.hoping = False
        except Entangled:
            left = left[:1]
        except OutOfTurn as late:
            left = _up_to(left, late.batch_id)
        except Again:
            again += 1
            if again > _AGAIN_AT_MOST:
                return _put_off(group, left, refused)
            _from_the_locks(group)
        except Swallowed as swallowed:
            if group.hoping and group.loud:
                # A row may be gone by what another batch has caused, which nobody has looked at yet.
                group.hoping = False
                continue
            for candidate in left:
                write = swallowed.culprits.get(candidate.taken.batch_id)
                if write is not None:
                    refused.append(no_effect(View(), candidate, write))
            left = [c for c in left if c.taken.batch_id not in swallowed.culprits]
        except DatabaseError as error:
            if picks:
                raise
            if held := _of_locked_tables(group, left, error):
                refused += [_rest(group, candidate, "a table that somebody else has locked") for candidate in held]
                left = [c for c in left if c.taken.batch_id not in group.held]
                continue
            group.hoping = False
            try:
                fault = fault_of(group, error, blame_keys=restarts <= 0)
            except Outdated:
                restarts -= 1
                group.draining = True
                continue
            if quick and not looking and len(left) > 1 and fault.sqlstate != LOCK_NOT_AVAILABLE:
                group.poisoned = True
            else:
                quick, picking = False, True
    return Decided(refused, _load(group, ()))


_AGAIN_AT_MOST = 5


def _from_the_locks(group: Group) -> None:
    """Have the group drain what has come, and lock the rows that were caused."""
    group.draining = True
    group.lock_too.update(group.caused)


def _put_off(group: Group, candidates: Sequence[Candidate], results: Sequence[Result]) -> Decided:
    """The candidates rest for a moment: what they cause is changed by others too often now, for which nobody is to
    blame. What was drained is recorded all the same."""
    group.lock_too = {}
    resting = [_rest(group, c, "rows that it changes beside its own, and others at the same time") for c in candidates]
    return Decided([*results, *resting], _load(group, ()))


def _rest(group: Group, candidate: Candidate, why: str) -> Result:
    """The candidate rests as long as one whose row is busy, and so do those that wait for it."""
    taken = candidate.taken
    group.held[taken.batch_id] = taken.node_id
    return wait(View(), candidate, Parking(taken.batch_id, group.now_ms + group.busy_ms), why)


def _up_to(candidates: Sequence[Candidate], batch_id: str) -> list[Candidate]:
    """The candidates without those that come after a batch: they are for the next group."""
    return [c for c in candidates if c.taken.batch_id <= batch_id]


def _of_locked_tables(group: Group, candidates: Sequence[Candidate], error: DatabaseError) -> list[Candidate]:
    """Where a statement waited too long for a lock: the candidates that touch a table which somebody has locked as a
    whole. They fail for as long as that lasts, and would take all others of their groups with them."""
    if error.sqlstate != LOCK_NOT_AVAILABLE:
        return []
    locked = locked_tables(group.conn, group.synced.database.schema_name)
    return [c for c in candidates if any(table in locked for table, _ in c.decoded.keys)]


def _before_touched_again(candidates: Sequence[Candidate], tables: frozenset[str]) -> list[Candidate]:
    """The candidates without those that touch a row of ``tables`` after another, and without what follows them of
    their nodes."""
    if not tables:
        return list(candidates)
    kept: list[Candidate] = []
    touched: set[RowKey] = set()
    ended: set[str] = set()
    for candidate in candidates:
        rows = {at for at in candidate.decoded.keys if at[0] in tables}
        if candidate.taken.node_id in ended or not touched.isdisjoint(rows):
            ended.add(candidate.taken.node_id)
        else:
            kept.append(candidate)
        touched |= rows
    return kept


def _in_company(candidates: Sequence[Candidate], results: Sequence[Result]) -> bool:
    """Whether a batch was refused for a foreign key after others of the group touched its rows.

    Postgres holds a row that its own transaction has written before to its foreign keys anew, also to references that
    nobody changed and that were never good (``not valid``). First on its rows, the same batch might be accepted.
    """
    refused = {
        r.taken.batch_id
        for r in results
        if isinstance(r, Rejection) and r.sqlstate == FOREIGN_KEY_VIOLATION and not r.by_itself
    }
    touched: set[RowKey] = set()
    for candidate in candidates if refused else ():
        if candidate.taken.batch_id in refused and not touched.isdisjoint(candidate.decoded.keys):
            return True
        touched.update(candidate.decoded.keys)
    return False


def _load(group: Group, candidates: Sequence[Candidate]) -> View:
    keys: dict[RowKey, tuple[Cell, ...]] = {}
    leaned_on: set[RowKey] = set()
    for candidate in candidates:
        keys.update(candidate.decoded.keys)
        if candidate.decoded.leaning:
            leaned_on.update(candidate.decoded.keys)
    new = keys.keys() - leaned_on
    keys.update(group.lock_too)
    group.caused = {}
    group.touched = keys.keys()
    view = load_view(group.conn, group.synced.tables, keys, new=new)
    if group.draining:
        group.drained = drain(group, view, keys.keys())
    view.held.update(group.held)
    return view


def _ask_pending(group: Group, view: View, candidates: Sequence[Candidate], at_hand: Sequence[str]) -> None:
    """Ask which earlier batches are still to come, of the nodes whose batches lean on rows that aren't there."""
    leaning = {
        c.taken.node_id
        for c in candidates
        if c.decoded.leaning and c.may_await_row and not c.decoded.keys.keys() <= view.states.keys()
    }
    if not leaning:
        return
    conn, database_id = group.conn, group.synced.database.id
    group.pending = take.earliest_pending(conn, database_id, leaning, at_hand)
    # Named as the one before, by a batch of the group or by one that was decided without it.
    of_nodes = [c.taken for c in candidates if c.taken.node_id in leaning]
    named = {(t.node_id, i) for t in of_nodes for i in (None if t.prev_decided else t.prev, t.missing) if i}
    named = {(node_id, batch_id) for node_id, batch_id in named if batch_id not in at_hand}
    if named:
        undecided = take.undecided(conn, database_id, {batch_id for _, batch_id in named})
        # The earliest of each node stands last, and stays.
        group.missing = {n: i for n, i in sorted(named, reverse=True) if i in undecided}
