"""The look-ups of a Pull from Parquet in Postgres: in our own tables only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.store.log.seal import EMPTY_CHAIN
from anabranch.store.session.engine import AsyncSession

FIND = """
select c.run_id, c.root, c.to_position, coalesce(h.position, 0), h.chain, d.floor_ms, d.schema_version, d.epoch,
       (select chain from anabranch.groups where database_id = d.id and position = c.to_position),
       (select position from anabranch.groups where database_id = d.id and position > c.to_position
        order by position limit 1),
       coalesce((select acknowledged from anabranch.nodes where database_id = d.id and node_id = %(node)s), 0),
       not exists (select from anabranch.compactions later where later.database_id = d.id and later.epoch = d.epoch
                   and later.to_position > c.to_position),
       (select chain from anabranch.groups where database_id = d.id and position = %(seen)s)
from anabranch.databases d
join anabranch.compactions c on c.database_id = d.id and c.epoch = d.epoch
left join lateral (
    select position, chain from anabranch.groups where database_id = d.id order by position desc limit 1
) h on true
where d.id = %(db)s and d.epoch = %(epoch)s and (%(run)s::text is null or c.run_id = %(run)s)
order by c.to_position desc limit 1
"""
MANIFEST = "select manifest from anabranch.compactions where database_id = %(db)s and run_id = %(run)s"
FLOOR = "select floor_ms from anabranch.databases where id = %(db)s and epoch = %(epoch)s"


@dataclass(frozen=True, slots=True)
class FoundBase:
    """A published run, beside the database as it is at the same moment. ``position`` is the run's; ``chain`` the one of
    the group there, None where the log has no such group; ``lacks_since`` the position of the first group after it;
    ``acknowledged`` the stored position of the node that asks; ``newest``: no run was published after it;
    ``seen_chain`` the chain at the position that was asked for."""

    run_id: str
    root: str
    position: int
    head: int
    head_chain: bytes
    floor: int
    schema_version: int
    epoch: str
    chain: bytes | None
    lacks_since: int | None
    acknowledged: int
    newest: bool
    seen_chain: bytes | None


async def find_base(
    conn: AsyncSession, database_id: int, epoch: str, node_id: str, run_id: str | None = None, seen: int = 0
) -> FoundBase | None:
    """The newest published run of an epoch, or the one of that id; None where there is none. ``seen``: a position whose
    chain is wanted.

    Raises:
        psycopg.Error: it can't be read.
    """
    values = {"db": database_id, "epoch": epoch, "node": node_id, "run": run_id, "seen": seen}
    row = await (await conn.execute(FIND, values)).fetchone()
    if row is None:
        return None
    run, root, position, head, head_chain, floor, version, epoch, chain, lacks, acknowledged, newest, seen_chain = row
    chain = EMPTY_CHAIN if position == 0 else None if chain is None else bytes(chain)
    settled = bytes(head_chain or EMPTY_CHAIN)
    return FoundBase(
        run, root, position, head, settled, floor, version, epoch, chain, lacks, acknowledged, newest, seen_chain
    )


async def read_manifest(conn: AsyncSession, database_id: int, run_id: str) -> Mapping[str, Any] | None:
    """The manifest that a run published; None where the run no longer exists. Raises psycopg.Error."""
    row = await (await conn.execute(MANIFEST, {"db": database_id, "run": run_id})).fetchone()
    return None if row is None else row[0]


async def read_floor(conn: AsyncSession, database_id: int, epoch: str) -> int | None:
    """The floor as it is now; None where the epoch is another one. Raises psycopg.Error."""
    row = await (await conn.execute(FLOOR, {"db": database_id, "epoch": epoch})).fetchone()
    return None if row is None else int(row[0])
