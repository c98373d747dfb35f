"""Chooses the source of a pull's rows, before its first response."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from anabranch.runtime import metrics
from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database
from anabranch.store.lake.published_bases import read_floor
from anabranch.v1 import errors_pb2, position_pb2
from anabranch_snapshot.pulls.bases import Served, Why
from anabranch_snapshot.pulls.pull import Wanted
from anabranch_snapshot.snapshot import Snapshot

_log = structlog.get_logger()


async def choose_source(
    snapshot: Snapshot,
    database: Database,
    wanted: Sequence[Wanted],
    state: position_pb2.NodeState,
    subject: str,
) -> Served | None:
    """The published base that serves a pull, with the log kept from its position on for the node; None: Postgres does.

    Raises:
        CallError: INVALID_TOKEN, where the pull goes on from a base that is not available any more.
        psycopg.Error: the base or the floor can't be read.
    """
    runs = {one.progress.base.run_id for one in wanted if one.progress is not None and one.progress.base is not None}
    keyed = any(one.progress is not None and one.progress.base is None for one in wanted)
    chosen: Served | Why = Why.RESUMED
    if any(one.table.name in database.restricted for one in wanted):
        # A base has everybody's rows.
        chosen = Why.RESTRICTED
    elif not keyed and len(runs) <= 1:
        chosen = await snapshot.bases.choose(database, [one.table for one in wanted], state, next(iter(runs), None))
        if isinstance(chosen, Served) and not await _held(snapshot, database, chosen, state, subject):
            chosen = Why.FLOOR
    if isinstance(chosen, Served):
        _log.info("a pull reads from Parquet", database=database.name, run=chosen.found.run_id)
        metrics.count("anabranch_pull_sources", database=database.name, source="parquet", why="")
        return chosen
    if runs:
        raise CallError(
            errors_pb2.REASON_INVALID_TOKEN,
            f"this pull can't go on from where it broke ({chosen}): pull these tables from their start",
        )
    _log.info("a pull reads from Postgres", database=database.name, why=str(chosen))
    metrics.count("anabranch_pull_sources", database=database.name, source="postgres", why=str(chosen))
    return None


async def _held(
    snapshot: Snapshot, database: Database, served: Served, state: position_pb2.NodeState, subject: str
) -> bool:
    """Keep the log from the base's position on for the node, which will follow it from there. Return whether the log
    still goes back so far once that is stored."""
    position = served.found.position
    snapshot.nodes.note(database, subject, state.node, position, pulled=True)
    await snapshot.nodes.flush()
    async with snapshot.pool.connection() as conn:
        floor = await read_floor(conn, database.id, database.epoch)
    return floor is not None and floor <= position
