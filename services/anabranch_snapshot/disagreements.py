"""Reports of nodes about tables whose rows they found not to be the server's: counted and logged, once each.

A node reports it in every call until the table agrees again. Its last report is remembered, for ``KEPT`` nodes that
disagree; the metric counts tables that are new in a report. Other processes, and this one after a start, count it once
more.
"""

from __future__ import annotations

from collections import OrderedDict

import structlog

from anabranch.runtime import metrics
from anabranch.store.catalog.databases import Database
from anabranch.store.nodes.reports import NodeKey
from anabranch.v1 import position_pb2

KEPT = 10_000
_log = structlog.get_logger()


class Disagreements:
    """The disagreements of all nodes that called this process."""

    def __init__(self) -> None:
        self._last: OrderedDict[NodeKey, frozenset[str]] = OrderedDict()

    def hear(self, database: Database, state: position_pb2.NodeState) -> None:
        """Take in the report of an admitted node. Tables that the database doesn't have are ignored."""
        key = (database.id, state.node.id)
        before = self._last.pop(key, frozenset())
        now = {d.table: d.position for d in state.disagreements if d.table in database.tables}
        for table, position in now.items():
            if table not in before:
                metrics.count("anabranch_sums_disagreed", database=database.name)
                _log.error(
                    "a node's rows are not the server's",
                    database=database.name,
                    table=table,
                    position=position,
                    node=state.node.id,
                )
        for table in before - now.keys():
            _log.info("a node's rows are the server's again", database=database.name, table=table, node=state.node.id)
        if now:
            self._last[key] = frozenset(now)
            if len(self._last) > KEPT:
                self._last.popitem(last=False)
