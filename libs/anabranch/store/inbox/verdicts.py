"""Verdicts as ingest looks them up: of batches that are sent again, and of batches whose senders wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.store.inbox.parking import AWAITED
from anabranch.store.inbox.session import Session, run
from anabranch.values import postgres_binary
from anabranch.wire.awaited import awaiting_row

Key = tuple[int, str]
"""Database id and batch id."""

# Inbox and batches by one snapshot: a batch is in one of them, or in neither, and is not missed on its way.
FIND = f"""
select q.database_id, q.batch_id, coalesce(b.payload_sha256, i.payload_sha256), coalesce(b.principal, i.principal),
       b.verdict, b.position, i.awaits, i.awaited_in, i.awaited_key, i.park_deadline_ms
from unnest($1::bigint[], $2::text[]) q(database_id, batch_id)
left join lateral (
    select x.payload_sha256, x.principal, x.verdict, x.position from anabranch.batches x
    where x.database_id = q.database_id and x.batch_id = q.batch_id limit 1
) b on true
left join lateral (
    select x.payload_sha256, x.principal, {AWAITED} from anabranch.inbox x
    where x.database_id = q.database_id and x.batch_id = q.batch_id limit 1
) i on true
where b.payload_sha256 is not null or i.payload_sha256 is not null
""".encode()

# The heads come from the same snapshot, without a batch id: none of the verdicts is beyond them.
DECIDED = b"""
select q.database_id, q.batch_id, b.payload_sha256, b.principal, b.verdict, b.position
from unnest($1::bigint[], $2::text[]) q(database_id, batch_id)
cross join lateral (
    select x.payload_sha256, x.principal, x.verdict, x.position from anabranch.batches x
    where x.database_id = q.database_id and x.batch_id = q.batch_id limit 1
) b
union all
select d.id, '', g.chain, '', ''::bytea, g.position
from (select distinct x.id from unnest($1::bigint[]) x(id)) d
cross join lateral (
    select x.position, x.chain from anabranch.groups x where x.database_id = d.id order by x.position desc limit 1
) g
"""


class SentBatch(NamedTuple):
    """A batch that was sent before. ``verdict`` is a serialized ``anabranch.v1.Verdict``, of one that waits for a row
    beyond its park time a pending one, and ``position`` that of its group in milliseconds; None while it waits
    otherwise."""

    payload_sha256: bytes
    principal: str
    verdict: bytes | None
    position: int | None


class DecidedBatch(NamedTuple):
    """A verdict (a serialized ``anabranch.v1.Verdict``) at a position in milliseconds, with the SHA-256 and the
    principal of the batch that it decided."""

    payload_sha256: bytes
    principal: str
    verdict: bytes
    position: int = 0


class SettledHead(NamedTuple):
    """A database's last group: its position in milliseconds, and the chain there."""

    database_id: int
    position: int
    chain: bytes


def _columns(keys: Sequence[Key]) -> list[postgres_binary.Parameter]:
    return [
        postgres_binary.int8_array([d for d, _ in keys]),
        postgres_binary.text_array([b for _, b in keys], "batch_id"),
    ]


async def find(session: Session, keys: Sequence[Key]) -> dict[Key, SentBatch]:
    """The batches that are decided or wait, by key; a batch that is neither is left out."""
    rows = await run(session, FIND, _columns(keys))
    found: dict[Key, SentBatch] = {}
    for number, batch_id, sha256, principal, verdict, position, awaits, table, row_key, until_ms in rows:
        if verdict is None and awaits:
            verdict = awaiting_row(batch_id, table, row_key, until_ms)
        found[number, batch_id] = SentBatch(sha256, principal, verdict, position)
    return found


async def decided(session: Session, keys: Sequence[Key]) -> tuple[list[tuple[Key, DecidedBatch]], list[SettledHead]]:
    """The verdicts of those batches that have one, and the heads of their databases, which no verdict is beyond."""
    found: list[tuple[Key, DecidedBatch]] = []
    heads: list[SettledHead] = []
    for number, batch_id, sha256, principal, verdict, position in await run(session, DECIDED, _columns(keys)):
        if batch_id:
            found.append(((number, batch_id), DecidedBatch(sha256, principal, verdict, position)))
        else:
            heads.append(SettledHead(number, position, sha256))
    return found, heads
