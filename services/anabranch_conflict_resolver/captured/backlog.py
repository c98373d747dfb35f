"""Draining more than a group with batches of its own takes: a long backlog, or one large transaction.

The group has no batches then and needs no locks, as all that it records is in the images. One scan (``Outstanding``)
finds which transactions wait, and in which order they end. It counts for the groups that follow until they are drained:
transactions that become visible meanwhile were committed later than all of them, so that no change of theirs stands
before one of these. So the cost of a scan for each change does not grow with the number of those that wait, as long as
no more than ``MOST_TRANSACTIONS`` do; beyond, there is a scan for every so many.

Whole transactions are taken up to ``limits.MOST_ROWS`` changes. One that is larger is read, logged and deleted in
pieces (``captured.pieces``), inside the one transaction of its group: it becomes one batch of one group, and neither
this process nor a reader of the log ever holds more than a piece of it, beside the hash of each change (16 bytes),
which goes into the group's link, and the notes of ``captured.pieces``. Time limits are those of a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from anabranch.store.capture.captured import Captured
from anabranch.store.capture.growth import row_growth
from anabranch.store.capture.large import Transaction, first_of, read_whole
from anabranch.store.inbox.claim import renew
from anabranch_conflict_resolver.captured import limits
from anabranch_conflict_resolver.captured.intake import NOTHING_CAUSED, log_held, log_pieces, log_rows
from anabranch_conflict_resolver.captured.outstanding import Outstanding
from anabranch_conflict_resolver.captured.pieces import UntilRekeyed, by_row, in_capture_order
from anabranch_conflict_resolver.captured.server_batches import Drained, Origin, ServerBatch
from anabranch_conflict_resolver.group.context import Context, Progress
from anabranch_conflict_resolver.group.view import View


def drain_backlog(context: Context, outstanding: Outstanding) -> Progress:
    """Drain the transactions that end first, as many as a group takes, and nothing where there are none: the try of a
    group that has no batches.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    view = View()
    conn, number = context.conn, context.synced.database.id
    # Transactions that were found before may have been drained by another session, or be gone with their table.
    for _ in range(2):
        if not outstanding.waiting:
            outstanding.scan(conn, number)
        transactions = outstanding.next_ones()
        if not transactions:
            break
        drained = _drain(context, view, transactions, outstanding)
        if drained is not None:
            return Progress(view, drained=drained)
        outstanding.forget()
    return Progress(view, drained=Drained((), (), NOTHING_CAUSED))


def drain_through(context: Context, up_to: int, *, number: int = 0) -> list[ServerBatch]:
    """Drain every transaction that ends no later than with the captured row ``up_to``, however many these are: all of
    them are logged at once, piece by piece. Their batches are the position's from ``number`` on; only their own rows,
    and sums, are left to record.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    batches: list[ServerBatch] = []
    outstanding = Outstanding(up_to=up_to)
    while True:
        outstanding.scan(context.conn, context.synced.database.id)
        if not outstanding.waiting:
            return batches
        while transactions := outstanding.next_ones():
            view = View()
            drained = _drain(context, view, transactions, outstanding, number=number + len(batches))
            assert drained is not None, "the claim keeps others from draining"
            log_held(context, view, drained)
            batches += drained.batches
            del outstanding.waiting[len(outstanding.waiting) - outstanding.taken :]
            renew(context.conn)


def _drain(
    context: Context, view: View, transactions: Sequence[Transaction], outstanding: Outstanding, *, number: int = 0
) -> Drained | None:
    """Drain transactions, which ``outstanding`` has found, or as many of them as fit; it notes how many were taken.
    None where some are not there any more."""
    conn, database_id = context.conn, context.synced.database.id
    large = transactions[0].changes > limits.MOST_ROWS or transactions[0].size > limits.MOST_BYTES
    rows = first_of(conn, database_id, transactions[0]) if large else read_whole(conn, database_id, transactions)
    if len(rows) != (1 if large else sum(one.changes for one in transactions)):
        return None
    if not large and (fit := _fitting(context, transactions, rows)) < len(transactions):
        transactions = transactions[: max(1, fit)]
        taken = {one.xid for one in transactions}
        rows = [row for row in rows if row.xid in taken]
        large = not fit
    outstanding.taken = len(transactions)
    if large:
        origin = Origin(rows[0].xid, rows[0].role, rows[0].application)
        return drain_large(context, transactions[0], origin, number=number)
    return replace(log_rows(context, view, rows, first=number), up_to=NOTHING_CAUSED)


def _fitting(context: Context, transactions: Sequence[Transaction], rows: Sequence[Captured]) -> int:
    """How many of the transactions fit into a group when the values of their rows have grown."""
    grown = {one.xid: 0 for one in transactions}
    for row in rows if context.synced.growing else ():
        grown[row.xid] += row_growth(context.synced.growing, row)
    if not any(grown.values()):
        return len(transactions)
    sizes = accumulate(one.size + grown[one.xid] for one in transactions)
    return sum(size <= limits.MOST_BYTES for size in sizes)


def drain_large(context: Context, transaction: Transaction, origin: Origin, *, number: int = 0) -> Drained:
    """Drain one transaction in pieces; its batch is the position's ``number``. Only that one's own row, and sums, are
    left to record.

    Raises:
        psycopg.Error: Postgres refused a statement.
    """
    conn, synced = context.conn, context.synced
    if transaction.one_by_one:
        pieces = UntilRekeyed(in_capture_order(conn, synced, transaction))
        with conn.transaction() as trial:
            drained = log_pieces(context, origin, pieces, number=number)
            # The logging and deleting so far is undone where it can't go on.
            trial.force_rollback = pieces.stopped
        if not pieces.stopped:
            return drained
    return log_pieces(context, origin, by_row(conn, synced, transaction), number=number)
