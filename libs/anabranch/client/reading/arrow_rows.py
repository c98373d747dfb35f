"""The chunks of a pull as rows that SQLite holds (``anabranch.values.arrow_to_sqlite``)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from anabranch.values import Table
from anabranch.values.arrow_to_sqlite import sqlite_column


class ArrowRows:
    """Reads the chunks of one table's pull."""

    def __init__(self, table: Table) -> None:
        self._names = table.column_names
        self._converters = [sqlite_column(c) for c in table.columns]

    def read(self, ipc: bytes) -> tuple[int, Iterable[tuple[Any, ...]]]:
        """Number of rows and the stored rows, in the order of the table's columns, of an Arrow IPC stream.

        Raises:
            pyarrow.ArrowInvalid, KeyError: it is no such stream, or lacks a column.
        """
        rows = 0
        columns: list[list[Any]] = [[] for _ in self._names]
        with pa.ipc.open_stream(ipc) as reader:
            for batch in reader:
                rows += batch.num_rows
                for i, (name, convert) in enumerate(zip(self._names, self._converters, strict=True)):
                    values = convert(batch.column(name))
                    columns[i] = columns[i] + values if columns[i] else values
        return rows, zip(*columns, strict=True)
