"""What the group's own statements caused beside what they named: cascades, and whatever triggers changed.

Such rows are captured in the group's own transaction, and are effects of the batch that caused them: they get further
ordinals in its log entry and count in histories and sums like what it wrote itself. Which batch it was is known by
having it alone between two looks: a batch whose changes can cause others (``loud``) has a wave of its own, and is
decided only when what was caused before it is in the view. Batches that can't share waves as ever.

Most triggers cause nothing that is synced, and most groups hold nothing that cascades. So a group is first run as if
all were quiet, in hope (``hoping``), and one look at its end tells whether anything was caused (``Caused``); only then
it is run again with the loud ones apart, and the next groups are run so at once until nothing was caused any more.

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
from typing import TYPE_CHECKING

from anabranch.merge import MutationType, RowState, Write, applied
from anabranch.schema import Cell
from anabranch.store import captured
from anabranch.store.rows import Row
from anabranch.wire import effects
from anabranch_conflict_resolver.captured_order import end_to_end
from anabranch_conflict_resolver.captured_steps import know, steps_of
from anabranch_conflict_resolver.carry_out import carry_out
from anabranch_conflict_resolver.decode import RowKey
from anabranch_conflict_resolver.model import Applied, Candidate, Change, Result
from anabranch_conflict_resolver.server_batches import Drained, Step
from anabranch_conflict_resolver.tables import SyncedTable
from anabranch_conflict_resolver.view import View

if TYPE_CHECKING:
    from anabranch_conflict_resolver.waves import Group

_MOST_ARRIVED = 1_000
_ANY_SIZE = 2**62
_INSERT, _UPDATE, _DELETE = MutationType.INSERT, MutationType.UPDATE, MutationType.DELETE
_BECOMES = {_INSERT: {_INSERT, _UPDATE}, _UPDATE: {_UPDATE}, _DELETE: {_DELETE}}
"""What a mutation is written as: a late insert of a live row is an update."""


class Caused(Exception):
    """Rows were changed by a group that was run as if that could not be."""


class Entangled(Exception):
    """Rows were changed when the constraints were judged, and several batches may have caused it."""


class Again(Exception):
    """Rows that were caused have earlier changes that are not drained."""


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


def write_step(group: Group, view: View, candidate: Candidate, step: Sequence[Write]) -> list[Change]:
    """Write a step of one batch; gives its changes, and those that it caused.

    Raises:
        Swallowed: a write had no effect.
        psycopg.Error: what Postgres refused.
    """
    changes = carry_out(group.conn, group.synced.tables, view, [(candidate, step)])[0]
    return [*changes, *absorb(group, view, candidate)] if is_loud(group, candidate) else changes


def absorb(group: Group, view: View, candidate: Candidate) -> list[Change]:
    """Take what was caused since the last look, as changes of ``candidate``: for each row one, from what it was, or
    what the batch itself had made of it, to what it is."""
    own = captured.take_own(group.conn, group.synced.database.id, group.drained_up_to)
    if not own:
        return []
    rows: dict[RowKey, list[Step]] = {}
    for steps in steps_of(group.conn, group.synced, own).values():
        for step in steps:
            rows.setdefault(step.at, []).append(step)
    know(group.conn, group.synced, view, rows)
    keys = {at: _key(steps[0]) for at, steps in rows.items()}
    group.caused.update(keys)
    stand: dict[RowKey, Row] = {}
    for name in {name for name, _ in rows}:
        found = group.synced.tables[name].sql.read(group.conn, [key for at, key in keys.items() if at[0] == name])()
        stand.update({(name, key): row for key, row in found.items()})
    changes: list[Change] = []
    for at, steps in rows.items():
        first = view.rows.get(at) if at in view.rows or at in candidate.decoded.keys else _first(steps, stand.get(at))
        change = _forward(view, candidate, steps[0].table, at, keys[at], first, stand.get(at))
        if change is not None:
            changes.append(change)
    return changes


def _key(step: Step) -> tuple[Cell, ...]:
    row = step.before or step.after
    assert row is not None
    return tuple([row[i] for i in step.table.table.key_index])


def _first(steps: Sequence[Step], last: Row | None) -> Row | None:
    """What a row was before ``steps``, which led to ``last``."""
    order = end_to_end([step.link for step in steps], [step.depth for step in steps])
    if order is None:
        return steps[0].before
    came_back = steps[order[0]].link[0] == steps[order[-1]].link[1]
    return last if came_back else steps[order[0]].before


def _forward(
    view: View,
    candidate: Candidate,
    table: SyncedTable,
    at: RowKey,
    key: tuple[Cell, ...],
    before: Row | None,
    after: Row | None,
) -> Change | None:
    """Carry the view forward over what was caused in one row; None where that is nothing."""
    batch = candidate.batch
    assert batch is not None
    state = view.states.get(at)
    version = state.version if state is not None else None
    names, index = table.names, table.table.index
    values: dict[str, Cell] = {}
    if after is None:
        if before is None:
            return None
        kind, effect = MutationType.DELETE, table.effects.delete(before)
        view.rows.pop(at, None)
    elif before is None:
        kind, effect = MutationType.INSERT, table.effects.insert(after)
        values = dict(zip(names, after, strict=True))
        view.rows[at] = after
    else:
        kind, effect = MutationType.UPDATE, table.effects.update(before, after)
        if effect.type == effects.NONE:
            return None
        values = {column: after[index[column]] for column in effect.changed}
        state = RowState(dict(zip(names, before, strict=True)), version)
        view.rows[at] = after
    write = Write(at[0], at[1], kind, values, 0, 0)
    view.states[at] = applied(state, batch, write)
    view.changed.add(at)
    return Change(write, effect)


def finish(group: Group, view: View, results: Sequence[Result]) -> None:
    """When the constraints have been judged: take what that caused; then look whether anything that was caused in this
    group came before its turn.

    Raises:
        Caused, Entangled, Again: see above.
    """
    if group.loud and captured.ask_for_own(group.conn, group.synced.database.id, group.drained_up_to).fetchone():
        if group.hoping:
            raise Caused
        accepted = [result for result in results if isinstance(result, Applied)]
        if len(accepted) != 1:
            raise Entangled
        only = accepted[0]
        only.changes = [*only.changes, *absorb(group, view, only.candidate)]
    if group.caused:
        _check_turn(group)
    if group.drained is not None:
        _check_gone(group, group.drained, results)


def _check_turn(group: Group) -> None:
    drained = set(group.drained.ids) if group.drained is not None else set()
    rows = captured.read(group.conn, group.synced.database.id, _MOST_ARRIVED + len(drained), _ANY_SIZE)
    arrived = [row for row in rows if row.id not in drained]
    if len(arrived) == _MOST_ARRIVED or any(
        step.at in group.caused for steps in steps_of(group.conn, group.synced, arrived).values() for step in steps
    ):
        raise Again


def _check_gone(group: Group, drained: Drained, results: Sequence[Result]) -> None:
    """A row that a batch inserts is locked by nobody before it is there: it may have come and gone again since the
    group drained. Where nothing was drained, any change at all is looked for in the end (``records``)."""
    came = {
        (change.write.table, change.write.key)
        for result in results
        if isinstance(result, Applied)
        for change in result.changes
        if change.write.type is _INSERT
    }
    if not came:
        return
    tables = {group.synced.tables[name].table.id for name, _ in came}
    rows = captured.read_removing(group.conn, group.synced.database.id, tables, drained.ids, _MOST_ARRIVED)
    if len(rows) == _MOST_ARRIVED or any(
        step.at in came for steps in steps_of(group.conn, group.synced, rows).values() for step in steps
    ):
        raise Again
