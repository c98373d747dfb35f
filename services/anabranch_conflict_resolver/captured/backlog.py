"""Draining more than a group with batches of its own takes: a long backlog, or one large transaction.

The group has no batches then and needs no locks, as all that it records is in the images. Which transactions wait, and
in which order they end, is told by one scan (``Outstanding``), which counts for the groups that follow until they are
drained: what becomes visible meanwhile was committed later than all of them, so that no change of it stands before one
of theirs. So what a scan costs for each change does not grow with the number of those that wait, as long as no more
than ``MOST_TRANSACTIONS`` do; beyond, there is a scan for every so many.

Whole transactions are taken up to ``drain.MOST_ROWS`` changes. One that is larger is read, logged and deleted in
pieces (``captured.pieces``), inside the one transaction of its group: it becomes one batch of one group, and neither
this process nor a reader of the log ever holds more than a piece of it, beside the hash of each change (16 bytes),
which goes into the group's link, and what ``captured.pieces`` notes. Time limits are those of a piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.store.capture.large import Transaction, first_of, first_to_end, read_whole
from anabranch.store.group import records as store
from anabranch.store.inbox import take
from anabranch.store.inbox.claim import renew
from anabranch.store.session.at_once import together
from anabranch.store.session.engine import Session
from anabranch_conflict_resolver.captured import drain
from anabranch_conflict_resolver.captured.drain import in_order, log_rows, remembers
from anabranch_conflict_resolver.captured.pieces import PIECE_ROWS, KeyChangedError, by_row, in_capture_order
from anabranch_conflict_resolver.captured.server_batches import Drained, Origin, ServerBatch, Step, server_batch_id
from anabranch_conflict_resolver.captured.steps import know
from anabranch_conflict_resolver.group.attempt import Decided
from anabranch_conflict_resolver.group.context import Group
from anabranch_conflict_resolver.group.records import changed_versions
from anabranch_conflict_resolver.group.view import View

MOST_TRANSACTIONS = 100_000
"""How many transactions one scan tells of."""
_NOTHING_CAUSED = 2**63 - 1
"""The group writes to no synced table: what it has caused need not be looked for behind all that waits."""


@dataclass(slots=True)
class Outstanding:
    """The transactions that one scan has found, the next one last. ``taken``: how many of them the group that runs has
    drained; they are gone with its commit (``committed``), and all is forgotten where somebody else has drained.
    ``one_by_one``: groups take one transaction each, since one of them can't be drained."""

    waiting: list[Transaction] = field(default_factory=list)
    taken: int = 0
    one_by_one: bool = False

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def scan(self, conn: Session, database_id: int) -> None:
        """Find those that end first."""
        self.waiting = first_to_end(conn, database_id, MOST_TRANSACTIONS)
        self.waiting.reverse()
        self.taken = 0

    def committed(self) -> None:
        """The group that runs was committed. What is left is forgotten where it is no more than a group takes that has
        batches, too."""
        if self.taken:
            del self.waiting[-self.taken :]
            self.taken = 0
            if len(self.waiting) <= drain.MOST_ROWS and len(self.next_ones()) == len(self.waiting):
                self.waiting.clear()

    def forget(self) -> None:
        """Begin with a new scan."""
        self.waiting.clear()
        self.taken = 0

    def next_ones(self) -> list[Transaction]:
        """Those that a group takes: one that is larger, or as many as fit; none where nothing waits."""
        taken: list[Transaction] = []
        changes = size = 0
        for transaction in reversed(self.waiting):
            changes += transaction.changes
            size += transaction.size
            if taken and (self.one_by_one or changes > drain.MOST_ROWS or size > drain.MOST_BYTES):
                break
            taken.append(transaction)
        return taken


def drain_backlog(group: Group, outstanding: Outstanding) -> Decided:
    """Drain the transactions that end first, as many as a group takes, and nothing where there are none.

    Raises:
        psycopg.Error: what Postgres refused.
    """
    view = View()
    conn, number = group.conn, group.synced.database.id
    # What was found before may have been drained by another session, or be gone with its table.
    for _ in range(2):
        if not outstanding:
            outstanding.scan(conn, number)
        transactions = outstanding.next_ones()
        if not transactions:
            break
        large = transactions[0].changes > drain.MOST_ROWS or transactions[0].size > drain.MOST_BYTES
        rows = first_of(conn, number, transactions[0]) if large else read_whole(conn, number, transactions)
        if len(rows) == (1 if large else sum(one.changes for one in transactions)):
            outstanding.taken = len(transactions)
            if large:
                origin = Origin(rows[0].xid, rows[0].role, rows[0].application)
                group.drained = drain_large(group, transactions[0], origin)
            else:
                group.drained = log_rows(group, view, rows)
                group.drained.up_to = _NOTHING_CAUSED
            return Decided([], view)
        outstanding.forget()
    group.drained = Drained((), (), _NOTHING_CAUSED)
    return Decided([], view)


def drain_large(group: Group, transaction: Transaction, origin: Origin) -> Drained:
    """Drain one transaction in pieces. What is left to record is its batch's own row, and sums.

    Raises:
        psycopg.Error: what Postgres refused.
    """
    conn, synced = group.conn, group.synced
    if transaction.one_by_one:
        try:
            # What was logged and deleted is undone where it can't go on.
            with conn.transaction():
                return _in_pieces(group, transaction, origin, in_capture_order(conn, synced, transaction))
        except KeyChangedError:
            pass
    return _in_pieces(group, transaction, origin, by_row(conn, synced, transaction))


def _in_pieces(group: Group, transaction: Transaction, origin: Origin, pieces: Iterable[list[Step]]) -> Drained:
    batch = ServerBatch(server_batch_id(group.position, 0), origin, group.position, heartbeat=lambda: renew(group.conn))
    remembering = remembers(group.synced)
    for steps in pieces:
        _log(group, batch, steps, remembering)
        # Not held while the next ones are read.
        del steps
    return Drained([batch] if batch.ordinal else [], (), _NOTHING_CAUSED)


def _log(group: Group, batch: ServerBatch, steps: list[Step], remembering: Mapping[str, bool]) -> None:
    conn, synced = group.conn, group.synced
    [ordered] = in_order(group, [steps])
    for first in range(0, len(ordered), PIECE_ROWS):
        piece = ordered[first : first + PIECE_ROWS]
        view = View()
        know(conn, synced, view, {step.at for step in piece})
        batch.add(view, piece, remembering)
        begun, changed = changed_versions(synced.tables, view)
        large = batch.cut_large()
        with together(conn):
            store.write_log(conn, synced.database.id, group.position, batch.log)
            store.insert_versions(conn, begun)
            store.update_versions(conn, changed)
            if batch.came:
                take.free(conn, synced.database.id, decided=(), rows=batch.came)
        batch.let_go()
        for row in large:
            store.append_effect(conn, synced.database.id, group.position, row)
