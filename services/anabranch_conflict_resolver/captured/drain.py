"""Makes captured changes batches of the node "server": a group drains them before it decides its own batches.

State model of a captured row: *unseen* (its transaction has not committed) or *waiting* (committed, in the table
``captured``) until a group takes it, *drained* inside that group's transaction, and gone with its commit. Rows of one
transaction become visible together, and are drained together, as one batch; a group that is rolled back leaves them
waiting.

Why this gives every row's changes in the order in which they were made: a session that changes a row locks it until the
end of the transaction, so that of two transactions that changed the same row the second one's change of it was captured
after all that the first one captured. Transactions are therefore drained in the order of their *last* captured row,
and none is drained while an earlier one in this order waits. Inside a transaction the images show the order
(``captured.order``).

The read comes after the locks of the rows that the group's own batches touch: a session that had changed one of them
has committed by then, with its captured changes, or still locks it, and then the batch waits. So those batches are
judged against rows that have every change that stands before theirs.

Waiting changes are taken whole where they are few (``MOST_ROWS``). Where they are more the group leaves its batches and
drains as many whole transactions as fit; one that is larger by itself is taken in pieces (``backlog``).
"""

from __future__ import annotations

from collections.abc import Set

from anabranch.store.capture import captured
from anabranch.store.capture.growth import growth
from anabranch_conflict_resolver.batch.decode import RowKey
from anabranch_conflict_resolver.captured import limits
from anabranch_conflict_resolver.captured.intake import log_rows
from anabranch_conflict_resolver.captured.server_batches import Drained
from anabranch_conflict_resolver.group.context import Context
from anabranch_conflict_resolver.group.view import View


def drain(context: Context, view: View, touched: Set[RowKey]) -> Drained | None:
    """Drain all that waits, and carry the histories in ``view`` forward over it. Nothing is written. ``touched``: the
    rows that the group's own batches touch, which are locked. None where that is more than ``MOST_ROWS``, or than
    ``MOST_BYTES``: a group that has batches leaves it alone.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    rows = captured.read(context.conn, context.synced.database.id, limits.MOST_ROWS + 1, limits.MOST_BYTES)
    size = captured.size(rows) + growth(context.synced.growing, rows)
    large = any(row.old is None and row.new is None for row in rows) or size > limits.MOST_BYTES
    if len(rows) > limits.MOST_ROWS or large:
        return None
    return log_rows(context, view, rows, touched)
