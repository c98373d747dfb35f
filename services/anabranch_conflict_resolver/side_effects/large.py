"""Logs the changes that a batch caused where they are too many to be held: a delete that cascades over a table, say.

Such changes are logged at once, piece by piece (``captured.pieces``), in the transaction and under the savepoint in
which they were caused, with the ordinals that they have in their batch; of each only its hash is kept (``Spill``). The
histories of their rows are written with them, except for rows that the view of the group has, or that its own batches
touch: those go on there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from anabranch.merge import MutationType
from anabranch.store.group import records as store
from anabranch.store.group.records import LogRow
from anabranch.store.group.versions import insert_versions, update_versions
from anabranch.store.inbox import parking
from anabranch.store.session.at_once import together
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Accepting, Made, Spill
from anabranch_conflict_resolver.batch.shown import add_sums, learn
from anabranch_conflict_resolver.captured.server_batches import Step
from anabranch_conflict_resolver.captured.steps import know
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.setback import Setback
from anabranch_conflict_resolver.group.versions import changed_versions
from anabranch_conflict_resolver.group.view import View
from anabranch_conflict_resolver.side_effects.row import carry_over, key_of, rows_now, touched_rows

PIECE_ROWS = 2_500
"""Rows that are logged at a time."""


def spill(
    context: Context,
    progress: Progress,
    accepting: Accepting,
    made: Made,
    pieces: Iterable[Sequence[Step]],
    *,
    gone: bool,
) -> Setback | None:
    """Log the changes that a batch has caused, which come in ``pieces``, behind those in ``made`` already. ``gone``:
    none of the rows is there any more.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    place = len(made.changes)
    spilled = Spill(place, place + sum(one.count for one in made.spills))
    made.spills.append(spilled)
    for steps in pieces:
        for rows in _by_row(steps):
            setback = _log(context, progress, accepting, spilled, rows, gone=gone)
            if setback is not None:
                return setback
            del rows
        # Not held while the next ones are read.
        del steps
    return None


def _by_row(steps: Sequence[Step]) -> Iterator[Mapping[RowKey, list[Step]]]:
    """Steps by row, some rows at a time."""
    rows: dict[RowKey, list[Step]] = {}
    for step in steps:
        rows.setdefault(step.at, []).append(step)
    of_rows = list(rows.items())
    for first in range(0, len(of_rows), PIECE_ROWS):
        yield dict(of_rows[first : first + PIECE_ROWS])


def _log(
    context: Context,
    progress: Progress,
    accepting: Accepting,
    spilled: Spill,
    rows: Mapping[RowKey, list[Step]],
    *,
    gone: bool,
) -> Setback | None:
    """Log the changes that were caused in ``rows``."""
    conn, synced, tables, view = context.conn, context.synced, context.synced.tables, progress.view
    apart = View()
    held = {at for at in rows if at in view.states or at in progress.touched}
    know(conn, synced, view, held)
    know(conn, synced, apart, rows.keys() - held)
    stand = {} if gone else rows_now(conn, tables, {at: key_of(steps[0]) for at, steps in rows.items()})
    learn(conn, synced.restricted, touched_rows(rows, view, stand))
    log: list[LogRow] = []
    came: list[tuple[int, str]] = []
    taken = accepting.candidate.taken
    for at, steps in rows.items():
        policy = synced.database.table_policy(at[0])
        change = carry_over(policy, view if at in held else apart, view, accepting, at, steps, stand.get(at))
        if isinstance(change, Setback):
            return change
        if change is None:
            continue
        effect, number, seen = change.effect, tables[at[0]].table.id, change.shown
        log.append(
            LogRow(
                taken.batch_id,
                spilled.ordinal + spilled.count + len(log),
                taken.node_id,
                number,
                at[1],
                effect.type,
                effect.data,
                effect.changed,
                effect.hash,
                seen.before if seen is not None else None,
                seen.after if seen is not None else None,
            )
        )
        add_sums(spilled.audience_changes, at[0], seen, effect)
        if change.rows is not None:
            spilled.changed.add(at[0], *change.rows)
        count, total = spilled.sum_changes.get(at[0], (0, 0))
        spilled.sum_changes[at[0]] = (count + effect.count_change, total + effect.hash_change)
        if change.write.type is MutationType.INSERT:
            came.append((number, at[1]))
    spilled.count += len(log)
    spilled.hashes.append(b"".join([row.effect_hash for row in log]))
    begun, changed = changed_versions(tables, apart)
    with together(conn):
        store.write_log(conn, synced.database.id, context.position, log)
        insert_versions(conn, begun)
        update_versions(conn, changed)
        if came:
            parking.free(conn, synced.database.id, decided=(), rows=came)
    return None
