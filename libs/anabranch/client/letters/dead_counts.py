"""The node's report to the server on its dead letters: their number by reason and table, and nothing of their content.
A letter is read once: its reason and table do not change. While the log is followed, a check for other letters since
the last report runs every ``LOOK_S`` at most.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import Counter

from anabranch import limits
from anabranch.client.file.believed import UNREADABLE
from anabranch.v1 import batch_pb2, errors_pb2, position_pb2, verdict_pb2

LOOK_S = 30.0
KEPT = 20_000
"""Letters whose reason and table are remembered, at most; those beyond are counted without."""
_Subject = tuple[int, str]


class DeadLetterCounts:
    """The counts of one file."""

    def __init__(self) -> None:
        self._about: dict[str, _Subject] = {}
        self._reported: tuple[int, str] = (0, "")
        self._looked_s = time.monotonic()

    def report(self, conn: sqlite3.Connection) -> position_pb2.DeadLetters:
        """Count the present letters."""
        ids = [batch_id for (batch_id,) in conn.execute("SELECT id FROM _db_mutations_queue_dead ORDER BY id")]
        self._reported = (len(ids), ids[-1] if ids else "")
        self._looked_s = time.monotonic()
        there = set(ids)
        self._about = {batch_id: about for batch_id, about in self._about.items() if batch_id in there}
        counts: Counter[_Subject] = Counter()
        for batch_id in ids:
            about = self._about.get(batch_id)
            if about is None and len(self._about) < KEPT:
                about = self._about[batch_id] = _about(conn, batch_id)
            counts[about or (errors_pb2.REASON_UNSPECIFIED, "")] += 1
        return position_pb2.DeadLetters(
            total=len(ids),
            counts=[
                position_pb2.DeadLetterCount(reason=errors_pb2.Reason.ValueType(reason), table=table, count=count)
                for (reason, table), count in counts.most_common(limits.MAX_DEAD_LETTER_COUNTS)
            ],
        )

    def changed(self, conn: sqlite3.Connection) -> bool:
        """Whether there are other letters than in the last report to the server; checked only every ``LOOK_S``."""
        now = time.monotonic()
        if now - self._looked_s < LOOK_S:
            return False
        self._looked_s = now
        [row] = conn.execute("SELECT count(*), coalesce(max(id), '') FROM _db_mutations_queue_dead")
        return tuple(row) != self._reported


def _about(conn: sqlite3.Connection, batch_id: str) -> _Subject:
    """The reason of a refusal, and the table that it concerns: that of the refused mutation, else of the first."""
    row = conn.execute("SELECT verdict, value FROM _db_mutations_queue_dead WHERE id = ?", (batch_id,)).fetchone()
    if row is None:
        return errors_pb2.REASON_UNSPECIFIED, ""
    reason: int = errors_pb2.REASON_UNSPECIFIED
    table = ""
    # A damaged verdict is counted without its reason, a damaged batch without its table.
    with contextlib.suppress(*UNREADABLE):
        verdict = verdict_pb2.Verdict.FromString(row[0])
        reason = verdict.reason
        table = verdict.mutations[-1].table if verdict.mutations else ""
        if not table:
            mutations = batch_pb2.DbMutationBatch.FromString(row[1]).mutations
            table = mutations[0].table if mutations else ""
    return reason, table
