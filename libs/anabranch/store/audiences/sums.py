"""Count and hash of the rows of each audience of a restricted table, as a group reads and writes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from anabranch.store.session.at_once import execute
from anabranch.store.session.binary import Connection, run
from anabranch.values.postgres_binary import bytea_array, int8, int8_array, text_array

AudienceSums: TypeAlias = dict[tuple[int, str], tuple[int, int]]
"""By table id and audience: number of rows, and the sum of their hashes modulo 2**128."""

READ = b"""
select s.table_id, s.audience, s.row_count, s.row_hash
from unnest($1::int8[], $2::text[]) q (table_id, audience)
cross join lateral (
    select * from anabranch.audience_sums x where x.table_id = q.table_id and x.audience = q.audience offset 0
) s
"""
WRITE = b"""
insert into anabranch.audience_sums (table_id, audience, position, row_count, row_hash)
select v.table_id, v.audience, $1::int8, v.row_count, v.row_hash
from unnest($2::int8[], $3::text[], $4::int8[], $5::bytea[]) as v (table_id, audience, row_count, row_hash)
on conflict (table_id, audience) do update
set position = excluded.position, row_count = excluded.row_count, row_hash = excluded.row_hash
"""


def read_audience_sums(conn: Connection, wanted: Collection[tuple[int, str]]) -> AudienceSums:
    """The sums of these audiences; one that never had a row has none. Raises psycopg.Error."""
    if not wanted:
        return {}
    tables, audiences = zip(*sorted(wanted), strict=True)
    rows = run(conn, READ, [int8_array(tables), text_array(audiences, "audience")]).fetchall()
    return {(table, audience): (count, int.from_bytes(total, "big")) for table, audience, count, total in rows}


def write_audience_sums(conn: Connection, position: int, sums: Mapping[tuple[int, str], tuple[int, bytes]]) -> None:
    """Store the sums of the audiences whose rows a group changed; hashes of 16 bytes. Raises psycopg.Error."""
    if not sums:
        return
    places: Sequence[tuple[int, str]] = sorted(sums)
    parameters = [
        int8(position),
        int8_array([table for table, _ in places]),
        text_array([audience for _, audience in places], "audience"),
        int8_array([sums[place][0] for place in places]),
        bytea_array([sums[place][1] for place in places]),
    ]
    execute(conn, WRITE, parameters)
