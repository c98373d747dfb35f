"""The dead queue as the app sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.client.device_table import DeviceTable
from anabranch.client.events import DeadLetter, Kind
from anabranch.client.file import Tx
from anabranch.client.settle import reason_name
from anabranch.client.sqlite_values import storer
from anabranch.client.writes import BatchBuilder
from anabranch.merge.model import MutationType
from anabranch.v1 import batch_pb2, value_pb2, verdict_pb2

_KINDS: dict[MutationType, Kind] = {
    MutationType.INSERT: "insert",
    MutationType.UPDATE: "update",
    MutationType.DELETE: "delete",
}


def _shown_values(table: DeviceTable, columns: list[str], values: list[value_pb2.Value]) -> dict[str, Any]:
    """Values as a read gives them, by column; what the device does not know is left out."""
    out: dict[str, Any] = {}
    for name, value in zip(columns, values, strict=True):
        column = table.table.by_name.get(name)
        if column is None or value.WhichOneof("kind") is None:
            continue
        cell = table.readers[table.table.index[name]](value)
        store = storer(column)
        out[name] = cell if store is None or cell is None else store(cell)
    return out


def _mutations(payload: bytes, tables: Mapping[str, DeviceTable]) -> list[tuple[Kind, str, tuple[dict[str, Any], ...]]]:
    out: list[tuple[Kind, str, tuple[dict[str, Any], ...]]] = []
    for mutation in batch_pb2.DbMutationBatch.FromString(payload).mutations:
        table = tables.get(mutation.table)
        rows: tuple[dict[str, Any], ...] = ()
        if table is not None:
            columns = list(mutation.columns)
            rows = tuple(_shown_values(table, columns, list(row.values)) for row in mutation.rows)
        out.append((_KINDS[MutationType(mutation.type)], mutation.table, rows))
    return out


def letters(tx: Tx, now_ms: int, server_ms: int | None) -> list[DeadLetter]:
    """All dead letters in the order in which they were made; each is now shown. ``now_ms`` is the device's clock,
    ``server_ms`` the server's, None where it is not known."""
    rows = tx.conn.execute(
        "SELECT id, value, verdict, died_ms, first_shown_ms, still_shown FROM _db_mutations_queue_dead ORDER BY id"
    ).fetchall()
    tx.conn.execute(
        "UPDATE _db_mutations_queue_dead SET first_shown_ms = ?, shown_from_ms = ? WHERE first_shown_ms = 0",
        (now_ms, server_ms or 0),
    )
    out = []
    for batch_id, value, data, died_ms, shown_ms, still_shown in rows:
        verdict = verdict_pb2.Verdict.FromString(data)
        mutations = _mutations(value, tx.tables)
        name = mutations[0][1] if mutations else ""
        key: tuple[Any, ...] = ()
        server_row = None
        if verdict.mutations:
            refused = verdict.mutations[-1]
            name = refused.table or name
            table = tx.tables.get(name)
            if table is not None:
                named = _shown_values(table, list(table.table.key_columns), list(refused.key)) if refused.key else {}
                key = tuple(named.values())
                if refused.HasField("server_row"):
                    row = refused.server_row
                    server_row = _shown_values(table, list(row.columns), list(row.values))
        out.append(
            DeadLetter(
                id=batch_id,
                reason=reason_name(verdict),
                message=verdict.message,
                table=name,
                key=key,
                server_row=server_row,
                constraint=verdict.constraint,
                sqlstate=verdict.sqlstate,
                mutations=tuple(mutations),
                died_ms=died_ms,
                first_shown_ms=shown_ms or now_ms,
                still_shown=bool(still_shown),
            )
        )
    return out


def _take(tx: Tx, letter_id: str) -> bytes:
    row = tx.conn.execute("SELECT value FROM _db_mutations_queue_dead WHERE id = ?", (letter_id,)).fetchone()
    if row is None:
        raise ValueError(f"there is no dead letter {letter_id}")
    tx.conn.execute("DELETE FROM _db_mutations_queue_dead WHERE id = ?", (letter_id,))
    value: bytes = row[0]
    return value


def discard(tx: Tx, letter_id: str) -> None:
    """Remove a dead letter. Raises ValueError where there is none of that id."""
    _take(tx, letter_id)


def replay(tx: Tx, builder: BatchBuilder, letter_id: str, changes: Mapping[str, Any]) -> None:
    """Write a dead letter's mutations again, as part of ``builder``'s batch. ``changes`` replace values of its inserts
    and updates, in every row that gives the column.

    Raises:
        ValueError: there is none of that id, or no row gives a column of ``changes``.
        RowMissing, RowExists: it does not fit what is shown now; the letter stays.
    """
    payload = _take(tx, letter_id)
    unused = set(changes)
    lost = {m.table for m in batch_pb2.DbMutationBatch.FromString(payload).mutations} - set(tx.tables)
    if lost:
        raise ValueError(f"there is no synced table {min(lost)!r} any more")
    for kind, table, rows in _mutations(payload, tx.tables):
        names = tx.tables[table].table.key_columns
        if kind == "delete":
            builder.delete(table, rows)
            continue
        for row in rows:
            given = {c: v for c, v in changes.items() if c in row and (kind == "insert" or c not in names)}
            unused -= set(given)
            row.update(given)
        (builder.insert if kind == "insert" else builder.update)(table, rows)
    if unused:
        raise ValueError(f"no row of the batch gives the column {min(unused)!r}")
