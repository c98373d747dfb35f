"""The SQL that writes the records of a group commit. Every statement takes one array for each column that differs from
row to row, and one value for each column that is the same for the whole group."""

from __future__ import annotations

READ_HEAD = b"""
select position, chain from anabranch.groups where database_id = $1 order by position desc limit 1
"""
"""$1 database. No row where the database has no group."""

READ_VERSIONS = b"""
select r.* from unnest($1::int8[], $2::text[]) as v (table_id, key)
cross join lateral (
    select table_id, key, last_position, last_node, last_batch, other_position, insert_position, insert_place,
           insert_node, insert_batch, tombstone_batch, stamps::text, overtaken::text, audience
    from anabranch.row_versions as w
    where w.table_id = v.table_id and w.key = v.key
    offset 0
) as r
"""
"""$1 tables, $2 key texts. The lateral subquery is run by the index, whatever the statistics say."""

WRITE_LOG = b"""
insert into anabranch.log (database_id, position, batch_id, ordinal, node_id, table_id, key, type, effect,
                           changed, effect_hash, audience_before, audience_after)
select $1::int8, $2::int8, v.batch_id, v.ordinal, v.node_id, v.table_id, v.key, v.type, v.effect,
       v.changed::text[], v.effect_hash, v.audience_before::text[], v.audience_after::text[]
from unnest($3::text[], $4::int8[], $5::text[], $6::int8[], $7::text[], $8::int8[], $9::bytea[], $10::text[],
            $11::bytea[], $12::text[], $13::text[])
    as v (batch_id, ordinal, node_id, table_id, key, type, effect, changed, effect_hash, audience_before,
          audience_after)
"""

APPEND_EFFECT = b"""
update anabranch.log set effect = effect || $5::bytea
where database_id = $1::int8::int and position = $2::int8 and batch_id = $3::text and ordinal = $4::int8::int
"""

_VERSION_COLUMNS = """table_id, key, last_position, last_node, last_batch, other_position, insert_position,
        insert_place, insert_node, insert_batch, tombstone_batch, stamps, overtaken, audience"""
_VERSION_ROWS = f"""unnest($1::int8[], $2::text[], $3::int8[], $4::text[], $5::text[], $6::int8[], $7::int8[],
            $8::int8[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::text[])
    as v ({_VERSION_COLUMNS})"""

INSERT_VERSIONS = f"""
insert into anabranch.row_versions ({_VERSION_COLUMNS})
select v.table_id, v.key, v.last_position, v.last_node, v.last_batch, v.other_position, v.insert_position,
       v.insert_place, v.insert_node, v.insert_batch, v.tombstone_batch, v.stamps::jsonb, v.overtaken::jsonb,
       v.audience::text[]
from {_VERSION_ROWS}
""".encode()

UPDATE_VERSIONS = f"""
update anabranch.row_versions as w
set last_position = v.last_position, last_node = v.last_node, last_batch = v.last_batch,
    other_position = v.other_position, insert_position = v.insert_position, insert_place = v.insert_place,
    insert_node = v.insert_node, insert_batch = v.insert_batch, tombstone_batch = v.tombstone_batch,
    stamps = v.stamps::jsonb, overtaken = v.overtaken::jsonb, audience = v.audience::text[]
from {_VERSION_ROWS}
where w.table_id = v.table_id and w.key = v.key
""".encode()

WRITE_BATCHES = b"""
insert into anabranch.batches (database_id, batch_id, node_id, principal, payload_sha256, status, reason,
                               position, place, verdict, decided_ms)
select $1::int8, v.batch_id, v.node_id, v.principal, v.payload_sha256, v.status, v.reason, $2::int8, v.place,
       v.verdict, $3::int8
from unnest($4::text[], $5::text[], $6::text[], $7::bytea[], $8::int8[], $9::int8[], $10::int8[],
            $11::bytea[])
    as v (batch_id, node_id, principal, payload_sha256, status, reason, place, verdict)
"""

WRITE_CONFLICTS = b"""
insert into anabranch.conflicts (database_id, position, batch_id, ordinal, table_id, key, column_name,
                                 losing_value, losing_batch, losing_node, winning_batch, winning_node,
                                 audience_before, audience_after, cause)
select $1::int8, $2::int8, v.batch_id, v.ordinal, v.table_id, v.key, v.column_name, v.losing_value, v.losing_batch,
       v.losing_node, v.winning_batch, v.winning_node, v.audience_before::text[], v.audience_after::text[], v.cause
from unnest($3::text[], $4::int8[], $5::int8[], $6::text[], $7::text[], $8::bytea[], $9::text[], $10::text[],
            $11::text[], $12::text[], $13::text[], $14::text[], $15::int8[])
    as v (batch_id, ordinal, table_id, key, column_name, losing_value, losing_batch, losing_node, winning_batch,
          winning_node, audience_before, audience_after, cause)
"""

WRITE_SUMS = b"""
insert into anabranch.table_sums (table_id, position, row_count, row_hash)
select v.table_id, $1::int8, v.row_count, v.row_hash
from unnest($2::int8[], $3::int8[], $4::bytea[]) as v (table_id, row_count, row_hash)
on conflict (table_id) do update
set position = excluded.position, row_count = excluded.row_count, row_hash = excluded.row_hash
"""

WRITE_GROUP = b"""
insert into anabranch.groups (database_id, position, batches, changes, chain, sums, claimed)
values ($1::int8, $2::int8, $3::int8, $4::int8, $5::bytea, $6::bytea[], true)
"""
"""``claimed`` says by which lock: a release that says nothing is refused."""

DELETE_INBOX = b"""
delete from anabranch.inbox where database_id = $1::int8 and batch_id = any($2::text[])
"""

ACCEPT = b"""
update anabranch.nodes n set last_accepted = q.batch_id
from unnest($2::text[], $3::text[]) q (node_id, batch_id)
where n.database_id = $1::int8 and n.node_id = q.node_id
  and (n.last_accepted is null or n.last_accepted < q.batch_id)
"""

NOTIFY = b"""
select pg_notify($1::text, v.payload) from unnest($2::text[]) as v (payload)
"""
