"""What was caused in one row, as a change of the batch that caused it: from what it was, or what the batch itself had
made of it, to what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from anabranch.merge import MutationType, Policy, RowState, Write, applied
from anabranch.store.group.rows import Row
from anabranch.store.session.engine import Session
from anabranch.values import Cell
from anabranch.values.pieces import whole
from anabranch.wire import effects
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Candidate, Change
from anabranch_conflict_resolver.captured.order import end_to_end
from anabranch_conflict_resolver.captured.server_batches import Step
from anabranch_conflict_resolver.group.tables import SyncedTable
from anabranch_conflict_resolver.group.view import View


class Again(Exception):
    """Rows that were caused have earlier changes that are not drained: start again from the locks."""


class OutOfTurn(Exception):
    """A batch caused a change of a row that a batch of the same group with a higher id had written, or names a row that
    one with a higher id has caused to change: waves had let that one go first, as neither names a row of the other. In
    the log, and for whoever reads it, the order of the ids counts. So the group ends with the batch ``batch_id``."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"{batch_id} comes before what was written already")
        self.batch_id = batch_id


def key_of(step: Step) -> tuple[Cell, ...]:
    """The cells of a changed row's key."""
    row = step.before or step.after
    assert row is not None
    return tuple([row[i] for i in step.table.table.key_index])


def rows_now(
    conn: Session, tables: Mapping[str, SyncedTable], keys: Mapping[RowKey, tuple[Cell, ...]]
) -> dict[RowKey, Row]:
    """The rows as they stand, with a statement for each table; those that are gone are left out."""
    stand: dict[RowKey, Row] = {}
    for name in {name for name, _ in keys}:
        found = tables[name].sql.read(conn, [key for at, key in keys.items() if at[0] == name])()
        stand.update({(name, key): row for key, row in found.items()})
    return stand


def carry_over(
    policy: Policy, view: View, known: View, candidate: Candidate, at: RowKey, steps: Sequence[Step], last: Row | None
) -> Change | None:
    """Carry ``view`` forward over ``steps``, which were caused in one row and led to ``last``; None where they come to
    nothing. ``policy`` is that of the row's table, ``known`` the view that the batch was decided on.

    Raises:
        OutOfTurn: see there.
    """
    of_batch = at in known.rows or at in candidate.decoded.keys
    first = known.rows.get(at) if of_batch else _first(steps, last)
    if first is not None and last is not None:
        # The rules may come to see it.
        first = whole(first)
    return _forward(policy, view, candidate, steps[0].table, at, first, last)


def _first(steps: Sequence[Step], last: Row | None) -> Row | None:
    """What a row was before ``steps``, which led to ``last``."""
    order = end_to_end([step.link for step in steps], [step.depth for step in steps])
    if order is None:
        return steps[0].before
    came_back = steps[order[0]].link[0] == steps[order[-1]].link[1]
    return last if came_back else steps[order[0]].before


def _forward(
    policy: Policy,
    view: View,
    candidate: Candidate,
    table: SyncedTable,
    at: RowKey,
    before: Row | None,
    after: Row | None,
) -> Change | None:
    batch = candidate.batch
    assert batch is not None
    state = view.states.get(at)
    version = state.version if state is not None else None
    if version is not None and version.last_position == batch.position and version.last_batch > batch.id:
        raise OutOfTurn(batch.id)
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
    # Whose write this one overtakes may be asked for later, as after what a batch names itself.
    remember = policy.resurrect or policy.delete == "wins"
    write = Write(at[0], at[1], kind, values, 0, 0, remember=remember)
    view.states[at] = applied(state, batch, write)
    view.changed.add(at)
    return Change(write, effect)
