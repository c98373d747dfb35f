"""Reads for the compactor's executors: a stretch of the log, of the conflicts, of a table's rows, as Arrow record
batches straight from Postgres. Each read is one session; a stretch that is read again gives the same rows.

Numbers are part of the statements' text, because the driver reads by COPY, which takes no parameters.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

import pyarrow as pa
from adbc_driver_postgresql import dbapi as postgres
from psycopg.conninfo import make_conninfo

from anabranch.store.cells.binary_cells import quote
from anabranch.store.log.pull_columns import mender, select_list
from anabranch.store.session.engine import SessionOptions, connection_arguments
from anabranch.store.session.settings import PUT_RIGHT
from anabranch.values import Table

APPLICATION = "anabranch-compactor-read"
_BATCH_BYTES = "adbc.postgresql.batch_size_hint_bytes"
_OPTIONS = SessionOptions(
    statement_timeout_ms=3_600_000,
    lock_timeout_ms=10_000,
    idle_in_transaction_session_timeout_ms=3_600_000,
    client_connection_check_interval_ms=1_000,
)

LOG_SCHEMA = pa.schema(
    [
        ("table_id", pa.int32()),
        ("position", pa.int64()),
        ("batch_id", pa.string()),
        ("ordinal", pa.int32()),
        ("node_id", pa.string()),
        ("type", pa.int16()),
        ("effect", pa.binary()),
    ]
)
CONFLICT_SCHEMA = pa.schema(
    [
        ("table_id", pa.int32()),
        ("position", pa.int64()),
        ("batch_id", pa.string()),
        ("ordinal", pa.int32()),
        ("key", pa.string()),
        ("column_name", pa.string()),
        ("losing_batch", pa.string()),
        ("losing_node", pa.string()),
        ("winning_batch", pa.string()),
        ("winning_node", pa.string()),
        ("cause", pa.int32()),
        ("losing_value", pa.binary()),
    ]
)


def read_log(url: str, database_id: int, after: int, upto: int, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The log of all tables in (``after``, ``upto``], in no particular order, as LOG_SCHEMA."""
    yield from _read_ours(url, "log", LOG_SCHEMA, database_id, after, upto, batch_bytes)


def read_conflicts(url: str, database_id: int, after: int, upto: int, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The conflicts of all tables in (``after``, ``upto``], in no particular order, as CONFLICT_SCHEMA."""
    yield from _read_ours(url, "conflicts", CONFLICT_SCHEMA, database_id, after, upto, batch_bytes)


def _read_ours(
    url: str, name: str, schema: pa.Schema, database_id: int, after: int, upto: int, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    statement = (
        f"select {', '.join(schema.names)} from anabranch.{name} where database_id = {int(database_id)} "
        f"and position > {int(after)} and position <= {int(upto)}"
    )
    with closing(_read(url, (), statement, batch_bytes)) as batches:
        for batch in batches:
            columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(batch.columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def read_rows(
    url: str, snapshot: str, schema_name: str, table: Table, first_page: int, end_page: int, batch_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The rows of a table in the pages from ``first_page`` up to ``end_page``, as of an exported snapshot, as a Pull
    carries them (``anabranch.values.arrow``)."""
    statement = (
        f"select {select_list(table, 't')} from {quote(schema_name)}.{quote(table.sql_name)} t "
        f"where t.ctid >= '({int(first_page)},0)'::tid and t.ctid < '({int(end_page)},0)'::tid"
    )
    quoted = "'" + snapshot.replace("'", "''") + "'"
    begin = ("begin isolation level repeatable read read only", f"set transaction snapshot {quoted}")
    menders = [mender(column) for column in table.columns]
    with closing(_read(url, begin, statement, batch_bytes)) as batches:
        for batch in batches:
            columns = [mend(values) for mend, values in zip(menders, batch.columns, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, names=table.column_names)


def _read(url: str, begin: Sequence[str], statement: str, batch_bytes: int) -> Generator[pa.RecordBatch, None, None]:
    conninfo = make_conninfo(**connection_arguments(url, application_name=APPLICATION, options=_OPTIONS))
    with postgres.connect(conninfo, autocommit=True) as conn, conn.cursor() as cursor:
        cursor.execute(PUT_RIGHT)
        cursor.fetchall()
        for step in begin:
            cursor.execute(step)
        cursor.adbc_statement.set_options(**{_BATCH_BYTES: str(batch_bytes)})
        cursor.execute(statement)
        yield from cursor.fetch_record_batch()
