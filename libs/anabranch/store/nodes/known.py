"""List the nodes of a database for people, and forget a node that won't come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, Text, bindparam, delete, or_, select

from anabranch.merge.retention import Hold, plan
from anabranch.store.retention.floor import databases, read_facts, server_ms
from anabranch.store.schema import DATABASES, NODE_DEAD_LETTERS, NODES
from anabranch.store.session.core import execute
from anabranch.store.session.engine import Session

MOST = 10_000
"""The most nodes that are listed at once."""

_OF_DATABASE = DATABASES.c.name == bindparam("database")

LIST = (
    select(
        NODES.c.node_id,
        NODES.c.name,
        NODES.c.principal,
        NODES.c.last_seen_ms,
        NODES.c.acknowledged,
        NODES.c.epoch == DATABASES.c.epoch,
        NODE_DEAD_LETTERS.c.total,
        NODE_DEAD_LETTERS.c.counts,
        NODE_DEAD_LETTERS.c.told_ms,
        NODES.c.app_version,
    )
    .select_from(DATABASES.join(NODES).outerjoin(NODE_DEAD_LETTERS))
    .where(_OF_DATABASE, NODES.c.node_id > bindparam("after"))
    .order_by(NODES.c.node_id)
    .limit(bindparam("most", type_=Integer))
)
"""A page of a database's nodes, by their id, with the dead letters that each last reported."""

_WANTED = bindparam("wanted", type_=Text)
FIND = (
    select(NODES.c.node_id, NODES.c.name)
    .select_from(DATABASES.join(NODES))
    .where(_OF_DATABASE, or_(NODES.c.node_id == _WANTED, NODES.c.name == _WANTED))
    .order_by((NODES.c.node_id == _WANTED).desc(), NODES.c.node_id)
    .limit(3)
)
"""The nodes with this id, and then those with this name."""

FORGET = delete(NODES).where(
    _OF_DATABASE,
    NODES.c.database_id == DATABASES.c.id,
    NODES.c.node_id == bindparam("node"),
    NODES.c.last_seen_ms < bindparam("seen_before"),
)
"""Forgets a node that was not seen since."""


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A node. Positions and times in milliseconds. ``holds``: the log is kept for it. ``current``: it has called since
    the current epoch began. ``dead_letters``: as it last reported, at ``told_ms``, in all and by reason and table.
    ``app_version``: the schema version that its app was built for, 0 where it follows today's."""

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
    app_version: int


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
        now_ms = server_ms(conn)
        facts, _ = read_facts(conn, kept, now_ms)
        bounds = plan(facts).bounds if facts.head else ()
        # A node holds the log only where no other hold is stricter.
        held = bounds[0].position if bounds and bounds[0].hold is Hold.NODE else -1
        since = plan(facts).absent_since_ms
        rows = execute(conn, LIST, database=database, after=after, most=most + 1).fetchall()
        nodes = tuple(_node(row, facts.head, held, since) for row in rows[:most])
        return KnownNodes(now_ms, facts.head, nodes, nodes[-1].id if len(rows) > most else "")
    return None


def _node(row: tuple[Any, ...], head: int, held: int, since: int) -> KnownNode:
    node_id, name, principal, seen_ms, acknowledged, current, total, counts, told_ms, app_version = row
    return KnownNode(
        id=node_id,
        name=name,
        principal=principal,
        last_seen_ms=seen_ms,
        acknowledged=acknowledged,
        behind_ms=max(0, head - acknowledged),
        holds=acknowledged == held and seen_ms >= since,
        current=current,
        dead_letters=total or 0,
        dead_letters_of=tuple((one["reason"], one["table"], one["count"]) for one in counts or ()),
        told_ms=told_ms,
        app_version=app_version,
    )


def find(conn: Session, database: str, wanted: str) -> list[tuple[str, str]]:
    """Id and name of the nodes with this id, or this name; three at most. Raises psycopg.Error."""
    return [(node_id, name) for node_id, name in execute(conn, FIND, database=database, wanted=wanted)]


def forget(conn: Session, database: str, node_id: str, seen_before_ms: int) -> bool:
    """Forget a node that was last seen before ``seen_before_ms``: it holds the log no longer, and its name and its
    token are gone. Verdicts, changes and lost values stay. False where it was seen since, or is not there.

    Raises:
        psycopg.Error: it can't be done now.
    """
    return execute(conn, FORGET, database=database, node=node_id, seen_before=seen_before_ms).rowcount == 1
