"""What the group's own statements caused beside what they named: cascades, and whatever triggers changed.

Such rows are captured in the group's own transaction, and are effects of the batch that caused them: they get further
ordinals in its log entry and count in histories and sums like what it wrote itself. Which batch it was is known by
having it alone between two looks: a batch whose changes can cause others (``loud``) has a wave of its own, and is
decided only when what was caused before it is in the view. Batches that can't share waves as ever.

Most triggers cause nothing that is synced, and most groups hold nothing that cascades. So a group is first run as if
all were quiet, in hope (``hoping``), and one look at its end tells whether anything was caused (``Caused``); only then
it is run again with the loud ones apart, and the next groups are run so at once until nothing was caused any more. A
batch that is alone has caused it all.

A row that a batch named itself and that a trigger changed besides has an effect for each.

Three things are found out late, and each has its way:

* What a constraint trigger that waits does is caused when the constraints are judged, for all batches together. Where
  there were several (``Entangled``), the group is cut down to the first one.
* A caused row may have a captured change of somebody else that was not there when the group drained (``Again``): it
  stands before this one in the order of the row, so the group starts again from the locks, with that row locked, too.
* A table that was taken for quiet may have got a trigger since. ``records`` looks before it commits
  (``CapturedBetween``), and the next try takes every table for loud.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.merge import MutationType, Write
from anabranch.store.capture import captured
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Applied, Candidate, Change, Result
from anabranch_conflict_resolver.captured.dependencies import check_leaned_on
from anabranch_conflict_resolver.captured.server_batches import Step
from anabranch_conflict_resolver.captured.steps import know, steps_of
from anabranch_conflict_resolver.group.context import Group
from anabranch_conflict_resolver.group.statements import carry_out
from anabranch_conflict_resolver.group.view import View
from anabranch_conflict_resolver.side_effects.large import MOST_ARRIVED, check_none_of, spill, with_arrived
from anabranch_conflict_resolver.side_effects.row import carry_over, key_of, rows_now

MOST_HELD = 2_500
"""Captured changes that one step of a batch may cause and that are held until the group is recorded."""
MOST_BYTES = captured.MOST_BYTES
"""The bytes of their images, likewise."""
_INSERT, _UPDATE, _DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE
_BECOMES = {_INSERT: {_INSERT, _UPDATE}, _UPDATE: {_UPDATE}, _DELETE: {_DELETE}}
"""What a mutation is written as: a late insert of a live row is an update."""


class Caused(Exception):
    """Rows were changed by a group that was run as if that could not be."""


class Entangled(Exception):
    """Rows were changed when the constraints were judged, and several batches may have caused it."""


def is_loud(group: Group, candidate: Candidate) -> bool:
    """Whether what a batch writes may change other rows."""
    if group.hoping or not group.loud:
        return False
    return any(
        not _BECOMES[mutation.type].isdisjoint(group.loud.get(mutation.table, ()))
        for mutation in candidate.decoded.mutations
    )


def apart(group: Group, waves: Sequence[list[Candidate]]) -> Sequence[list[Candidate]]:
    """The waves, with each loud batch in one of its own, in the order of the ids within each."""
    if group.hoping or not group.loud:
        return waves
    result: list[list[Candidate]] = []
    for wave in waves:
        quiet: list[Candidate] = []
        for candidate in wave:
            if not is_loud(group, candidate):
                quiet.append(candidate)
                continue
            if quiet:
                result.append(quiet)
                quiet = []
            result.append([candidate])
        if quiet:
            result.append(quiet)
    return result


def write_step(group: Group, view: View, candidate: Candidate, step: Sequence[Write], place: int) -> list[Change]:
    """Write a step of one batch; gives its changes, and those that it caused. ``place``: how many changes the steps
    before it have given.

    Raises:
        Swallowed: a write had no effect.
        psycopg.Error: what Postgres refused.
    """
    changes = carry_out(group.conn, group.synced.tables, view, [(candidate, step)])[0]
    if not is_loud(group, candidate):
        return changes
    return [*changes, *absorb(group, view, candidate, place + len(changes))]


def absorb(group: Group, view: View, candidate: Candidate, place: int) -> list[Change]:
    """Take what was caused since the last look, as changes of ``candidate``: for each row one, from what it was, or
    what the batch itself had made of it, to what it is. Where it is too much to be held it is logged at once (see
    ``side_effects.large``). ``place``: how many changes of the candidate are held that stand before it."""
    number = group.synced.database.id
    own = captured.take_own(group.conn, number, max(group.drained_up_to, group.absorbed_up_to), MOST_HELD, MOST_BYTES)
    if own is None:
        spill(group, view, candidate, place)
        return []
    if not own:
        return []
    rows: dict[RowKey, list[Step]] = {}
    for steps in steps_of(group.conn, group.synced, own).values():
        for step in steps:
            rows.setdefault(step.at, []).append(step)
    know(group.conn, group.synced, view, rows)
    keys = {at: key_of(steps[0]) for at, steps in rows.items()}
    group.caused.update(keys)
    stand = rows_now(group.conn, group.synced.tables, keys)
    policy_of = group.synced.database.table_policy
    changes = [
        carry_over(policy_of(at[0]), view, view, candidate, at, steps, stand.get(at)) for at, steps in rows.items()
    ]
    return [change for change in changes if change is not None]


def finish(group: Group, view: View, results: Sequence[Result]) -> None:
    """When the constraints have been judged: take what that caused; then look whether anything that was caused in this
    group came before its turn.

    Raises:
        Caused, Entangled, Again: see above.
    """
    number, after = group.synced.database.id, max(group.drained_up_to, group.absorbed_up_to)
    if group.loud and captured.ask_for_own(group.conn, number, after).fetchone():
        accepted = [result for result in results if isinstance(result, Applied)]
        if group.hoping and (len(results) != 1 or accepted[0].candidate.decoded.twice):
            raise Caused
        if len(accepted) != 1:
            raise Entangled
        only = accepted[0]
        only.changes = [*only.changes, *absorb(group, view, only.candidate, len(only.changes))]
    group.drained = with_arrived(group.drained, view)
    if group.caused:
        _check_turn(group)
    if group.drained is not None:
        # Where nothing was drained, any change at all is looked for in the end (``records``).
        check_leaned_on(group, view, group.drained, results)


def _check_turn(group: Group) -> None:
    drained = group.drained.ids if group.drained is not None else ()
    rows = captured.read_arrived(group.conn, group.synced.database.id, drained, MOST_ARRIVED)
    check_none_of(group, rows, group.caused)
