"""The verdicts on a node's batches, also those that the server has deleted meanwhile: it keeps verdicts for a while,
and a story may last longer."""

from __future__ import annotations

from anabranch.scenario.node import Node
from anabranch.scenario.world import World
from anabranch.v1 import verdict_pb2

_VERDICTS = """
select b.batch_id, b.verdict from anabranch.batches b join anabranch.databases d on d.id = b.database_id
where d.name = %s and b.batch_id = any(%s)
"""


def remember(world: World) -> None:
    """Keep the verdicts that the server has now. Called before anything that may make it delete them."""
    for batch_id, raw in _known(world, [made.id for node in world.nodes.values() for made in node.made]).items():
        world.verdicts.setdefault(batch_id, raw)


def verdicts_of(world: World, node: Node) -> list[verdict_pb2.Verdict | None]:
    """The verdict on each batch of a node, in the order made: the first that the server gave, or the one of its dead
    letter on the node; None where it has none."""
    ids = [made.id for made in node.made]
    known = {**_known(world, ids), **world.verdicts}
    with node.reader() as conn:
        for batch_id, raw in conn.execute("SELECT id, verdict FROM _db_mutations_queue_dead"):
            known.setdefault(batch_id, raw)
    return [verdict_pb2.Verdict.FromString(known[i]) if i in known else None for i in ids]


def _known(world: World, ids: list[str]) -> dict[str, bytes]:
    return {batch_id: bytes(raw) for batch_id, raw in world.conn.execute(_VERDICTS, (world.name, ids))}
