"""List the nodes of a database for people, and forget a node that won't come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anabranch.merge.retention import Hold, plan
from anabranch.store.retention.floor import databases, read_facts
from anabranch.store.session.engine import Session

MOST = 10_000
"""The most nodes that are listed at once."""

NODES = """
select n.node_id, n.name, n.principal, n.last_seen_ms, n.acknowledged, n.epoch = d.epoch,
       coalesce(k.total, 0), coalesce(k.counts, '[]'), k.told_ms
from anabranch.databases d join anabranch.nodes n on n.database_id = d.id
left join anabranch.node_dead_letters k on k.database_id = n.database_id and k.node_id = n.node_id
where d.name = %(name)s and n.node_id > %(after)s
order by n.node_id limit %(most)s
"""
FIND = """
select n.node_id, n.name from anabranch.databases d join anabranch.nodes n on n.database_id = d.id
where d.name = %(name)s and (n.node_id = %(wanted)s or n.name = %(wanted)s)
order by n.node_id = %(wanted)s desc, n.node_id limit 3
"""
FORGET = """
delete from anabranch.nodes n using anabranch.databases d
where d.name = %(name)s and n.database_id = d.id and n.node_id = %(node)s and n.last_seen_ms < %(seen_before)s
returning n.node_id
"""
CLOCK = "select (extract(epoch from clock_timestamp()) * 1000)::bigint"


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node. Positions and times in milliseconds. ``holds``: the log is kept for it. ``current``: it has called since
    the current epoch began. ``dead_letters``: as it last reported, at ``told_ms``, in all and by reason and table."""

    id: str
    name: str
    principal: str
    last_seen_ms: int
    acknowledged: int
    behind_ms: int
    holds: bool
    current: bool
    dead_letters: int
    dead_letters_of: tuple[tuple[str, str, int], ...]
    told_ms: int | None


@dataclass(frozen=True, slots=True)
class KnownNodes:
    """One page. ``after``: where the next one begins; "" for the last."""

    now_ms: int
    head: int
    nodes: tuple[KnownNode, ...]
    after: str


def known_nodes(conn: Session, database: str, after: str = "", most: int = MOST) -> KnownNodes | None:
    """The nodes of a database behind ``after``, by their id; None where there is no such database. Raises
    psycopg.Error."""
    for kept in databases(conn, database):
        [(now_ms,)] = conn.execute(CLOCK).fetchall()
        facts, _ = read_facts(conn, kept, now_ms)
        bounds = plan(facts).bounds if facts.head else ()
        # A node holds the log only where no other hold is stricter.
        held = bounds[0].position if bounds and bounds[0].hold is Hold.NODE else -1
        since = plan(facts).absent_since_ms
        rows = conn.execute(NODES, {"name": database, "after": after, "most": most + 1}).fetchall()
        nodes = tuple(_node(row, facts.head, held, since) for row in rows[:most])
        return KnownNodes(now_ms, facts.head, nodes, nodes[-1].id if len(rows) > most else "")
    return None


def _node(row: tuple[Any, ...], head: int, held: int, since: int) -> KnownNode:
    node_id, name, principal, seen_ms, acknowledged, current, total, counts, told_ms = row
    return KnownNode(
        id=node_id,
        name=name,
        principal=principal,
        last_seen_ms=seen_ms,
        acknowledged=acknowledged,
        behind_ms=max(0, head - acknowledged),
        holds=acknowledged == held and seen_ms >= since,
        current=current,
        dead_letters=total,
        dead_letters_of=tuple((one["reason"], one["table"], one["count"]) for one in counts),
        told_ms=told_ms,
    )


def find(conn: Session, database: str, wanted: str) -> list[tuple[str, str]]:
    """Id and name of the nodes with this id, or this name; three at most. Raises psycopg.Error."""
    return [(node_id, name) for node_id, name in conn.execute(FIND, {"name": database, "wanted": wanted}).fetchall()]


def forget(conn: Session, database: str, node_id: str, seen_before_ms: int) -> bool:
    """Forget a node that was last seen before ``seen_before_ms``: it holds the log no longer, and its name and its
    token are gone. Verdicts, changes and lost values stay. False where it was seen since, or is not there.

    Raises:
        psycopg.Error: it can't be done now.
    """
    parameters = {"name": database, "node": node_id, "seen_before": seen_before_ms}
    return conn.execute(FORGET, parameters).fetchone() is not None
