"""Read a table's rows for their sum: the first sum of a registration, and later the one that verifies the table."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import cast

from psycopg.pq import TransactionStatus

from anabranch.store.audiences.expression import Audience
from anabranch.store.cells.binary_cells import Row, quote, read_expression, row_loader
from anabranch.store.session import binary
from anabranch.store.session.binary import Connection
from anabranch.values import Table
from anabranch.values.canonical import SUM_MODULUS, RowEncoder, table_sum

_CURSOR = '"anabranch sum"'
_FIRST_CHUNK = 64
_MOST_ROWS = 2_000
_MOST_BYTES = 4 * 2**20
_SAMPLE = 16
_KEPT_OF_AUDIENCES = "select audience, row_count, row_hash from anabranch.audience_sums where table_id = %s"


@dataclass(slots=True)
class RowSums:
    """The sum of a table: its number of rows, and the sum of their hashes, not reduced. ``audiences``: of a restricted
    table the same of each audience's rows."""

    count: int = 0
    total: int = 0
    audiences: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, row_hash: int, audiences: Iterable[str] = (), sign: int = 1) -> None:
        """Add a row, or take it away (``sign`` -1)."""
        self.count += sign
        self.total += sign * row_hash
        for one in audiences:
            self.add_to(one, sign, sign * row_hash)

    def add_to(self, audience: str, count: int, total: int) -> None:
        """Add to the sum of an audience alone."""
        there, sum_there = self.audiences.get(audience, (0, 0))
        self.audiences[audience] = (there + count, sum_there + total)

    def copy(self) -> RowSums:
        """A copy that later changes leave as it is."""
        return RowSums(self.count, self.total, dict(self.audiences))


def scan_rows(
    conn: Connection, schema_name: str, table: Table, audience: Audience | None = None, condition: str = "true"
) -> Generator[list[Row], None, None]:
    """The rows of a table as the transaction sees them, in no order: those for which ``condition``, SQL over its
    columns, is true. Where ``audience`` is given, each has the list of its audiences behind its cells.

    They come through a cursor on the server in chunks of about ``_MOST_BYTES``, so that memory does not grow with the
    table. Must be read inside a transaction, one table at a time.
    """
    relation = f"{quote(schema_name)}.{quote(table.sql_name)}"
    columns = ", ".join(read_expression(column, "t") for column in table.columns)
    if audience is not None:
        columns += f", {audience.as_list}"
    yield from fetch_rows(conn, table, f"select {columns} from {relation} t where {condition}")


def fetch_rows(conn: Connection, table: Table, query: str) -> Generator[list[Row], None, None]:
    """The rows of a query that selects the columns of ``table``, and perhaps more behind them, in its order; as
    ``scan_rows``."""
    conn.execute(f"declare {_CURSOR} no scroll cursor for {query}".encode())
    load, encoder = row_loader(table.columns), RowEncoder(table)
    chunk = _FIRST_CHUNK
    try:
        while rows := load(_fetch(conn, chunk)):
            chunk = _next_chunk(encoder, rows, chunk)
            yield rows
    finally:
        if conn.info.transaction_status == TransactionStatus.INTRANS:
            conn.execute(f"close {_CURSOR}".encode())


def scan_sum(conn: Connection, schema_name: str, table: Table) -> tuple[int, int]:
    """Count of rows and sum of row hashes of a table, as the transaction sees it. Must be called inside one."""
    encoder = RowEncoder(table)
    count = total = 0
    with closing(scan_rows(conn, schema_name, table)) as chunks:
        for rows in chunks:
            more, more_total = table_sum(encoder, rows)
            count += more
            total += more_total
    return count, total % SUM_MODULUS


def scan_sums(conn: Connection, schema_name: str, table: Table, audience: Audience | None = None) -> RowSums:
    """``scan_sum``, with the sums of each audience where the table has an expression; the rows are read once.

    Raises:
        psycopg.DataError: the expression fails for a row.
    """
    if audience is None:
        return RowSums(*scan_sum(conn, schema_name, table))
    sums, row_hash = RowSums(), RowEncoder(table).hash
    with closing(scan_rows(conn, schema_name, table, audience)) as chunks:
        for rows in chunks:
            for row in rows:
                sums.add(row_hash(row), cast(list[str], row[-1]))
    return sums


def kept_audience_sums(conn: Connection, table_id: int | None) -> dict[str, tuple[int, bytes]]:
    """The number of rows of each audience of a restricted table, and the sum of their hashes, as the log carries
    them. Raises psycopg.Error."""
    rows = conn.execute(_KEPT_OF_AUDIENCES, (table_id,)).fetchall()
    return {audience: (count, bytes(total)) for audience, count, total in rows}


def _fetch(conn: Connection, rows: int) -> list[tuple[object, ...]]:
    cursor = binary.cursor(conn)
    # A prepared statement would keep the shape of another table's rows.
    cursor.execute(f"fetch {rows} from {_CURSOR}".encode(), prepare=False, binary=True)
    return cursor.fetchall()


def _next_chunk(encoder: RowEncoder, rows: list[Row], chunk: int) -> int:
    """How many rows to take next, by the size of some of the last ones; four times as many at most."""
    sample = rows[:: max(1, len(rows) // _SAMPLE)]
    each = sum(len(encoder.encode(row)) for row in sample) / len(sample)
    return max(1, min(_MOST_ROWS, 4 * chunk, int(_MOST_BYTES / each)))


def sum_to_bytes(total: int) -> bytes:
    """A sum of row hashes as ``anabranch.table_sums.row_hash`` keeps it: 16 bytes, big-endian; it is reduced."""
    return (total % SUM_MODULUS).to_bytes(16, "big")
