"""Append batches to the inbox, as ingest does: in one statement for many calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.store.inbox.session import Session, run
from anabranch.store.nodes.tokens import ACKNOWLEDGED, CALLS, Call, Mode, call_columns
from anabranch.store.session.channels import INBOX_CHANNEL
from anabranch.values import postgres_binary
from anabranch.values.postgres_binary import Parameter

LAST_CALL_IDS = 1_000
"""The most ids that a stream adds to its node's last call. A node that lost a stream's first answer has sent the
first of them."""

# Token and batches in one step, without waiting for any lock: a group commit or another call may hold a node's row,
# and must not hold up the calls of all other nodes. ``held``: the calls that carry their node's current token, their
# nodes' rows locked. ``appended``: the batches of those, and of calls with number 0, whose token was checked before.
# A batch that has a verdict, or waits already, is left out: ``verdicts.find`` compares its principal and its content.
# The last array names the calls to try again: their token was the current one when the statement began, and another
# transaction held the row. The statement's snapshot may be older than a verdict that is being committed now for the
# same id. Then the batch is appended although it is decided, and the resolver, which sees both, drops it.
#
# Audiences and claims come as numbers of texts, since most batches of a statement have those of their call; where no
# batch has any, the arrays of the numbers are empty, and unnest gives NULL.
APPEND = f"""
with call as materialized ({CALLS}),
held as materialized (
    select c.* from call c
    cross join lateral (
        select true from anabranch.nodes x
        where x.database_id = c.database_id and x.node_id = c.node_id
          and x.principal = c.principal and x.epoch = c.epoch and x.token = c.token
        for update skip locked
    ) x
),
admitted as (
    update anabranch.nodes n
    set token = c.new_token,
        previous_token = case when c.mode = {Mode.ROTATE} then c.token else n.previous_token end,
        last_call = case when c.mode = {Mode.ROTATE} then string_to_array(c.ids, ',')
                         when c.mode = {Mode.EXTEND} and cardinality(n.last_call) < {LAST_CALL_IDS}
                         then n.last_call || string_to_array(c.ids, ',')
                         else n.last_call end,
        name = c.name,
        last_seen_ms = greatest(n.last_seen_ms, $12::bigint),
        acknowledged = {ACKNOWLEDGED}
    from held c
    where n.database_id = c.database_id and n.node_id = c.node_id
    returning c.number
),
appended as (
    insert into anabranch.inbox (database_id, batch_id, node_id, principal, basis, prev, payload, payload_sha256,
                                 traceparent, arrived_ms, refusal, refusal_message, read_audiences, write_audiences,
                                 claims)
    select a.database_id, a.batch_id, a.node_id, a.principal, a.basis, nullif(a.prev, ''), a.payload,
           a.payload_sha256, nullif(a.traceparent, ''), $12::bigint, nullif(a.refusal, 0),
           nullif(a.refusal_message, ''), (($27::text[])[a.read::int])::text[], (($27::text[])[a.write::int])::text[],
           ($27::text[])[a.claims::int]
    from unnest($13::bigint[], $14::bigint[], $15::text[], $16::text[], $17::text[], $18::bigint[], $19::text[],
                $20::bytea[], $21::bytea[], $22::text[], $23::bigint[], $24::text[], $25::bigint[], $26::bigint[],
                $28::bigint[])
        a(number, database_id, batch_id, node_id, principal, basis, prev, payload, payload_sha256, traceparent,
          refusal, refusal_message, read, write, claims)
    where (a.number = 0 or (a.number in (select d.number from admitted d)) is true)
      and (select true from anabranch.batches b
           where b.database_id = a.database_id and b.batch_id = a.batch_id limit 1) is null
      and (select true from anabranch.inbox i
           where i.database_id = a.database_id and i.batch_id = a.batch_id limit 1) is null
    on conflict (database_id, batch_id) do nothing
    returning database_id, batch_id
),
told as (
    select pg_notify('{INBOX_CHANNEL}', d.database_id::text) from (select distinct database_id from appended) d
)
select coalesce((select array_agg(number) from admitted), '{{}}'),
       coalesce((select array_agg(database_id) from appended), '{{}}'),
       coalesce((select array_agg(batch_id) from appended), '{{}}'),
       coalesce((select array_agg(c.number) from call c
                 where ((c.number in (select h.number from held h)) is true) is false
                   and (select x.token = c.token and x.principal = c.principal and x.epoch = c.epoch
                        from anabranch.nodes x
                        where x.database_id = c.database_id and x.node_id = c.node_id limit 1)), '{{}}'),
       (select count(*) from told)
