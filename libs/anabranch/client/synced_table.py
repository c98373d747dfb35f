"""SyncedTable, by which an app writes, and the batch that its writes belong to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from anabranch.client.writes.local import BatchBuilder

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Row | Sequence[Row]


@dataclass(slots=True)
class Batch:
    """One transaction of the device; ``id`` is "" until it is queued, and stays so where nothing was written."""

    id: str = ""


Write: TypeAlias = Callable[[], AbstractContextManager[tuple[BatchBuilder, Batch]]]
"""Opens the batch that one call writes to: the open batch, or one for the call alone."""


class SyncedTable:
    """Writes of one table. Rows are dicts by column; values are those that a read gives, or of the Python types in
    ``anabranch.values.python``.

    Every method queues its changes, inside ``SyncedDb.batch`` together with the block's other writes, and raises before
    anything is written:

    * ValueError: there is no such table or column, a value does not fit, the key is incomplete, a limit is passed, or
      the server would surely refuse it, as far as the device knows;
    * NotReady: the table's first pull is not complete;
    * NotChosen, a ValueError, too: the device has chosen other tables, which the message names.
    """

    def __init__(self, name: str, write: Write) -> None:
        self.name = name
        self._write = write

    def insert(self, rows: Rows) -> str:
        """Add a row, or rows; return the batch's id ("" inside a batch). Raises RowExists, too."""
        return self.insert_with_undo(_list(rows))

    def update(self, rows: Rows) -> str:
        """Change columns of a row, or rows; each names its key. Raises RowMissing, too."""
        return self.update_with_undo(_list(rows))

    def delete(self, keys: Any) -> str:
        """Remove the row of a key, or those of a list of keys: values, tuples in the key's order, or dicts of the key's
        columns. Raises RowMissing, too."""
        return self.delete_with_undo(keys if isinstance(keys, list) else [keys])

    def insert_with_undo(self, rows: Sequence[Row]) -> str:
        """``insert`` of a list."""
        with self._write() as (builder, batch):
            builder.insert(self.name, rows)
        return batch.id

    def update_with_undo(self, rows: Sequence[Row]) -> str:
        """``update`` of a list; the rows' earlier values travel with it."""
        with self._write() as (builder, batch):
            builder.update(self.name, rows)
        return batch.id

    def delete_with_undo(self, keys: Sequence[Any]) -> str:
        """``delete`` of a list; the whole rows travel with it."""
        with self._write() as (builder, batch):
            builder.delete(self.name, keys)
        return batch.id


def _list(rows: Rows) -> Sequence[Row]:
    return [rows] if isinstance(rows, Mapping) else rows
