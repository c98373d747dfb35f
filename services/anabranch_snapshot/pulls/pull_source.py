"""Chooses the source of a pull's rows, before its first response.

A base shows restricted tables, too, to those of whom it is known what they saw at its position: their claims, as at any
position, and what membership queries gave them, where they were known by then. It does not to those who have lost an
audience since, to whom no more of its rows are sent, nor where row-level security decides, which only tables have. Rows
of gained audiences are those of the present. And a base is read as a whole, as tables with an index on their audience
are not: it serves those who see a good share of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from anabranch.runtime import metrics
from anabranch.runtime.errors import CallError
from anabranch.store.audiences.viewing import read_share
from anabranch.store.catalog.databases import Database
from anabranch.store.lake.published_bases import read_floor
from anabranch.v1 import errors_pb2, position_pb2
from anabranch_snapshot.pulls.bases import Served, WhyPostgres
from anabranch_snapshot.pulls.pull import Wanted
from anabranch_snapshot.snapshot import Snapshot
from anabranch_snapshot.viewers import Viewer

_LEAST_SHARE = 0.1
"""The least share of restricted tables for which a base is read."""
_log = structlog.get_logger()


async def choose_source(
    snapshot: Snapshot,
    database: Database,
    wanted: Sequence[Wanted],
    state: position_pb2.NodeState,
    subject: str,
    viewer: Viewer | None,
) -> tuple[Served, frozenset[str]] | None:
    """The published base that serves a pull, with the log kept from its position on for the node, and the audiences
    that its viewer sees there; None: Postgres does. ``viewer``: the caller, whose principal is known, where there are
    restricted tables.

    Raises:
        CallError: INVALID_TOKEN, where the pull goes on from a base that is not available any more; UNAVAILABLE.
        psycopg.Error: the base, the floor or the audiences can't be read.
    """
    runs = {one.progress.base.run_id for one in wanted if one.progress is not None and one.progress.base is not None}
    keyed = any(one.progress is not None and one.progress.base is None for one in wanted)
    restricted = any(one.table.name in database.restricted for one in wanted)
    chosen: Served | WhyPostgres = WhyPostgres.RESUMED
    seen: frozenset[str] | None = frozenset()
    if restricted and (viewer is None or viewer.acting is not None or any(one.audiences for one in wanted)):
        chosen = WhyPostgres.RESTRICTED
    elif not keyed and len(runs) <= 1:
        chosen = await snapshot.bases.choose(database, [one.table for one in wanted], state, next(iter(runs), None))
        if isinstance(chosen, Served) and restricted and viewer is not None:
            seen = await snapshot.viewers.seen_since(viewer, chosen.found.position)
            if seen is None or await _share(snapshot, database, wanted, seen) < _LEAST_SHARE:
                chosen = WhyPostgres.RESTRICTED
        if isinstance(chosen, Served) and not await _held(snapshot, database, chosen, state, subject):
            chosen = WhyPostgres.FLOOR
    if isinstance(chosen, Served) and seen is not None:
        _log.info("a pull reads from Parquet", database=database.name, run=chosen.found.run_id)
        metrics.count("anabranch_pull_sources", database=database.name, source="parquet", why="")
        return chosen, seen
    if runs:
        raise CallError(
            errors_pb2.REASON_INVALID_TOKEN,
            f"this pull can't go on from where it broke ({chosen}): pull these tables from their start",
        )
    _log.info("a pull reads from Postgres", database=database.name, why=str(chosen))
    metrics.count("anabranch_pull_sources", database=database.name, source="postgres", why=str(chosen))
    return None


async def _share(snapshot: Snapshot, database: Database, wanted: Sequence[Wanted], seen: frozenset[str]) -> float:
    """The share of the restricted tables among those that are wanted that a caller sees."""
    tables = [one.table.id for one in wanted if one.table.name in database.restricted]
    async with snapshot.pool.connection() as conn:
        return await read_share(conn, tables, seen)


async def _held(
    snapshot: Snapshot, database: Database, served: Served, state: position_pb2.NodeState, subject: str
) -> bool:
    """Keep the log from the base's position on for the node, which will follow it from there. Return whether the log
    still goes back so far once that is stored."""
    position = served.found.position
    snapshot.nodes.note(database, subject, state, position, pulled=True)
    await snapshot.nodes.flush()
    async with snapshot.pool.connection() as conn:
        floor = await read_floor(conn, database.id, database.epoch)
    return floor is not None and floor <= position
