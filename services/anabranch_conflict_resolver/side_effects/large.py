"""What a batch caused where it is too much to be held: a delete that cascades over a table, for one.

Such changes are logged at once, piece by piece (``captured.pieces``), in the transaction and under the savepoint in
which they were caused, with the ordinals that they have in their batch; of each only its hash is kept (``Spill``). The
histories of their rows are written with them, except for rows that the view of the group has, or that its own batches
touch: those go on there.

The rows are too many to be locked before the group drains, or to be remembered for a look at its end. So before they
are logged what was captured of others is drained once more: whoever changed one of the rows before it was caused to
change has committed by then, because that had to wait for him, and whoever comes later waits for this transaction. His
batch stands before those of devices, where it belongs. Only where he changed a row that the group's own batches touch,
or where there is too much of it, the group starts again from the locks.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

from anabranch.merge import MutationType
from anabranch.store.capture import captured, large
from anabranch.store.capture.captured import Captured
from anabranch.store.group import records as store
from anabranch.store.group.records import LogRow
from anabranch.store.inbox import take
from anabranch.store.session.at_once import together
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.batch.results import Candidate, Spill
from anabranch_conflict_resolver.captured.drain import log_rows
from anabranch_conflict_resolver.captured.pieces import PIECE_ROWS, by_row, in_capture_order
from anabranch_conflict_resolver.captured.server_batches import Drained, Step
from anabranch_conflict_resolver.captured.steps import know, steps_of
from anabranch_conflict_resolver.group.context import Group
from anabranch_conflict_resolver.group.records import changed_versions
from anabranch_conflict_resolver.group.view import View
from anabranch_conflict_resolver.side_effects.row import Again, carry_over, key_of, rows_now

MOST_ARRIVED = 1_000
"""Captured changes of others that are looked at once the group has drained."""
_DELETE = 3


def spill(group: Group, view: View, candidate: Candidate, place: int) -> None:
    """Take what was caused since the last look as effects of ``candidate``, and log it. ``place``: how many changes of
    the candidate are held that stand before it.

    Raises:
        Again: others have changed what the group was decided on.
        psycopg.Error: what Postgres refused.
    """
    conn, synced = group.conn, group.synced
    transaction = large.own(conn, synced.database.id, group.absorbed_up_to)
    if transaction is None:
        return
    _drain_arrived(group, view)
    made = Spill(place, place + sum(one.count for one in candidate.spills))
    candidate.spills.append(made)
    cut = in_capture_order if transaction.once else by_row
    gone = transaction.once and transaction.least == _DELETE
    for steps in cut(conn, synced, transaction):
        for rows in _pieces(steps):
            _log(group, view, candidate, made, rows, gone=gone)
    group.absorbed_up_to = max(group.absorbed_up_to, transaction.last)


def with_arrived(drained: Drained | None, view: View) -> Drained | None:
    """What a group has drained, with what it drained later."""
    if not view.arrived:
        return drained
    all_of_it = ([drained] if drained is not None else []) + list(view.arrived)
    batches = [batch for one in all_of_it for batch in one.batches]
    # What the group's own statements cause has greater numbers than what was there when it drained first.
    return Drained(batches, [n for one in all_of_it for n in one.ids], drained.up_to if drained is not None else 0)


def arrived_steps(group: Group, rows: Sequence[Captured]) -> list[Step]:
    """What captured changes of others did, of which ``MOST_ARRIVED`` are read at most.

    Raises:
        Again: they are too many to be looked at.
    """
    if len(rows) >= MOST_ARRIVED or captured.size(rows) > captured.MOST_BYTES:
        raise Again
    return [step for steps in steps_of(group.conn, group.synced, rows).values() for step in steps]


def check_none_of(group: Group, rows: Sequence[Captured], keys: Container[RowKey]) -> None:
    """Look at captured changes of others.

    Raises:
        Again: they are of rows that may have none, or too many to be looked at.
    """
    if any(step.at in keys for step in arrived_steps(group, rows)):
        raise Again


def _drain_arrived(group: Group, view: View) -> None:
    """Drain what others have committed since the group drained."""
    conn, synced = group.conn, group.synced
    before = with_arrived(group.drained, view) or Drained((), (), 0)
    rows = captured.read_arrived(conn, synced.database.id, before.ids, MOST_ARRIVED)
    check_none_of(group, rows, group.touched | group.caused.keys())
    view.arrived = (*view.arrived, log_rows(group, view, rows, first=len(before.batches)))


def _pieces(steps: Sequence[Step]) -> Iterator[Mapping[RowKey, list[Step]]]:
    """Steps by row, some rows at a time."""
    rows: dict[RowKey, list[Step]] = {}
    for step in steps:
        rows.setdefault(step.at, []).append(step)
    of_rows = list(rows.items())
    for first in range(0, len(of_rows), PIECE_ROWS):
        yield dict(of_rows[first : first + PIECE_ROWS])


def _log(
    group: Group, view: View, candidate: Candidate, made: Spill, rows: Mapping[RowKey, list[Step]], *, gone: bool
) -> None:
    """Log what was caused in ``rows``. ``gone``: none of them is there any more."""
    conn, synced, tables = group.conn, group.synced, group.synced.tables
    apart = View()
    held = {at for at in rows if at in view.states or at in group.touched}
    know(conn, synced, view, held)
    know(conn, synced, apart, rows.keys() - held)
    stand = {} if gone else rows_now(conn, tables, {at: key_of(steps[0]) for at, steps in rows.items()})
    log: list[LogRow] = []
    came: list[tuple[int, str]] = []
    batch_id, node_id = candidate.taken.batch_id, candidate.taken.node_id
    for at, steps in rows.items():
        policy = group.synced.database.table_policy(at[0])
        change = carry_over(policy, view if at in held else apart, view, candidate, at, steps, stand.get(at))
        if change is None:
            continue
        effect, number = change.effect, tables[at[0]].table.id
        log.append(
            LogRow(
                batch_id,
                made.ordinal + made.count + len(log),
                node_id,
                number,
                at[1],
                effect.type,
                effect.data,
                effect.changed,
                effect.hash,
            )
        )
        count, total = made.sum_changes.get(at[0], (0, 0))
        made.sum_changes[at[0]] = (count + effect.count_change, total + effect.hash_change)
        if change.write.type is MutationType.INSERT:
            came.append((number, at[1]))
    made.count += len(log)
    made.hashes.append(b"".join([row.effect_hash for row in log]))
    begun, changed = changed_versions(tables, apart)
    with together(conn):
        store.write_log(conn, synced.database.id, group.position, log)
        store.insert_versions(conn, begun)
        store.update_versions(conn, changed)
        if came:
            take.free(conn, synced.database.id, decided=(), rows=came)
