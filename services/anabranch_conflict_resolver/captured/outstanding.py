"""The transactions that wait to be drained, kept from one group to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.store.capture.large import LAST, Transaction, first_to_end
from anabranch.store.session.engine import Session
from anabranch_conflict_resolver.captured import limits

MOST_TRANSACTIONS = 100_000
"""The most transactions that one scan finds."""


@dataclass(slots=True)
class Outstanding:
    """The transactions that one scan has found, the next one last. ``taken``: how many of them the group that runs has
    drained; they are gone with its commit (``committed``), and all is forgotten where another session has drained.
    ``one_by_one``: groups take one transaction each, since one of them can't be drained. ``up_to``: those that end
    behind this captured row are left to wait, for a change of tables has to be taken with them."""

    waiting: list[Transaction] = field(default_factory=list)
    taken: int = 0
    one_by_one: bool = False
    up_to: int = LAST

    def scan(self, conn: Session, database_id: int) -> None:
        """Find those that end first."""
        found = first_to_end(conn, database_id, MOST_TRANSACTIONS, self.up_to)
        # One that altered a table, and changed no row, has nothing to drain.
        self.waiting = [one for one in reversed(found) if one.changes]
        self.taken = 0

    def committed(self) -> None:
        """Note that the group that runs was committed, and has drained some. The rest is forgotten where it is no more
        than a group takes beside batches."""
        del self.waiting[len(self.waiting) - self.taken :]
        self.taken = 0
        if len(self.waiting) <= limits.MOST_ROWS and len(self.next_ones()) == len(self.waiting):
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
            if taken and (self.one_by_one or changes > limits.MOST_ROWS or size > limits.MOST_BYTES):
                break
            taken.append(transaction)
        return taken
