"""The dead queue for an app, or for a person with the file."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from anabranch.client.events import DeadLetter, Kind
from anabranch.client.file import choice
from anabranch.client.file.believed import UNREADABLE, cause
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.overlay.rebase import read_bases
from anabranch.client.queue.settle import reason_name, shown_key, shown_values
from anabranch.client.writes.local import BatchBuilder
from anabranch.merge.model import MutationType
from anabranch.v1 import batch_pb2, value_pb2, verdict_pb2

_KINDS: dict[MutationType, Kind] = {
    MutationType.INSERT: "insert",
    MutationType.UPDATE: "update",
    MutationType.DELETE: "delete",
}
_Mutations = list[tuple[Kind, str, tuple[dict[str, Any], ...]]]


def _mutations(batch: batch_pb2.DbMutationBatch, tables: Mapping[str, DeviceTable]) -> _Mutations:
    out: _Mutations = []
    for mutation in batch.mutations:
        table = tables.get(mutation.table)
        rows = tuple(shown_values(table, mutation.columns, row.values) for row in mutation.rows)
        name = mutation.table if table is None else table.sql_name
        out.append((_KINDS[MutationType(mutation.type)], name, rows))
    return out


def letters(conn: sqlite3.Connection, tables: Mapping[str, DeviceTable], letter_id: str = "") -> list[DeadLetter]:
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
    tables: Mapping[str, DeviceTable],
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
        table=name if table is None else table.sql_name,
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


def _batch(batch_id: str, value: bytes) -> batch_pb2.DbMutationBatch:
    """The batch in a letter's bytes. Raises one of UNREADABLE where they are damaged."""
    batch = batch_pb2.DbMutationBatch.FromString(value)
    if batch.id != batch_id:
        raise ValueError(f"they are those of a batch {batch.id!r}")
    return batch


def _read(
    batch_id: str, value: bytes, data: bytes, tables: Mapping[str, DeviceTable]
) -> tuple[verdict_pb2.Verdict, batch_pb2.DbMutationBatch, _Mutations]:
    batch, mutations = batch_pb2.DbMutationBatch(), _Mutations()
    try:
        verdict = verdict_pb2.Verdict.FromString(data)
    except UNREADABLE as error:
        verdict = verdict_pb2.Verdict(message=f"the verdict is damaged in the device's file ({cause(error)})")
    try:
        found = _batch(batch_id, value)
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


def _take(tx: Tx, letter_id: str) -> bytes:
    row = tx.conn.execute("SELECT value FROM _db_mutations_queue_dead WHERE id = ?", (letter_id,)).fetchone()
    if row is None:
        raise ValueError(f"there is no dead letter {letter_id}")
    tx.conn.execute("DELETE FROM _db_mutations_queue_dead WHERE id = ?", (letter_id,))
    value: bytes = row[0]
    return value


def discard(tx: Tx, letter_id: str) -> None:
    """Remove a dead letter. Raises ValueError if there is no letter of that id."""
    _take(tx, letter_id)


def replay(
    tx: Tx,
    builder: BatchBuilder,
    letter_id: str,
    changes: Mapping[str, Any],
    leave_out: Collection[str] = (),
) -> None:
    """Write a dead letter's mutations again, as part of ``builder``'s batch, edited: inserts and updates lose the
    columns ``leave_out`` and take the values in ``changes``, in every row that gives the column or, where none does, in
    every row whose table has it.

    Raises:
        ValueError: there is no letter of that id, or its bytes are damaged, or no row takes a column of ``changes`` or
            gives one to leave out.
        NotChosen, NotReady: the device does not have one of its tables, or not yet.
        RowMissing, RowExists: it does not fit the rows shown now. The letter stays in each case.
    """
    value = _take(tx, letter_id)
    try:
        mutations = _mutations(_batch(letter_id, value), tx.tables)
    except UNREADABLE as error:
        raise ValueError(f"the dead letter {letter_id} can't be read: {cause(error)}") from error
    lost = {table for _, table, _ in mutations} - tx.tables.by_sql_name.keys()
    if lost:
        raise choice.not_there(tx.state, min(lost, key=lambda name: (name in (tx.state.choice or ()), name)))
    _edit(tx, mutations, changes, leave_out)
    for kind, table, rows in mutations:
        if kind == "delete":
            builder.delete(table, rows)
        else:
            (builder.insert if kind == "insert" else builder.update)(table, rows)


def _edit(tx: Tx, mutations: _Mutations, changes: Mapping[str, Any], leave_out: Collection[str]) -> None:
    """Change the rows of ``mutations``. Raises ValueError."""
    of_name = tx.tables.by_sql_name
    for column in sorted({*changes, *leave_out}):
        taking = [
            (row, of_name[table])
            for kind, table, rows in mutations
            if kind == "insert" or (kind == "update" and not _is_of_key(of_name[table], column))
            for row in rows
        ]
        giving = [row for row, _ in taking if column in row]
        if column not in changes:
            if not giving:
                raise ValueError(f"no row of the batch gives the column {column!r}")
            for row in giving:
                del row[column]
            continue
        edited = giving or [row for row, table in taking if column in table.writable]
        if not edited:
            raise ValueError(f"no row of the batch takes the column {column!r}")
        for row in edited:
            row[column] = changes[column]


def _is_of_key(table: DeviceTable, column: str) -> bool:
    found = table.writable.get(column)
    return found is not None and found.name in table.table.key_columns
