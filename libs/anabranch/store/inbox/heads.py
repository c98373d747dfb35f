"""The state of a database that every answer carries: its last group, its floor, its schema version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anabranch.store.audiences.rules import NO_RULES, AudienceRules, rules_from_json
from anabranch.store.catalog.policy import database_policy
from anabranch.store.inbox.session import Session, run
from anabranch.store.log.seal import EMPTY_CHAIN, position_token
from anabranch.values import postgres_binary

HEADS = b"""
select d.id, d.name, d.epoch, d.floor_ms, d.schema_version, d.policy, d.seal_key, coalesce(g.position, 0), g.chain,
       d.audience_rules
from anabranch.databases d
left join lateral (
    select x.position, x.chain from anabranch.groups x where x.database_id = d.id order by x.position desc limit 1
) g on true
where $1::bigint = 0 or d.id = $1::bigint
"""


@dataclass(frozen=True, slots=True)
class DatabaseHead:
    """A database and its last group (position 0 and an empty chain where there is none). Only committed groups are
    seen, and nothing can appear at or below the last one's position any more. ``retention_ms``: how long verdicts are
    kept. ``audience_rules``: where principals have their audiences from."""

    id: int
    name: str
    epoch: str
    floor_ms: int
    schema_version: int
    retention_ms: int
    seal_key: bytes = field(repr=False)
    position: int = 0
    chain: bytes = EMPTY_CHAIN
    audience_rules: AudienceRules = field(default=NO_RULES, hash=False)

    @property
    def token(self) -> bytes:
        """The token of its position."""
        return position_token(self.seal_key, self.epoch, self.position, self.chain)


async def read_heads(session: Session, database_id: int = 0) -> list[DatabaseHead]:
    """The head of one database, or of all."""
    rows = await run(session, HEADS, [postgres_binary.int8(database_id)])
    return [_head(row) for row in rows]


def _head(row: tuple[Any, ...]) -> DatabaseHead:
    number, name, epoch, floor_ms, schema_version, policy, seal_key, position, chain, rules = row
    return DatabaseHead(
        number,
        name,
        epoch,
        floor_ms,
        schema_version,
        database_policy(policy).retention_days * 86_400_000,
        seal_key,
        position,
        chain or EMPTY_CHAIN,
        rules_from_json(rules) if rules else NO_RULES,
    )
