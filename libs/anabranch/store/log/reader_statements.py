"""The SQL that reads the log: a stretch of it, the floor, the sums of one moment."""

from __future__ import annotations

MOST_ITEMS = 2_000
"""Items of one stretch."""
EFFECT_OVERHEAD_BYTES = 100
LOSER_OVERHEAD_BYTES = 250
"""The bytes that an item counts for beside its content: names and ids that travel with it."""
MOST_LOSING_VALUE_BYTES = 64 * 1024
"""A losing value above it is left out of a stretch; the conflict itself is not."""


def _stretch(
    of_log: str = "", of_conflicts: str = "", selected: str = "", carried: str = "", overhead: str = ""
) -> bytes:
    return f"""
select h.position, h.chain, b.chain,
       i.position, i.batch_id, i.kind, i.ordinal, i.node_id, i.content, i.more, i.next_position, g.chain, g.sums,
       i.table_id, i.key, i.column_name, i.losing_batch, i.losing_node, i.winning_batch, i.cause,
       k.chains{selected}
from (select 1) one
left join lateral (
    select position, chain from anabranch.groups where database_id = $1::int8 order by position desc limit 1
) h on true
left join lateral (
    select chain from anabranch.groups where database_id = $1::int8 and position = $2::int8
) b on true
left join lateral (
    select array_agg(g.chain order by q.number) as chains
    from unnest($10::int8[]) with ordinality q(position, number)
    left join lateral (
        select chain from anabranch.groups where database_id = $1::int8 and position = q.position limit 1
    ) g on true
) k on true
left join lateral (
    select number, position, batch_id, kind, ordinal, node_id, next_position, table_id, key, column_name, losing_batch,
           losing_node, winning_batch, cause,
           case when number = 1 and kind = 0 then substring(content from $6::int8::int + 1 for $9::int8::int)
                else content end as content,
           number = 1 and kind = 0 and bytes - $6::int8 > $9::int8 as more{carried}
    from (
        select e.*, row_number() over w as number, sum(bytes + overhead) over w as total,
               lead(position) over w as next_position
        from (
            (select position, batch_id, 0 as kind, ordinal, node_id, effect as content, octet_length(effect) as bytes,
                    {EFFECT_OVERHEAD_BYTES}{overhead} as overhead, table_id, key, '' as column_name, '' as losing_batch,
                    '' as losing_node, '' as winning_batch, 0::int2 as cause{of_log}
             from anabranch.log
             where database_id = $1::int8 and (position, batch_id, ordinal) >= ($3::int8, $4::text, $5::int8)
               and position <= least(h.position, $8::int8)
             order by position, batch_id, ordinal limit {MOST_ITEMS + 1})
            union all
            ({_losers(of_conflicts)})
            order by position, batch_id, kind, ordinal limit {MOST_ITEMS + 1}
        ) e
        window w as (order by position, batch_id, kind, ordinal)
    ) numbered
    where number = 1 or (number <= {MOST_ITEMS} and total - $6::int8 <= $9::int8)
) i on true
left join lateral (
    -- Looked for only where a group ends: for other items the key is NULL.
    select chain, sums from anabranch.groups
    where database_id = $1::int8
      and position = case when i.next_position is distinct from i.position and not i.more then i.position end
) g on true
order by i.number
""".encode()


def _losers(of_conflicts: str) -> str:
    """The values that lost, as items of the stretch."""
    return f"""
             select position, batch_id, 1, ordinal,
                    case when winning_batch = batch_id then winning_node else losing_node end,
                    case when octet_length(losing_value) <= {MOST_LOSING_VALUE_BYTES} then losing_value end,
                    case when octet_length(losing_value) <= {MOST_LOSING_VALUE_BYTES} then octet_length(losing_value)
                         else 0 end,
                    {LOSER_OVERHEAD_BYTES} + 2 * octet_length(key), table_id, key, column_name, losing_batch,
                    losing_node, winning_batch, cause{of_conflicts}
             from anabranch.conflicts
             where database_id = $1::int8 and (position, batch_id, ordinal) >= ($3::int8, $4::text, $7::int8)
               and position <= least(h.position, $8::int8)
             order by position, batch_id, ordinal limit {MOST_ITEMS + 1}
    """


STRETCH = _stretch()
"""$1 database; $2 the position that is read to its end; $3 to $7 the cursor: position, batch, ordinal of an effect,
offset, ordinal of a loser; $8 where to stop; $9 bytes; $10 positions whose chains are wanted. Sizes are known without
reading the content."""

# A name has 63 bytes at most: it and what stands before it are in the first bytes of an effect.
AUDIENCE_STRETCH = _stretch(
    of_log=", type, audience_before, audience_after",
    of_conflicts=", 0::int2, audience_before, audience_after",
    selected=", i.type, i.audience_before, i.audience_after, i.head",
    carried=""", type, audience_before, audience_after,
           case when number = 1 and kind = 0 and $6::int8 > 0 and audience_before is null and audience_after is null
                then substring(content for 65) end as head""",
    overhead=" + coalesce(octet_length(array_to_string(audience_after, '')) + 4 * cardinality(audience_after), 0)",
)
"""STRETCH of a database with restricted tables: also the effect's type, and the row's audiences before and after it;
and the first bytes of an effect that the cursor lies in, where it has none."""

MOST_CHANGES = 64
"""Schema changes of one stretch."""

FLOOR = f"""
select d.epoch, d.floor_ms, d.schema_version, c.positions, c.sizes
from anabranch.databases d
left join lateral (
    select array_agg(n.position order by n.position) as positions, array_agg(n.size order by n.position) as sizes
    from (select position, octet_length(change)::int8 as size from anabranch.schema_changes
          where database_id = $1::int8 and position >= $2::int8 and position <= $3::int8
          order by position limit {MOST_CHANGES}) n
) c on true
where d.id = $1::int8
""".encode()
"""$1 database; between $2 and $3 the next positions of schema changes, and how many bytes these have."""

CHANGES = b"""
select d.floor_ms, c.position, c.change, g.chain, g.sums
from anabranch.databases d
join anabranch.schema_changes c on c.database_id = d.id and c.position = any($2::int8[])
left join lateral (
    select x.chain, x.sums from anabranch.groups x where x.database_id = d.id and x.position = c.position limit 1
) g on true
where d.id = $1::int8
order by c.position
"""
"""$1 database; the schema changes at the positions $2, each with its group, as far as it is there; and the floor."""

SUMS = b"""
select coalesce(h.position, 0), h.chain, d.epoch, d.floor_ms, d.schema_version, t.name, s.row_count, s.row_hash,
       s.position, '', t.audience is not null
from anabranch.databases d
left join lateral (
    select position, chain from anabranch.groups where database_id = d.id order by position desc limit 1
) h on true
left join anabranch.synced_tables t on t.database_id = d.id
left join anabranch.table_sums s on s.table_id = t.id
where d.id = $1::int8
order by t.name
"""

AUDIENCE_SUMS = b"""
select t.name, s.row_count, s.row_hash, s.position, s.audience
from anabranch.synced_tables t
cross join lateral (
    select * from anabranch.audience_sums a where a.table_id = t.id and a.audience = any($2::text[]) limit all
) s
where t.database_id = $1::int8 and t.audience is not null
order by t.name, s.audience
"""
"""$1 database, $2 audiences: the sums of their rows, of each restricted table."""
