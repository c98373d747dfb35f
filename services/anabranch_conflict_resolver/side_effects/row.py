"""The caused change of one row, as a change of the batch that caused it: from the row's state before, or from the state
that the batch itself had given it, to its state now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anabranch.merge import Batch, MutationType, Policy, RowState, Write, applied
from anabranch.store.group.rows import Row
from anabranch.store.session.engine import Session
from anabranch.values import Cell
from anabranch.values.pieces import whole
from anabranch.wire import effects
from anabranch.wire.effects import Effect
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Accepting, Change
from anabranch_conflict_resolver.batch.shown import shown
from anabranch_conflict_resolver.captured.order import end_to_end
from anabranch_conflict_resolver.captured.server_batches import Step, rows_of
from anabranch_conflict_resolver.group.setback import Setback, Why
from anabranch_conflict_resolver.group.table import SyncedTable
from anabranch_conflict_resolver.group.view import View


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


def touched_rows(
    rows: Mapping[RowKey, Sequence[Step]], known: View, stand: Mapping[RowKey, Row]
) -> Iterator[tuple[str, Row | None]]:
    """All rows that ``carry_over`` may begin or end with, each with its table's name."""
    for at in rows:
        yield at[0], known.rows.get(at)
        yield at[0], stand.get(at)
    yield from rows_of(step for steps in rows.values() for step in steps)


def carry_over(
    policy: Policy, view: View, known: View, accepting: Accepting, at: RowKey, steps: Sequence[Step], last: Row | None
) -> Change | Setback | None:
    """Carry ``view`` forward over ``steps``, which were caused in one row and led to ``last``; None where they come to
    nothing, a setback where the batch is out of turn. ``policy`` is that of the row's table, ``known`` the view that
    the batch was decided on."""
    of_batch = at in known.rows or at in accepting.candidate.decoded.keys
    first = known.rows.get(at) if of_batch else _first(steps, last)
    if first is not None and last is not None:
        # The rules may come to see it.
        first = whole(first)
    return _forward(policy, view, accepting.batch, steps[0].table, at, first, last)


def _first(steps: Sequence[Step], last: Row | None) -> Row | None:
    """The row as it was before ``steps``, which led to ``last``."""
    order = end_to_end([step.link for step in steps], [step.depth for step in steps])
    if order is None:
        return steps[0].before
    came_back = steps[order[0]].link[0] == steps[order[-1]].link[1]
    return last if came_back else steps[order[0]].before


def _forward(
    policy: Policy,
    view: View,
    batch: Batch,
    table: SyncedTable,
    at: RowKey,
    before: Row | None,
    after: Row | None,
) -> Change | Setback | None:
    state = view.states.get(at)
    version = state.version if state is not None else None
    if version is not None and version.last_position == batch.position and version.last_batch > batch.id:
        return Setback(Why.OUT_OF_TURN, frozenset({batch.id}))
    names, index = table.names, table.table.index
    logged: Effect
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
    logged, seen = shown(table.audiences, table.effects, before, after, effect)
    view.note_audiences(at, seen, there=after is not None)
    # The rules may later ask whose write this one overtakes, as after a write that a batch names itself.
    remember = policy.resurrect or policy.delete == "wins"
    write = Write(at[0], at[1], kind, values, 0, 0, remember=remember)
    view.states[at] = applied(state, batch, write)
    view.changed.add(at)
    return Change(write, logged, seen, (before, after) if table.gives_audiences else None)
