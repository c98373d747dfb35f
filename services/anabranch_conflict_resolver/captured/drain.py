"""Captured changes become batches of the node "server": what a group drains before it decides its own batches.

State model of a captured row: *unseen* (its transaction has not committed) or *waiting* (committed, in the table
``captured``) until a group takes it, *drained* inside that group's transaction, and gone with its commit. Rows of one
transaction become visible together, and are drained together, as one batch; a group that is rolled back leaves them
waiting.

Why this gives every row's changes in the order in which they were made: whoever changes a row holds its lock until the
end of the transaction, so that of two transactions that changed the same row the second one's change of it was captured
after all that the first one captured. Transactions are therefore drained in the order of their *last* captured row,
and none is drained while an earlier one in this order waits. Inside a transaction the images tell (``captured.order``).

The read comes after the locks of the rows that the group's own batches touch: who had changed one of them has committed
by then, with what was captured, or still holds it, and then the batch waits. So what those batches are judged against
has every change that stands before theirs.

What waits is taken whole where it is little (``MOST_ROWS``). Where it is more (``Backlog``) the group leaves its
batches alone and drains as many whole transactions as fit; one that is larger by itself is taken in pieces
(``captured.backlog``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from anabranch.merge import RowState
from anabranch.store.capture import captured
from anabranch.store.capture.captured import Captured
from anabranch.store.group.rows import Row
from anabranch.values import Cell
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.captured.order import (
    UNKNOWN,
    Image,
    Link,
    Unknown,
    end_to_end,
    is_chain,
    is_settled,
)
from anabranch_conflict_resolver.captured.server_batches import Drained, Origin, ServerBatch, Step, server_batch_id
from anabranch_conflict_resolver.captured.steps import know, steps_of
from anabranch_conflict_resolver.group.context import Group
from anabranch_conflict_resolver.group.tables import SyncedDatabase
from anabranch_conflict_resolver.group.view import View

MOST_ROWS = 5_000
"""The most captured rows that a group takes at once. Between two statements it thinks about all of them, for less than
a tenth of the time after which a silent session loses its claim."""
MOST_BYTES = captured.MOST_BYTES
"""The bytes of their images, likewise."""


class Backlog(Exception):
    """More captured rows wait than a group with batches of its own takes."""


def drain(group: Group, view: View, touched: Set[RowKey]) -> Drained:
    """Drain all that waits, and carry the histories in ``view`` forward over it. Nothing is written. ``touched``: the
    rows that the group's own batches touch, which are locked.

    Raises:
        Backlog: that is more than ``MOST_ROWS``, or than ``MOST_BYTES``.
        psycopg.Error: what Postgres refused.
    """
    rows = captured.read(group.conn, group.synced.database.id, MOST_ROWS + 1, MOST_BYTES)
    large = any(row.old is None and row.new is None for row in rows) or captured.size(rows) > MOST_BYTES
    if len(rows) > MOST_ROWS or large:
        raise Backlog("more captured changes wait than a group takes beside batches")
    return log_rows(group, view, rows, touched)


def log_rows(
    group: Group, view: View, rows: Sequence[Captured], touched: Set[RowKey] = frozenset(), *, first: int = 0
) -> Drained:
    """Make batches of captured rows, which stand in the order of their capture and are of whole transactions. The
    first one is the position's number ``first``."""
    synced, position = group.synced, group.position
    # The last row of each transaction.
    ends = sorted({row.xid: row for row in rows}.values(), key=lambda row: row.id)
    steps = steps_of(group.conn, synced, rows)
    ordered = in_order(group, [steps[row.xid] for row in ends])
    know(group.conn, synced, view, {step.at for one in ordered for step in one})
    remembering = remembers(synced)
    batches: list[ServerBatch] = []
    for row, made in zip(ends, ordered, strict=True):
        origin = Origin(row.xid, row.role, row.application)
        batch = ServerBatch(server_batch_id(position, first + len(batches)), origin, position)
        batch.add(view, made, remembering)
        if batch.log:
            batches.append(batch)
    settle(synced, view, touched)
    ids = [row.id for row in rows]
    return Drained(batches, ids, ids[-1] if ids else 0)


def remembers(synced: SyncedDatabase) -> Mapping[str, bool]:
    """By table, whether its rules ask for overtaken writers."""
    policies = {name: synced.database.table_policy(name) for name in synced.tables}
    return {name: policy.resurrect or policy.delete == "wins" for name, policy in policies.items()}


def in_order(group: Group, transactions: Sequence[list[Step]]) -> Sequence[list[Step]]:
    """The steps of each transaction in the order in which they were made, row by row."""
    doubtful: set[RowKey] = set()
    for steps in transactions:
        if len({step.at for step in steps}) < len(steps):
            links: dict[RowKey, list[Link]] = {}
            for step in steps:
                links.setdefault(step.at, []).append(step.link)
            doubtful.update(
                at for at, of_row in links.items() if len(of_row) > 1 and not (is_chain(of_row) and is_settled(of_row))
            )
    if not doubtful:
        return transactions
    result = [list(steps) for steps in transactions]
    images = _rows_now(group, transactions, doubtful)
    # From the last transaction to the first: what one began with is what the one before it left.
    for steps, ordered in zip(reversed(transactions), reversed(result), strict=True):
        places: dict[RowKey, list[int]] = {}
        for place, step in enumerate(steps):
            if step.at in doubtful:
                places.setdefault(step.at, []).append(place)
        for at, of_row in places.items():
            there = [steps[place] for place in of_row]
            order = end_to_end([s.link for s in there], [s.depth for s in there], images.get(at, UNKNOWN))
            made = there if order is None else [there[i] for i in order]
            for place, step in zip(of_row, made, strict=True):
                ordered[place] = step
            images[at] = made[0].link[0]
    return result


def _rows_now(group: Group, transactions: Sequence[list[Step]], rows: Set[RowKey]) -> dict[RowKey, Image | Unknown]:
    """The captured image that equals the row as it stands; none for a row that has changed again since."""
    images: dict[RowKey, list[tuple[Row | None, Image]]] = {at: [] for at in rows}
    keys: dict[str, dict[str, tuple[Cell, ...]]] = {}
    for step in (step for steps in transactions for step in steps if step.at in rows):
        images[step.at] += [(step.before, step.link[0]), (step.after, step.link[1])]
        row = step.before or step.after
        assert row is not None
        keys.setdefault(step.at[0], {})[step.at[1]] = tuple(row[i] for i in step.table.table.key_index)
    found: dict[RowKey, Image | Unknown] = {}
    for name, wanted in keys.items():
        stand = group.synced.tables[name].sql.read(group.conn, list(wanted.values()))()
        for key in wanted:
            row = stand.get(key)
            for image, raw in images[name, key]:
                if image == row:
                    found[name, key] = raw
    return found


def settle(synced: SyncedDatabase, view: View, touched: Set[RowKey]) -> None:
    """Have the rules see the rows that the group has locked as they stand, with the histories now carried forward. A
    row that was not there when it was to be locked, and is there now, is somebody else's for this group."""
    for at in view.changed & touched:
        row = view.rows.get(at)
        state = view.states[at]
        if row is not None:
            view.states[at] = RowState(dict(zip(synced.tables[at[0]].names, row, strict=True)), state.version)
        elif state.values is not None:
            view.busy |= {at}
