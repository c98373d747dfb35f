"""The origin of a change: names and principals of nodes, as long as they are known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from anabranch.store.session.engine import Session

NAMES = """
select node_id, name, principal from anabranch.nodes where database_id = %(db)s and node_id = any(%(nodes)s::text[])
"""


class Who(NamedTuple):
    """A node's name, and the principal that it belongs to."""

    name: str
    principal: str


def node_names(conn: Session, database_id: int, node_ids: Iterable[str]) -> dict[str, Who]:
    """By node; a node that was forgotten has neither."""
    rows = conn.execute(NAMES, {"db": database_id, "nodes": sorted(set(node_ids))}).fetchall()
    return {node: Who(name, principal) for node, name, principal in rows}
