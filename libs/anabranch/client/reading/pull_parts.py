"""The parts of a pull: which rows are still asked for, and each chunk's into the file, together with what goes on from
it."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from functools import partial

from anabranch.client.errors import CallFailed
from anabranch.client.file import row_audiences
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, quote
from anabranch.client.file.sets import put_rows
from anabranch.client.overlay.rebase import tell
from anabranch.client.queue import statements
from anabranch.client.reading.arrow_rows import Chunk, OtherShapeError
from anabranch.client.schema.make import drop_pull
from anabranch.errors import AnabranchError
from anabranch.v1 import position_pb2, snapshot_pb2


class GivenUpError(AnabranchError):
    """A table of the pull is no longer among those of the file."""


def prepare(tx: Tx, name: str) -> snapshot_pb2.RequiredTable | None:
    """The request to go on with a table; None if it has all its rows. Creates the table that takes the rows."""
    row = tx.conn.execute(
        "SELECT stage, ordinal, pull_resume, pull_done, pull_table, pull_first_ms FROM _db_tables WHERE name = ?",
        (name,),
    ).fetchone()
    if row is None:
        raise GivenUpError
    stage, ordinal, resume, done, staged, first = row
    if done:
        return None
    if first is not None and not resume:
        # A first chunk came without a resume token.
        drop_pull(tx, tx.tables[name])
        staged = None
    if staged is None and (stage != "new" or statements.touches(tx.conn, name)):
        if stage == "new":
            # Rows may have come straight into the table before the queue was known to touch it.
            drop_pull(tx, tx.tables[name])
            resume = b""
        staged = f"_db_pull_{ordinal}"
        tx.conn.execute(f"DROP TABLE IF EXISTS {quote(staged)}")
        tx.conn.execute(tx.tables[name].create_sql(staged))
        tx.conn.execute("UPDATE _db_tables SET pull_table = ? WHERE name = ?", (staged, name))
    return snapshot_pb2.RequiredTable(table=name, resume=resume)


def put(tx: Tx, table: DeviceTable, response: snapshot_pb2.PullResponse, chunk: Chunk) -> None:
    """Store a chunk's rows, their audiences where the table is restricted, and the resume token. ``table``: as the rows
    were read for it.

    Raises:
        GivenUpError: the table is no longer among those of the file.
        OtherShapeError: it has other columns now.
        CallFailed: the chunk is of another history than those before it.
    """
    table = _as_it_is_now(tx, table)
    as_of = response.as_of
    row = tx.conn.execute(
        "SELECT pull_table, pull_first_ms, pull_epoch FROM _db_tables WHERE name = ?", (table.name,)
    ).fetchone()
    if row is None:
        raise GivenUpError
    staged, first, epoch = row
    if first is not None and epoch != as_of.epoch:
        raise CallFailed("ABORTED", "INVALID_TOKEN", "the history changed during the pull", again=True)
    rows = chunk.rows
    if table.restricted or (tx.wants_rows and staged is None):
        rows = list(rows)
    if tx.wants_rows and staged is None:
        for row in rows:
            tell(tx, table, None, row, "snapshot")
    if table.restricted:
        keys = [table.key_text(table.key_of(row)) for row in rows]
        row_audiences.put(tx.conn, staged or table.name, zip(keys, chunk.audiences, strict=True))
    into, width = partial(table.insert_into, staged or table.sql_name), len(table.readers)
    if chunk.count and staged is not None:
        put_rows(tx.conn, into, width, rows)
    elif chunk.count:
        with tx.writing(table, chunk.count):
            put_rows(tx.conn, into, width, rows)
    told = b""
    if table.restricted and response.done:
        told = snapshot_pb2.PullResponse(
            audiences=response.audiences, sums=response.sums, without_sums=response.without_sums
        ).SerializeToString()
    tx.conn.execute(
        """UPDATE _db_tables SET pull_first_ms = coalesce(pull_first_ms, ?), pull_last_ms = ?, pull_epoch = ?,
           pull_token = ?, pull_resume = ?, pull_done = ?, pull_count = ?, pull_hash = ?, pull_told = ?
           WHERE name = ?""",
        (
            as_of.server_timestamp_ms,
            as_of.server_timestamp_ms,
            as_of.epoch,
            as_of.token,
            response.resume,
            int(response.done),
            response.sum.count,
            response.sum.hash,
            told,
            table.name,
        ),
    )


def _as_it_is_now(tx: Tx, read_for: DeviceTable) -> DeviceTable:
    """The table that rows were read for, under the names that it has by now. Raises GivenUpError, OtherShapeError."""
    now = tx.tables.get(read_for.name)
    if now is None:
        raise GivenUpError
    if now.table.column_names != read_for.table.column_names:
        raise OtherShapeError(now.table)
    return now


def newest_part(conn: sqlite3.Connection, names: Collection[str]) -> position_pb2.Position | None:
    """The newest position in the parts of a pull of these tables; None if there are no parts."""
    rows = conn.execute(
        """SELECT name, pull_epoch, pull_last_ms, pull_token FROM _db_tables WHERE pull_first_ms IS NOT NULL
           AND pull_token != x'' ORDER BY pull_last_ms DESC"""
    ).fetchall()
    for name, epoch, last_ms, token in rows:
        if name in names:
            return position_pb2.Position(epoch=epoch, server_timestamp_ms=last_ms, token=token)
    return None


def whole_chunks(
    responses: Iterator[snapshot_pb2.PullResponse],
) -> Iterator[tuple[snapshot_pb2.PullResponse, bytes]]:
    """The chunks of a pull: the last response of each, and the whole of its rows."""
    parts: list[bytes] = []
    for response in responses:
        if response.arrow_ipc_incomplete:
            parts.append(response.arrow_ipc)
            continue
        ipc = b"".join([*parts, response.arrow_ipc]) if parts else response.arrow_ipc
        parts.clear()
        if response.table:
            yield response, ipc
