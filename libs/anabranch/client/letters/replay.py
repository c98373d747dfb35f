"""A dead letter written again, edited or not.

All goes by identities: a value is for the column that it was written for, whatever that is called by now. One that the
app does not see, since it came later than the app, is kept. One of a column that was retyped since is sent as it was,
and cast by the server. One of a column that is gone has no place: it has to be left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.client.events import Kind
from anabranch.client.file import choice
from anabranch.client.file.believed import UNREADABLE, cause
from anabranch.client.file.device_file import Tx
from anabranch.client.file.device_table import DeviceTable
from anabranch.client.letters.dead import KINDS, batch_of, take
from anabranch.client.queue.settle import shown_values
from anabranch.client.writes.local import BatchBuilder
from anabranch.client.writes.payload import Beside
from anabranch.merge.model import MutationType
from anabranch.v1 import batch_pb2, value_pb2


@dataclass(slots=True)
class _Row:
    """A row of a letter. ``given``: values as a read gives them, by the names of columns in SQL. The others are by the
    names under which a letter shows them, or would: ``unseen``, of columns that the app does not know; ``former``, of
    columns that are not there any more, and whose values the server can carry over; ``gone``, of all else."""

    given: dict[str, Any] = field(default_factory=dict)
    unseen: dict[str, tuple[str, value_pb2.Value]] = field(default_factory=dict)
    former: dict[str, tuple[str, value_pb2.Value]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def gives(self, column: str) -> bool:
        return column in self.given or column in self.unseen or column in self.former or column in self.gone

    def lose(self, column: str) -> None:
        self.given.pop(column, None)
        self.unseen.pop(column, None)
        self.former.pop(column, None)
        self.gone.discard(column)

    @property
    def beside(self) -> Beside:
        """The values that go beside those that the app knows."""
        return Beside(dict(self.unseen.values()), dict(self.former.values()))


_Written = tuple[Kind, DeviceTable, list[_Row]]


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
            gives one to leave out, or one gives a column that is gone and not left out.
        NotChosen, NotReady: the device does not have one of its tables, or not yet.
        RowMissing, RowExists: it does not fit the rows shown now. The letter stays in each case.
    """
    value = take(tx, letter_id)
    try:
        batch = batch_of(letter_id, value)
        lost = [tx.tables.told(mutation.table) for mutation in batch.mutations if mutation.table not in tx.tables]
        written = [] if lost else [_written(tx.tables[mutation.table], mutation) for mutation in batch.mutations]
    except UNREADABLE as error:
        raise ValueError(f"the dead letter {letter_id} can't be read: {cause(error)}") from error
    if lost:
        raise choice.not_there(tx.state, min(lost, key=lambda name: (name in (tx.state.choice or ()), name)))
    _edit(written, changes, leave_out)
    for kind, table, rows in written:
        _write(builder, kind, table, rows)


def _written(table: DeviceTable, mutation: batch_pb2.DbMutation) -> _Written:
    rows = [_row(table, mutation.columns, row.values) for row in mutation.rows]
    return KINDS[MutationType(mutation.type)], table, rows


def _row(table: DeviceTable, columns: Sequence[str], values: Sequence[value_pb2.Value]) -> _Row:
    row = _Row()
    dropped = {column.name for column in table.gone}
    for column, value in zip(columns, values, strict=False):
        if value.WhichOneof("kind") is None:
            continue
        name, now = table.told(column), table.retyped(column)
        if table.is_hidden(column):
            row.unseen[name] = (column, value)
        elif column in dropped or (now is not None and now.name not in table.table.key_columns):
            row.former[name] = (column, value)
        elif column in table.table.index or now is not None:
            # A key can't wait to be cast: it is taken as it was given, or refused.
            row.given |= shown_values(table, [column], [value])
        else:
            row.gone.add(name)
    return row


def _edit(written: Sequence[_Written], changes: Mapping[str, Any], leave_out: Collection[str]) -> None:
    """Change the rows. Raises ValueError."""
    for column in sorted({*changes, *leave_out}):
        taking = list(_taking(written, column))
        giving = [row for row, _ in taking if row.gives(column)]
        if column not in changes:
            if not giving:
                raise ValueError(f"no row of the batch gives the column {column!r}")
            for row in giving:
                row.lose(column)
            continue
        edited = [row for row, table in taking if column in table.writable and (row in giving or not giving)]
        if not edited:
            raise ValueError(f"no row of the batch takes the column {column!r}")
        for row in edited:
            row.lose(column)
            row.given[column] = changes[column]


def _taking(written: Sequence[_Written], column: str) -> Iterator[tuple[_Row, DeviceTable]]:
    for kind, table, rows in written:
        if kind == "insert" or (kind == "update" and not _is_of_key(table, column)):
            for row in rows:
                yield row, table


def _is_of_key(table: DeviceTable, column: str) -> bool:
    found = table.writable.get(column)
    return found is not None and found.name in table.table.key_columns


def _write(builder: BatchBuilder, kind: Kind, table: DeviceTable, rows: Sequence[_Row]) -> None:
    gone = {name for row in rows for name in row.gone}
    if gone:
        raise ValueError(f"{table.sql_name} has no column {min(gone)!r} any more: leave it out")
    given = [row.given for row in rows]
    if kind == "delete":
        builder.delete(table.sql_name, given)
    else:
        (builder.insert if kind == "insert" else builder.update)(
            table.sql_name, given, beside=[row.beside for row in rows]
        )
