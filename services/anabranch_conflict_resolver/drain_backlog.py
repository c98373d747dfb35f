"""Draining more than a group with batches of its own takes: a long backlog, or one large transaction.

The group has no batches then and needs no locks, as all that it records is in the images. Whole transactions are taken
up to ``drain.MOST_ROWS`` changes; those that end first go first, so that none is taken before one that it stands on.

A transaction that is larger than that is read, logged and deleted in pieces, inside the one transaction of its group:
it becomes one batch of one group, and neither this process nor a reader of the log ever holds more than a piece of it.
Pieces are cut in the order of capture. Where that need not be the order in which rows were changed (changes inside
other statements, keys that were updated) they are cut by key instead: the changes are read as often as there are
pieces, and each time those of some keys are taken. Time limits are those of a piece: after each the transaction's own
begins anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from anabranch.store import captured, take
from anabranch.store import group_records as store
from anabranch.store.captured import Captured, Transaction
from anabranch.store.claim import renew
from anabranch_conflict_resolver.captured_steps import know, steps_of
from anabranch_conflict_resolver.decide_group import Decided
from anabranch_conflict_resolver.drain import in_order, log_rows, remembers
from anabranch_conflict_resolver.records import changed_versions
from anabranch_conflict_resolver.server_batches import Drained, Origin, ServerBatch, Step, server_batch_id
from anabranch_conflict_resolver.view import View
from anabranch_conflict_resolver.waves import Group

PIECE_ROWS = 2_500
"""Captured rows that are read and logged at a time."""
PIECE_BYTES = captured.MOST_BYTES
"""The bytes of their images, likewise."""
HELD_ROWS = 20_000
"""Captured rows that are held in memory where pieces are cut by key."""


class _KeyChanged(Exception):
    """A key was updated: the order of capture need not be that of the changes."""


def drain_backlog(group: Group, rows: Sequence[Captured]) -> Decided:
    """Drain those transactions that ``rows``, the first that wait, hold whole; where there is none, one large one.

    Raises:
        psycopg.Error: what Postgres refused.
    """
    view = View()
    conn, database_id = group.conn, group.synced.database.id
    unfinished = captured.unfinished(conn, database_id, rows[-1].id, list({row.xid for row in rows}))
    whole = [row for row in rows if row.xid not in unfinished]
    if whole:
        group.drained = log_rows(group, view, whole)
    else:
        group.drained = drain_large(group)
    return Decided([], view)


def drain_large(group: Group) -> Drained:
    """Drain the one transaction that ended first, in pieces. What is left to record is its batch's own row, and sums.

    Raises:
        psycopg.Error: what Postgres refused.
    """
    transaction = captured.first_to_end(group.conn, group.synced.database.id)
    assert transaction is not None
    if transaction.depth <= 1:
        try:
            with captured.trial(group.conn):
                return _in_pieces(group, transaction, 1)
        except _KeyChanged:
            pass
    return _in_pieces(group, transaction, -(-transaction.changes // HELD_ROWS))


def _in_pieces(group: Group, transaction: Transaction, passes: int) -> Drained:
    batch: ServerBatch | None = None
    last = 0
    remembering = remembers(group.synced)
    for number in range(passes):
        held: list[Step] = []
        for rows in _pieces(group, transaction):
            first = rows[0]
            if batch is None:
                origin = Origin(first.xid, first.role, first.application)
                batch = ServerBatch(server_batch_id(group.position, 0), origin, group.position)
            [steps] = steps_of(group.conn, group.synced, rows).values()
            if passes > 1:
                held += [step for step in steps if hash(step.at) % passes == number]
            elif len(steps) > len(rows):
                raise _KeyChanged
            else:
                _log(group, batch, steps, remembering)
            if number == passes - 1:
                captured.delete(group.conn, group.synced.database.id, [row.id for row in rows])
                last = max(last, rows[-1].id)
            renew(group.conn)
        if held and batch is not None:
            _log(group, batch, held, remembering)
    assert batch is not None
    return Drained([batch], (), last)


def _pieces(group: Group, transaction: Transaction) -> Iterator[list[Captured]]:
    after = 0
    number = group.synced.database.id
    while rows := captured.read_of(group.conn, number, transaction.xid, after, PIECE_ROWS, PIECE_BYTES):
        after = rows[-1].id
        yield rows


def _log(group: Group, batch: ServerBatch, steps: list[Step], remembering: Mapping[str, bool]) -> None:
    conn, synced = group.conn, group.synced
    [ordered] = in_order(group, [steps])
    for first in range(0, len(ordered), PIECE_ROWS):
        piece = ordered[first : first + PIECE_ROWS]
        view = View()
        know(conn, synced, view, {step.at for step in piece})
        batch.add(view, piece, remembering)
        begun, changed = changed_versions(synced.tables, view)
        with store.together(conn):
            store.write_log(conn, synced.database.id, group.position, batch.log)
            store.insert_versions(conn, begun)
            store.update_versions(conn, changed)
            if batch.came:
                take.free(conn, synced.database.id, decided=(), rows=batch.came)
        batch.let_go()
