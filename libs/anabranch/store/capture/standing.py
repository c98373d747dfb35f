"""The rows of a table as the log has them at the group that runs: as they stand now, with the changes taken back that
are captured and not drained.

A change that is older than its table is can't be taken back where it says nothing of some column: the row before it has
a value there, and nobody knows which. It has to be drained.

Both are of one moment, though the transaction is none of one snapshot: one query reads the table and the numbers of the
changes that wait. A change that the group has drained is gone for it, and counts.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing

from anabranch.store.capture.captured import COLUMNS, captured_of, images
from anabranch.store.capture.older_images import OlderImages
from anabranch.store.capture.undrained import MOST, MOST_BYTES, UndrainedError, undone
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.sums import fetch_rows
from anabranch.store.cells.binary_cells import Row, quote, read_expression
from anabranch.store.session.binary import Connection, run
from anabranch.values import Table, key_text
from anabranch.values.postgres_binary import int8, int8_array

# A resolver's session reads no table as a whole, but here.
_SCANS = "select pg_catalog.set_config('enable_seqscan', %s, true)"
_AS_IT_WAS = "select pg_catalog.current_setting('enable_seqscan')"
_SIZE = b"""
select coalesce(sum(coalesce(octet_length(old), 0) + coalesce(octet_length(new), 0)), 0)::int8
from anabranch.captured where database_id = $1::int8::int and id = any($2::int8[])
"""
_CHANGES = f"""
select {COLUMNS} from anabranch.captured where database_id = $1::int8::int and id = any($2::int8[]) order by id
""".encode()


def standing_rows(
    conn: Connection, database: Database, table: Table, older: OlderImages | None = None
) -> Generator[list[Row], None, None]:
    """The rows, in no order; memory does not grow with the table. Must be read inside a transaction, one table at a
    time, with nothing drained meanwhile.

    Raises:
        UndrainedError: more changes wait than are taken back, or one that can't be; drain them, and begin again. No row
            was given by then.
        UndecodableError: the table has drifted.
        psycopg.Error: Postgres refused it.
    """
    with closing(_fetched(conn, database, table)) as chunks:
        waiting: list[int] = []
        before: dict[str, Row | None] | None = None
        for chunk in chunks:
            numbers = [row[-1] for row in chunk if row[-1] is not None]
            if numbers:
                assert before is None, "the numbers of changes come before the rows"
                waiting += numbers  # type: ignore[arg-type]
                if len(waiting) > MOST:
                    raise UndrainedError(table.sql_name)
            rows = [row[:-1] for row in chunk if row[-1] is None]
            if not rows:
                continue
            if before is None:
                before = _taken_back(conn, database, table, waiting, older)
            yield [row for row in rows if key_text([row[i] for i in table.key_index]) not in before] if before else rows
        if before is None:
            before = _taken_back(conn, database, table, waiting, older)
    left = [row for row in before.values() if row is not None]
    if left:
        yield left


def _fetched(conn: Connection, database: Database, table: Table) -> Generator[list[Row], None, None]:
    columns = ", ".join(read_expression(column, "t") for column in table.columns)
    nothing = ", ".join(["null"] * len(table.columns))
    query = (
        f"select {nothing}, c.id from anabranch.captured c "
        f"where c.database_id = {database.id} and c.table_id = {table.id} and c.type <> 4 "
        f"union all select {columns}, null::int8 from {quote(database.schema_name)}.{quote(table.sql_name)} t"
    )
    [(was,)] = conn.execute(_AS_IT_WAS)
    conn.execute(_SCANS, ("on",))
    rows = fetch_rows(conn, table, query)
    try:
        first = next(rows, None)
        conn.execute(_SCANS, (was,))
        if first is not None:
            yield first
            yield from rows
    finally:
        rows.close()


def _taken_back(
    conn: Connection, database: Database, table: Table, numbers: Sequence[int], older: OlderImages | None
) -> dict[str, Row | None]:
    """The rows that these changes touch, as they were before them; None where there was none."""
    if not numbers:
        return {}
    wanted = [int8(database.id), int8_array(numbers)]
    [(size,)] = run(conn, _SIZE, wanted).fetchall()
    if size > MOST_BYTES:
        raise UndrainedError(table.sql_name)
    changes = captured_of(run(conn, _CHANGES, wanted))
    if older is not None and any(older.is_silent(table.id, change.id) for change in changes):
        why = f"changes of {table.sql_name!r} wait that are older than it is"
        raise UndrainedError(table.sql_name, why)
    before, after = images(conn, database, changes, (), older)
    return undone(table, zip(before, after, strict=True))
