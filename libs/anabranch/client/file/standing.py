"""Where the file stands, read by one statement at the beginning of a transaction that applies a page, and kept true
while that goes on: a change of one row would else ask for each of these things by a statement of its own, some of them
twice.

Invariant: what ``Standing`` says of a table is what ``_db_tables`` has in this transaction, or it says nothing of it.
Whoever changes a stage, a sum or a disagreement in a transaction that may have one changes it here, too, or calls
``forget``; where a part of the transaction is undone, all of it is forgotten (``Tx.undone``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class KeptTable(NamedTuple):
    """A table's stage, the positions of its pull in milliseconds, its base's number of rows and hash, and the position
    since which that is known to differ from the server's, or 0."""

    stage: str
    first_ms: int
    last_ms: int
    rows: int
    hash: bytes
    disagrees: int


@dataclass(slots=True)
class Standing:
    """``tables`` by identity; ``complete``: none of them was forgotten. ``queued``, ``based``: whether there were
    batches in the queue, and base images, when the transaction began. ``seen_ms``: the last position that was kept."""

    tables: dict[str, KeptTable]
    queued: bool
    based: bool
    seen_ms: int
    complete: bool = True

    def forget(self, table: str) -> None:
        """Say nothing of a table any more: it is changed."""
        self.complete = False
        self.tables.pop(table, None)

    def not_live(self) -> list[str] | None:
        """The tables that are new or set aside; None where that is not known."""
        return [name for name, kept in self.tables.items() if kept.stage != "live"] if self.complete else None

    def disagreements(self) -> Mapping[str, int] | None:
        """The tables that differ from the server's, with the position since which they do; None where that is not
        known."""
        if not self.complete:
            return None
        return {name: kept.disagrees for name, kept in self.tables.items() if kept.disagrees}


# A file without tables has one row, too, whose name is NULL.
_READ = """
SELECT a.queued, a.based, a.seen_ms, t.name, t.stage, t.first_ms, t.last_ms, t.count, t.hash, t.disagrees
FROM (SELECT EXISTS (SELECT 1 FROM _db_mutations_queue) AS queued, EXISTS (SELECT 1 FROM _db_base) AS based,
             (SELECT coalesce(max(position), 0) FROM _db_seen) AS seen_ms) a
LEFT JOIN _db_tables t
"""


def read(conn: sqlite3.Connection) -> Standing:
    """Where the file stands in the transaction of ``conn``."""
    rows = conn.execute(_READ).fetchall()
    queued, based, seen_ms = rows[0][:3]
    tables = {row[3]: KeptTable(*row[4:]) for row in rows if row[3] is not None}
    return Standing(tables, bool(queued), bool(based), seen_ms)


def one_table(conn: sqlite3.Connection, name: str) -> KeptTable | None:
    """The row of one table in ``_db_tables``; None where it has none of that identity."""
    row = conn.execute(
        "SELECT stage, first_ms, last_ms, count, hash, disagrees FROM _db_tables WHERE name = ?", (name,)
    ).fetchone()
    return None if row is None else KeptTable(*row)
