"""The log by rows: the effects on each row of a table, and the rows that changed since a position."""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.store.session import binary
from anabranch.store.session.binary import Connection
from anabranch.values.postgres_binary import int8

_CURSOR = '"anabranch log of rows"'
_AT_ONCE = 2_000

_EFFECTS = """
declare {cursor} no scroll cursor for
select key, effect from anabranch.log
where database_id = {database} and table_id = {table}
order by key, position, batch_id, ordinal
"""
_SINCE = b"""
select distinct key from anabranch.log
where database_id = $1::int8 and table_id = $2::int8 and position > $3::int8 and position <= $4::int8
"""


def effects_by_row(conn: Connection, database_id: int, table_id: int) -> Iterator[list[tuple[str, list[bytes]]]]:
    """The rows of a table that the log has, by key text, each with its serialized ``anabranch.v1.Effect`` in the log's
    order; about ``_AT_ONCE`` effects at once. Must be read inside a transaction. Raises psycopg.Error."""
    declare = _EFFECTS.format(cursor=_CURSOR, database=int(database_id), table=int(table_id))
    conn.execute(declare.encode())
    key: str | None = None
    found: list[tuple[str, list[bytes]]] = []
    cursor = binary.cursor(conn)
    while True:
        cursor.execute(f"fetch {_AT_ONCE} from {_CURSOR}".encode(), prepare=False, binary=True)
        fetched = cursor.fetchall()
        for row_key, effect in fetched:
            if row_key != key:
                key = row_key
                found.append((row_key, []))
            found[-1][1].append(effect)
        # The next fetch may continue the last one.
        whole = found[:-1] if fetched else found
        if whole:
            yield whole
        if not fetched:
            break
        found = found[-1:]
    conn.execute(f"close {_CURSOR}".encode())


def keys_since(conn: Connection, database_id: int, table_id: int, after: int, up_to: int) -> set[str]:
    """The key texts of rows with an entry after one position and up to another. Raises psycopg.Error."""
    parameters = [int8(database_id), int8(table_id), int8(after), int8(up_to)]
    return {key for (key,) in binary.run(conn, _SINCE, parameters).fetchall()}
