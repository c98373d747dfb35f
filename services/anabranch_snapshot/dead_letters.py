"""The dead letters that nodes report: read with bounds, kept in memory, and stored with the nodes' other reports.

A node reports the same in every call until something changes; a report is stored when it differs, and again after
``AGAIN_S`` seconds.
"""

from __future__ import annotations

import time
from collections import OrderedDict

from anabranch import limits
from anabranch.runtime.calls.forms import TextForm
from anabranch.store.catalog.databases import Database
from anabranch.store.nodes.dead_reports import DeadCount, DeadReport, write_dead_reports
from anabranch.store.nodes.reports import NodeKey
from anabranch.store.session.engine import AsyncSession
from anabranch.v1 import errors_pb2, position_pb2
from anabranch.wire.enum_names import enum_name

KEPT = 50_000
"""Nodes of which the last report is remembered, and reports that may wait."""
AGAIN_S = 300.0
UNKNOWN = "UNKNOWN"
_MOST = 2**53
_TABLE = TextForm(limits.MAX_NAME_BYTES)
_Said = tuple[int, tuple[DeadCount, ...]]


def read(letters: position_pb2.DeadLetters) -> _Said:
    """The total and the counts, of a size that can be kept, whatever was sent."""
    counts = tuple(
        DeadCount(_reason(one.reason), _table(one.table), min(one.count, _MOST))
        for one in letters.counts[: limits.MAX_DEAD_LETTER_COUNTS]
        if one.count > 0
    )
    return min(max(letters.total, sum(one.number for one in counts)), _MOST), counts


def _reason(number: int) -> str:
    if number not in errors_pb2.Reason.values() or number == errors_pb2.REASON_UNSPECIFIED:
        return UNKNOWN
    return enum_name(errors_pb2.Reason, number)


def _table(name: str) -> str:
    return name if _TABLE.fault(name) is None else ""


class DeadLetterReports:
    """The reports of all nodes of all databases that called this process."""

    def __init__(self) -> None:
        self.waiting: dict[NodeKey, DeadReport] = {}
        """The reports that are to be stored."""
        self._stored: OrderedDict[NodeKey, tuple[str, _Said, float]] = OrderedDict()

    def hear(self, database: Database, principal: str, state: position_pb2.NodeState, now_ms: int) -> None:
        """Note the dead letters of an admitted node, if it reports them."""
        if not state.HasField("dead_letters"):
            return
        key = (database.id, state.node.id)
        said = read(state.dead_letters)
        before = self._stored.get(key)
        if before is not None and before[:2] == (principal, said) and time.monotonic() - before[2] < AGAIN_S:
            self.waiting.pop(key, None)
            return
        if key in self.waiting or len(self.waiting) < KEPT:
            self.waiting[key] = DeadReport(database.id, state.node.id, principal, now_ms, *said)

    async def flush(self, conn: AsyncSession) -> None:
        """Store the reports of nodes since the last time.

        Raises:
            psycopg.Error: it can't be stored; it is kept.
        """
        reports = dict(self.waiting)
        if not reports:
            return
        await write_dead_reports(conn, list(reports.values()))
        now = time.monotonic()
        for key, report in reports.items():
            if self.waiting.get(key) is report:
                del self.waiting[key]
            self._stored[key] = (report.principal, (report.total, report.counts), now)
            self._stored.move_to_end(key)
        while len(self._stored) > KEPT:
            self._stored.popitem(last=False)
