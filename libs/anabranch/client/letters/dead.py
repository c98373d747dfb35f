"""The dead queue for an app, or for a person with the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from anabranch.client.events import DeadLetter, Kind
from anabranch.client.file.believed import UNREADABLE, cause
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable, DeviceTables
from anabranch.client.overlay.rebase import read_bases
from anabranch.client.queue.settle import reason_name, shown_key, shown_values
from anabranch.merge.model import MutationType
from anabranch.v1 import batch_pb2, value_pb2, verdict_pb2

KINDS: dict[MutationType, Kind] = {
    MutationType.INSERT: "insert",
    MutationType.UPDATE: "update",
    MutationType.DELETE: "delete",
}
_Mutations = list[tuple[Kind, str, tuple[dict[str, Any], ...]]]


def _mutations(batch: batch_pb2.DbMutationBatch, tables: DeviceTables) -> _Mutations:
    out: _Mutations = []
    for mutation in batch.mutations:
        table = tables.get(mutation.table)
        rows = tuple(shown_values(table, mutation.columns, row.values) for row in mutation.rows)
        out.append((KINDS[MutationType(mutation.type)], tables.told(mutation.table), rows))
    return out


def letters(conn: sqlite3.Connection, tables: DeviceTables, letter_id: str = "") -> list[DeadLetter]:
    """All dead letters in the order in which they were made, or the one of that id. Tables and columns that the device
    no longer knows are given as they were sent. A letter whose bytes in the file are damaged is given without what
    can't be read, which its message says."""
    rows = conn.execute(
        "SELECT id, value, verdict, died_ms, first_shown_ms, still_shown FROM _db_mutations_queue_dead "
        "WHERE ? IN ('', id) ORDER BY id",
        (letter_id,),
    ).fetchall()
    return [_letter(conn, tables, *row) for row in rows]


def _letter(
    conn: sqlite3.Connection,
    tables: DeviceTables,
    batch_id: str,
    value: bytes,
    data: bytes,
    died_ms: int,
    shown_ms: int,
    still_shown: int,
) -> DeadLetter:
    verdict, batch, mutations = _read(batch_id, value, data, tables)
    refused = verdict.mutations[-1] if verdict.mutations else verdict_pb2.MutationVerdict()
    name = refused.table or (batch.mutations[0].table if batch.mutations else "")
    table = tables.get(name)
    key: tuple[Any, ...] = ()
    row_now = None
    # A verdict on the batch as a whole names no row: then the letter is about the batch's first one.
    cells = refused.key or (_first_key(batch, table) if table is not None and not refused.table else ())
    if cells and table is not None:
        key = shown_key(table, cells)
        row_now = _row_now(conn, table, cells)
    row = refused.server_row
    return DeadLetter(
        id=batch_id,
        reason=reason_name(verdict),
        message=verdict.message,
        table=tables.told(name),
        key=key,
        server_row=shown_values(table, row.columns, row.values) if refused.HasField("server_row") else None,
        server_row_now=row_now,
        constraint=verdict.constraint,
        sqlstate=verdict.sqlstate,
        mutations=tuple(mutations),
        died_ms=died_ms,
        first_shown_ms=shown_ms,
        still_shown=bool(still_shown),
    )


def batch_of(batch_id: str, value: bytes) -> batch_pb2.DbMutationBatch:
    """The batch in a letter's bytes. Raises one of UNREADABLE where they are damaged."""
    batch = batch_pb2.DbMutationBatch.FromString(value)
    if batch.id != batch_id:
        raise ValueError(f"they are those of a batch {batch.id!r}")
    return batch


def _read(
    batch_id: str, value: bytes, data: bytes, tables: DeviceTables
) -> tuple[verdict_pb2.Verdict, batch_pb2.DbMutationBatch, _Mutations]:
    batch, mutations = batch_pb2.DbMutationBatch(), _Mutations()
    try:
        verdict = verdict_pb2.Verdict.FromString(data)
    except UNREADABLE as error:
        verdict = verdict_pb2.Verdict(message=f"the verdict is damaged in the device's file ({cause(error)})")
    try:
        found = batch_of(batch_id, value)
        mutations = _mutations(found, tables)
        batch = found
    except UNREADABLE as error:
        verdict.message = f"{verdict.message}; the batch is damaged in the device's file ({cause(error)})"
    return verdict, batch, mutations


def _first_key(batch: batch_pb2.DbMutationBatch, table: DeviceTable) -> Sequence[value_pb2.Value]:
    """The key of the first row that a batch names; nothing where it names none, or not by all columns of the key."""
    for mutation in batch.mutations[:1]:
        for row in mutation.rows[:1]:
            given = dict(zip(mutation.columns, row.values, strict=False))
            if all(name in given for name in table.table.key_columns):
                return [given[name] for name in table.table.key_columns]
    return ()


def _row_now(
    conn: sqlite3.Connection, table: DeviceTable, values: Sequence[value_pb2.Value]
) -> Mapping[str, Any] | None:
    """The base row of a key, as the log, or a pull, has brought it."""
    try:
        key = tuple(table.readers[i](v) for i, v in zip(table.table.key_index, values, strict=True))
        text = table.key_text(key)
        bases = read_bases(conn, table, [text])
        if text in bases:
            base = bases[text]
            return None if base is None else table.shown(table.codec.store(base))
    except UNREADABLE:
        return None  # The key is of another kind now, or the base is damaged.
    rows = table.read(conn, [key])
    return table.shown(rows[0]) if rows else None


def mark_shown(tx: Tx, now_ms: int, server_ms: int | None) -> None:
    """Note that the app has now seen every letter, some for the first time: each is kept for two weeks from then.
    ``now_ms`` is the device's clock, ``server_ms`` the server's, None where it is not known."""
    tx.conn.execute(
        "UPDATE _db_mutations_queue_dead SET first_shown_ms = ?, shown_from_ms = ? WHERE first_shown_ms = 0",
        (now_ms, server_ms or 0),
    )


def take(tx: Tx, letter_id: str) -> bytes:
    """Remove a dead letter; return its batch's bytes. Raises ValueError if there is no letter of that id."""
    row = tx.conn.execute("SELECT value FROM _db_mutations_queue_dead WHERE id = ?", (letter_id,)).fetchone()
    if row is None:
        raise ValueError(f"there is no dead letter {letter_id}")
    tx.conn.execute("DELETE FROM _db_mutations_queue_dead WHERE id = ?", (letter_id,))
    value: bytes = row[0]
    return value


def discard(tx: Tx, letter_id: str) -> None:
    """Remove a dead letter. Raises ValueError if there is no letter of that id."""
    take(tx, letter_id)
