"""The nodes that read: their owners, their names, and the positions that they have acknowledged.

A node's report in a call is collected in memory, the latest of each node, and stored together with all others' every
``node_report_ms``. A crash so loses the reports of a moment, which the nodes' next calls repeat.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import structlog

from anabranch.clock import Clock
from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database
from anabranch.store.nodes.reports import NOTHING, NodeKey, NodeOwner, NodeReport, find_nodes, write_reports
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncPool
from anabranch.v1 import errors_pb2, position_pb2
from anabranch_snapshot.dead_letters import DeadLetterReports
from anabranch_snapshot.disagreements import Disagreements

KEPT = 50_000
"""Nodes that are remembered, and nodes whose report may wait; a report that does not fit comes with the next call."""
AT_ONCE = 200
"""Nodes whose reports one statement stores. It locks their rows, for which a group of one of them waits, and anybody
may report under any number of names."""
KEPT_FOR_S = 300.0
"""A node may get another name: after so long it is looked up again."""
ABSENT_FOR_S = 5.0
_ULID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_log = structlog.get_logger()


class Nodes:
    """All nodes of all databases, as far as this process has met them."""

    def __init__(self, pool: AsyncPool, clock: Clock, report_ms: int) -> None:
        self._pool = pool
        self._clock = clock
        self._report_s = report_ms / 1000
        self._owners: OrderedDict[NodeKey, tuple[NodeOwner, float]] = OrderedDict()
        self._absent: OrderedDict[NodeKey, float] = OrderedDict()
        self._reports: dict[NodeKey, NodeReport] = {}
        self._some = asyncio.Event()
        self._disagreements = Disagreements()
        self._dead_letters = DeadLetterReports()

    async def admit(
        self, database: Database, principal: str, state: position_pb2.NodeState, head: int | None = None
    ) -> None:
        """Let a node read, and note its report; it can't have acknowledged more than ``head``. Without a head it asks
        for nothing of the log, and holds none of it that it did not hold before. A reader that is no node (an empty id)
        leaves no trace.

        Raises:
            CallError: INVALID_REQUEST, naming the field; WRONG_PRINCIPAL.
            psycopg.Error: the node can't be looked up.
        """
        node = state.node
        if state.acknowledged < 0:
            raise CallError(errors_pb2.REASON_INVALID_REQUEST, "node_state.acknowledged is negative")
        if state.app_version < 0:
            raise CallError(errors_pb2.REASON_INVALID_REQUEST, "node_state.app_version is negative")
        if not node.id:
            return
        if not _ULID.fullmatch(node.id):
            raise CallError(errors_pb2.REASON_INVALID_REQUEST, "node_state.node.id is not a ULID in its canonical form")
        key = (database.id, node.id)
        owner = self._known(key)
        if owner is None or owner.principal != principal:
            # A remembered node may have been retired since: no node is refused without a look.
            owner = (await self._find({key})).get(key)
        if not self._may_speak_for(key, owner, principal):
            raise CallError(errors_pb2.REASON_WRONG_PRINCIPAL, "this node belongs to another principal")
        self._disagreements.hear(database, state)
        self._dead_letters.hear(database, principal, state, self._clock.now_ms())
        self._some.set()
        self.note(database, principal, state, NOTHING if head is None else min(state.acknowledged, head))

    def note(
        self,
        database: Database,
        principal: str,
        state: position_pb2.NodeState,
        acknowledged: int,
        *,
        pulled: bool = False,
    ) -> None:
        """Note what an admitted node has acknowledged, and that it was seen. ``pulled``: a pull that it has begun puts
        it there."""
        node, key = state.node, (database.id, state.node.id)
        self._some.set()
        before = self._reports.get(key)
        if not node.id or (before is None and len(self._reports) >= KEPT):
            return
        if not self._may_speak_for(key, self._known(key), principal):
            return
        if before is not None and before.principal == principal:
            acknowledged, pulled = max(acknowledged, before.acknowledged), pulled or before.pulled
        self._reports[key] = NodeReport(
            database.id,
            node.id,
            node.name,
            principal,
            database.epoch,
            acknowledged,
            self._clock.now_ms(),
            pulled,
            state.app_version,
        )

    async def names(self, database_id: int, node_ids: Iterable[str]) -> Mapping[str, str]:
        """The names of nodes; "" for one that is not known.

        Raises:
            psycopg.Error: they can't be looked up.
        """
        names: dict[str, str] = {}
        unknown: set[NodeKey] = set()
        for node_id in set(node_ids):
            owner = self._known((database_id, node_id))
            if owner is not None:
                names[node_id] = owner.name
            elif not self._is_absent((database_id, node_id)):
                unknown.add((database_id, node_id))
        if unknown:
            found = await self._find(unknown)
            self._absent.update((key, time.monotonic()) for key in unknown - found.keys())
            while len(self._absent) > KEPT:
                self._absent.popitem(last=False)
            names.update((node_id, found[database_id, node_id].name) for _, node_id in unknown & found.keys())
        return names

    def _may_speak_for(self, key: NodeKey, owner: NodeOwner | None, principal: str) -> bool:
        """Whether a node is the principal's, or has no owner. An unstored node belongs to the sender of its report."""
        if owner is not None:
            return owner.principal == principal
        waiting = self._reports.get(key)
        return waiting is None or waiting.principal == principal or waiting.acknowledged == NOTHING

    def _known(self, key: NodeKey) -> NodeOwner | None:
        kept = self._owners.get(key)
        return kept[0] if kept is not None and time.monotonic() - kept[1] < KEPT_FOR_S else None

    def _is_absent(self, key: NodeKey) -> bool:
        """Whether a look-up found a moment ago that there is no such node: "server" is no node, and is in many pages. A
        node's row is there before its first batch is."""
        return time.monotonic() - self._absent.get(key, -ABSENT_FOR_S) < ABSENT_FOR_S

    async def _find(self, keys: set[NodeKey]) -> Mapping[NodeKey, NodeOwner]:
        async with self._pool.connection() as conn:
            found = await find_nodes(conn, keys)
        now = time.monotonic()
        for key, owner in found.items():
            self._owners[key] = (owner, now)
            self._owners.move_to_end(key)
        while len(self._owners) > KEPT:
            self._owners.popitem(last=False)
        return found

    async def follow(self) -> None:
        """Store the nodes' reports, again and again, for ever."""
        while True:
            await self._some.wait()
            self._some.clear()
            await asyncio.sleep(self._report_s)
            try:
                await self.flush()
            except Exception as error:
                if not is_unavailable(error):
                    raise
                self._some.set()
                _log.warning("nodes can't be stored", error=type(error).__name__, detail=error)

    async def flush(self) -> None:
        """Store the nodes' reports since the last time.

        Raises:
            psycopg.Error: it can't be stored; it is kept.
        """
        reports = list(self._reports.items())
        if not reports and not self._dead_letters.waiting:
            return
        async with self._pool.connection() as conn:
            for start in range(0, len(reports), AT_ONCE):
                piece = reports[start : start + AT_ONCE]
                await write_reports(conn, [report for _, report in piece])
                for key, report in piece:
                    if self._reports.get(key) is report:
                        del self._reports[key]
            # A node's row comes first: a report belongs to it.
            await self._dead_letters.flush(conn)
