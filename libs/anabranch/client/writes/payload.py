"""Batches as bytes: made from checked rows, and read back into changes of rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anabranch.client.file.believed import UNREADABLE, cause
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.logs import get_logger
from anabranch.merge.model import MutationType
from anabranch.merge.overlay import Pending
from anabranch.v1 import batch_pb2, value_pb2
from anabranch.values import Cell
from anabranch.values.messages import Reader

log = get_logger(__name__)

_NOT_GIVEN = value_pb2.Value()
_CACHED_ROWS = 50_000


def rows_message(table: DeviceTable, columns: Sequence[str], rows: Sequence[Mapping[str, Cell]]) -> list[value_pb2.Row]:
    """``rows`` as messages, one Value for each of ``columns``; "not given" where a row lacks one."""
    writers = [(c, table.writer_of(c)) for c in columns]
    return [value_pb2.Row(values=[write(row[c]) if c in row else _NOT_GIVEN for c, write in writers]) for row in rows]


def mutation_message(
    table: DeviceTable,
    kind: MutationType,
    columns: Sequence[str],
    rows: Sequence[Mapping[str, Cell]],
    undo_columns: Sequence[str],
    undo_rows: Sequence[Mapping[str, Cell]],
) -> batch_pb2.DbMutation:
    """A mutation with its undo. ``rows`` hold cells by column; all names are identities."""
    undo = batch_pb2.Undo(columns=undo_columns, rows=rows_message(table, undo_columns, undo_rows))
    return batch_pb2.DbMutation(
        table=table.name,
        type=int(kind),  # type: ignore[arg-type]
        columns=columns,
        rows=rows_message(table, columns, rows),
        undo=undo if undo_columns else None,
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """The values of a row, by identity, that were written before and go along with those that the app gives: ``unseen``
    of columns that it does not know, ``former`` of columns that rows do not have any more, which are sent alone."""

    unseen: Mapping[str, value_pb2.Value]
    former: Mapping[str, value_pb2.Value]

    def cells(self, table: DeviceTable) -> dict[str, Cell]:
        """The cells of those that the rows have. Raises ValueError."""
        index, readers = table.table.index, table.readers
        return {column: readers[index[column]](value) for column, value in self.unseen.items()}


def add_former(message: batch_pb2.DbMutation, rows: Sequence[Beside]) -> None:
    """Have a mutation give the former values of its rows, too."""
    columns = list(dict.fromkeys(column for row in rows for column in row.former))
    if not columns:
        return
    message.columns.extend(columns)
    for sent, row in zip(message.rows, rows, strict=True):
        sent.values.extend([row.former.get(column, _NOT_GIVEN) for column in columns])


@dataclass(frozen=True, slots=True)
class RowPart:
    """A batch's change of one row, by identities. ``key`` is stored."""

    table: str
    key_text: str
    key: tuple[Any, ...]
    change: Pending


def _cells(table: DeviceTable, columns: Sequence[str], rows: Sequence[value_pb2.Row]) -> list[dict[str, Cell]]:
    index = table.table.index
    known = [(p, c, table.readers[index[c]]) for p, c in enumerate(columns) if c in index]
    out: list[dict[str, Cell]] = []
    for row in rows:
        values = row.values
        try:
            out.append({c: read(values[p]) for p, c, read in known if values[p].WhichOneof("kind") is not None})
        except ValueError:
            out.append(_that_fit(known, values))
    return out


def _that_fit(known: Sequence[tuple[int, str, Reader]], values: Sequence[value_pb2.Value]) -> dict[str, Cell]:
    """The cells of a row, without the columns that have another kind now than when the row was written."""
    cells: dict[str, Cell] = {}
    for place, column, read in known:
        try:
            cells[column] = read(values[place])
        except ValueError:
            continue
    return cells


def parse(payload: bytes, tables: Mapping[str, DeviceTable]) -> list[RowPart]:
    """The changes of a batch in the order made. Values that today's tables can't hold are left out: they are not shown,
    and the server decides.

    Raises:
        google.protobuf.message.DecodeError: ``payload`` is no batch.
    """
    parts: list[RowPart] = []
    for mutation in batch_pb2.DbMutationBatch.FromString(payload).mutations:
        table = tables.get(mutation.table)
        if table is None:
            continue
        kind = MutationType(mutation.type)
        rows = _cells(table, mutation.columns, mutation.rows)
        undo: Sequence[Mapping[str, Cell]] = [{}] * len(rows)
        if kind is MutationType.UPDATE and mutation.HasField("undo"):
            undo = _cells(table, mutation.undo.columns, mutation.undo.rows)
        names = table.table.key_columns
        for row, before in zip(rows, undo, strict=True):
            key = tuple(row.get(n) for n in names)
            if None in key:
                continue  # The key has other columns, or another kind, than when the row was written.
            if kind is MutationType.UPDATE:
                for name in names:
                    del row[name]
            elif kind is MutationType.DELETE:
                row = {}
            parts.append(RowPart(table.name, table.key_text(key), key, Pending(kind, row, before)))
    return parts


def damage(batch_id: str, payload: bytes) -> str:
    """The damage of a queued batch whose bytes are not those that were queued, as far as they show it; else ""."""
    try:
        found = batch_pb2.DbMutationBatch.FromString(payload).id
    except UNREADABLE as error:
        return cause(error)
    return "" if found == batch_id else f"they are those of a batch {found!r}"


class PayloadCache:
    """Parsed batches by id, the least recently used dropped beyond a number of rows. A batch's bytes never change."""

    def __init__(self) -> None:
        self._batches: OrderedDict[tuple[str, int], dict[tuple[str, str], list[RowPart]]] = OrderedDict()
        self._rows = 0

    def clear(self) -> None:
        """Forget all: what was parsed for tables that never came to be."""
        self._batches.clear()
        self._rows = 0

    def get(
        self, batch_id: str, payload: bytes, tables: Mapping[str, DeviceTable], tables_version: int
    ) -> dict[tuple[str, str], list[RowPart]]:
        """The batch's parts by (table, key text); none where its bytes are damaged."""
        name = (batch_id, tables_version)
        found = self._batches.get(name)
        if found is not None:
            self._batches.move_to_end(name)
            return found
        found = {}
        try:
            for part in parse(payload, tables):
                found.setdefault((part.table, part.key_text), []).append(part)
        except UNREADABLE as error:
            # It shows nothing, and stops no other; who sends the queue finds it, too.
            log.warning("payload_not_read", batch=batch_id, error=type(error).__name__)
            found = {}
        self._batches[name] = found
        self._rows += len(found)
        while self._rows > _CACHED_ROWS and len(self._batches) > 1:
            _, dropped = self._batches.popitem(last=False)
            self._rows -= len(dropped)
        return found
