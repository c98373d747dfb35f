"""Table sums: kept with every change of a base, compared with the server's wherever positions are equal."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator

from anabranch.canonical import table_sum
from anabranch.client.device_table import DeviceTable
from anabranch.client.events import State
from anabranch.client.file import Tx
from anabranch.schema import Cell
from anabranch.v1 import position_pb2

_ROWS_AT_ONCE = 5_000


def compare(tx: Tx, sums: Iterable[position_pb2.TableSum], position: int) -> None:
    """Compare kept sums with the server's at ``position`` (milliseconds), which the device must have reached. What a
    pull of several moments has not caught up with, and a table that is set aside, can't be compared yet."""
    for theirs in sums:
        row = tx.conn.execute(
            "SELECT count, hash, disagrees FROM _db_tables WHERE name = ? AND stage = 'live' AND last_ms <= ?",
            (theirs.table, position),
        ).fetchone()
        if row is None:
            continue
        count, digest, disagrees = row
        agrees = count == theirs.count and digest == theirs.hash
        if agrees is bool(disagrees):
            tx.conn.execute("UPDATE _db_tables SET disagrees = ? WHERE name = ?", (int(not agrees), theirs.table))
            detail = f"{count} rows here, {theirs.count} there" if not agrees else ""
            tx.events.append(State("sums_agree" if agrees else "sums_disagree", detail, theirs.table, position))


def base_rows(conn: sqlite3.Connection, table: DeviceTable) -> Iterator[tuple[Cell, ...]]:
    """The base rows of a table, as the transaction of ``conn`` sees them."""
    load = table.codec.load
    kept = dict(conn.execute("SELECT key, row FROM _db_base WHERE tbl = ?", (table.name,)))
    cursor = conn.execute(f"SELECT {table.columns_sql} FROM {table.quoted}")
    while rows := cursor.fetchmany(_ROWS_AT_ONCE):
        for stored in rows:
            if not kept or table.key_text(table.key_of(stored)) not in kept:
                yield load(stored)
    for data in kept.values():
        if data is not None:
            yield table.from_bytes(data)


def of_rows(conn: sqlite3.Connection, table: DeviceTable) -> tuple[int, bytes]:
    """Count and hash sum (16 bytes) over the base rows themselves: every row is read and encoded."""
    count, total = table_sum(table.encoder, base_rows(conn, table))
    return count, total.to_bytes(16, "big")


def kept(conn: sqlite3.Connection) -> dict[str, tuple[int, bytes]]:
    """The kept sums of tables that have been pulled: count and hash."""
    rows = conn.execute("SELECT name, count, hash FROM _db_tables WHERE stage != 'new'")
    return {name: (count, digest) for name, count, digest in rows}


def verify(conn: sqlite3.Connection, table: DeviceTable, stopped: Callable[[], bool]) -> bool | None:
    """Whether the kept sum is that of the rows, both read at one moment; None where ``stopped`` came true before."""
    conn.execute("BEGIN")
    try:
        row = conn.execute("SELECT count, hash FROM _db_tables WHERE name = ?", (table.name,)).fetchone()
        if row is None:
            return None
        rows = itertools.takewhile(lambda _: not stopped(), base_rows(conn, table))
        count, total = table_sum(table.encoder, rows)
        if stopped():
            return None
        return (count, total.to_bytes(16, "big")) == tuple(row)
    finally:
        conn.execute("COMMIT")


def verified(tx: Tx, table: DeviceTable, good: bool) -> None:
    """Note what ``verify`` found. Where the rows are not those of the kept sum, theirs is kept from now on: compared
    with the server's it tells so at every position, until a pull has mended them."""
    tx.conn.execute("UPDATE _db_tables SET verified = 1 WHERE name = ?", (table.name,))
    if good:
        return
    count, digest = of_rows(tx.conn, table)
    if kept(tx.conn).get(table.name) == (count, digest):
        return  # A pull has come between.
    tx.conn.execute(
        "UPDATE _db_tables SET count = ?, hash = ?, disagrees = 1 WHERE name = ?", (count, digest, table.name)
    )
    detail = "the rows that a pull brought are not those that were sent"
    tx.events.append(State("sums_disagree", detail, table.name, tx.state.cursor_ms))