""".encode()

# Counted no further than the limit goes, so that the cost does not follow the backlog. ``> 0``: so it is found by its
# principal, too (inbox_parked_of). A payload's length is read without it.
WAITING = b"""
select q.database_id, q.principal, ready.batches + parked.batches, ready.bytes + parked.bytes
from unnest($1::bigint[], $2::text[]) q(database_id, principal)
cross join lateral (
    select count(*) as batches, coalesce(sum(octet_length(x.payload)), 0) as bytes from (
        select i.payload from anabranch.inbox i
        where i.database_id = q.database_id and i.principal = q.principal and i.park_deadline_ms is null
        limit $3::bigint
    ) x
) ready
cross join lateral (
    select count(*) as batches, coalesce(sum(octet_length(x.payload)), 0) as bytes from (
        select i.payload from anabranch.inbox i
        where i.database_id = q.database_id and i.principal = q.principal and i.park_deadline_ms > 0
        limit $3::bigint
    ) x
) parked
"""


@dataclass(slots=True, eq=False)
class Arrival:
    """A batch to append. ``number`` is that of its call among ``append``'s calls, 0 where the call was let in before.
    ``payload`` is empty where ``refusal`` (an ``anabranch.v1.Reason``, 0 for none) says that it is not valid: it is
    never read then. ``prev`` and ``traceparent`` are empty where there are none. ``read_audiences`` and
    ``write_audiences``: what the caller's claims give, as ``array_text`` writes it; None where no rule asks them
    (``write_audiences``: where those of reading count for writing, too). ``claims``: all of them as JSON, where
    row-level security asks for them."""

    database_id: int
    batch_id: str
    node_id: str
    principal: str
    basis: int
    prev: str
    payload: bytes
    payload_sha256: bytes
    traceparent: str
    refusal: int = 0
    refusal_message: str = ""
    number: int = 0
    read_audiences: str | None = None
    write_audiences: str | None = None
    claims: str | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of ``append``: the numbers of the calls that carried their node's current token, the (database id,
    batch id) of the batches that it appended, and the numbers of the calls whose node's row was locked elsewhere."""

    calls: frozenset[int]
    batches: frozenset[tuple[int, str]]
    busy: frozenset[int]


class Load(NamedTuple):
    """Batches, and the bytes of their payloads."""

    batches: int
    size: int

    def more(self, other: Load) -> Load:
        """Both of them."""
        return Load(self.batches + other.batches, self.size + other.size)

    def less(self, other: Load) -> Load:
        """This one without the other."""
        return Load(self.batches - other.batches, self.size - other.size)

    def holds(self, other: Load) -> bool:
        """Whether there is room in this one for the other."""
        return self.batches >= other.batches and self.size >= other.size


NO_LOAD = Load(0, 0)


def load_of(arrivals: Sequence[Arrival]) -> Load:
    """The load that batches are."""
    return Load(len(arrivals), sum(len(arrival.payload) for arrival in arrivals))


NOTHING = Appended(frozenset(), frozenset(), frozenset())
"""The result of an append that was not needed."""


def parameters_of(calls: Sequence[Call], arrivals: Sequence[Arrival], now_ms: int) -> list[Parameter]:
    """The parameters of ``APPEND``."""
    return [
        *call_columns(calls),
        postgres_binary.int8(now_ms),
        postgres_binary.int8_array([a.number for a in arrivals]),
        postgres_binary.int8_array([a.database_id for a in arrivals]),
        postgres_binary.text_array([a.batch_id for a in arrivals], "batch_id"),
        postgres_binary.text_array([a.node_id for a in arrivals], "node_id"),
        postgres_binary.text_array([a.principal for a in arrivals], "principal"),
        postgres_binary.int8_array([a.basis for a in arrivals]),
        postgres_binary.text_array([a.prev for a in arrivals], "prev"),
        postgres_binary.bytea_array([a.payload for a in arrivals]),
        postgres_binary.bytea_array([a.payload_sha256 for a in arrivals]),
        postgres_binary.text_array([a.traceparent for a in arrivals], "traceparent"),
        postgres_binary.int8_array([a.refusal for a in arrivals]),
        postgres_binary.text_array([a.refusal_message for a in arrivals], "refusal_message"),
        *_audience_columns(arrivals),
    ]


def _audience_columns(arrivals: Sequence[Arrival]) -> list[Parameter]:
    lists: dict[str | None, int] = {None: 0}
    read = [lists.setdefault(a.read_audiences, len(lists)) for a in arrivals]
    write = [lists.setdefault(a.write_audiences, len(lists)) for a in arrivals]
    claims = [lists.setdefault(a.claims, len(lists)) for a in arrivals]
    texts = [text for text in lists if text is not None]
    return [
        postgres_binary.int8_array(read if texts else []),
        postgres_binary.int8_array(write if texts else []),
        postgres_binary.text_array(texts, "audiences"),
        postgres_binary.int8_array(claims if texts else []),
    ]


async def append(session: Session, calls: Sequence[Call], arrivals: Sequence[Arrival], now_ms: int) -> Appended:
    """Check and replace the tokens of ``calls``, and append those of ``arrivals`` that belong to a call let in and are
    new. No two arrivals have the same database and batch id.

    Raises:
        psycopg.Error: nothing was done.
    """
    parameters = parameters_of(calls, arrivals, now_ms)
    [(numbers, databases, ids, busy, _)] = await run(session, APPEND, parameters)
    return Appended(frozenset(numbers), frozenset(zip(databases, ids, strict=True)), frozenset(busy))


async def count_waiting(
    session: Session, principals: Sequence[tuple[int, str]], most: int
) -> dict[tuple[int, str], Load]:
    """The batches of each (database id, principal) that wait in the inbox, counted up to ``most``."""
    parameters = [
        postgres_binary.int8_array([d for d, _ in principals]),
        postgres_binary.text_array([p for _, p in principals], "principal"),
        postgres_binary.int8(most),
    ]
    rows = await run(session, WAITING, parameters)
    return {(d, p): Load(batches, size) for d, p, batches, size in rows}
