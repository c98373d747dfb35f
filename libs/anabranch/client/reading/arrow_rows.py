"""The chunks of a pull as rows that SQLite holds (``anabranch.values.arrow_to_sqlite``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from anabranch.errors import AnabranchError
from anabranch.values import Table
from anabranch.values.arrow_to_sqlite import sqlite_column
from anabranch.wire.audiences import AUDIENCE_COLUMN


@dataclass(frozen=True, slots=True)
class Chunk:
    """The number of rows of a chunk, the stored rows in the order of the table's columns, and, of a restricted table,
    each row's audiences."""

    count: int = 0
    rows: Iterable[tuple[Any, ...]] = ()
    audiences: Sequence[Sequence[str]] = ()


class OtherShapeError(AnabranchError):
    """The rows of a pull have other columns than the table here: it was altered since the server described it."""

    def __init__(self, table: Table) -> None:
        super().__init__(f"the rows of {table.sql_name} have other columns than it had when it was described")
        self.table = table.name


class ArrowRows:
    """Reads the chunks of one table's pull."""

    def __init__(self, table: Table, restricted: bool = False) -> None:
        self._table = table
        self._names = table.column_names
        self._converters = [sqlite_column(c) for c in table.columns]
        self._restricted = restricted

    def read(self, ipc: bytes) -> Chunk:
        """The rows of an Arrow IPC stream.

        Raises:
            pyarrow.ArrowInvalid: it is no such stream.
            OtherShapeError: its columns are not the table's.
        """
        rows = 0
        columns: list[list[Any]] = [[] for _ in self._names]
        audiences: list[Sequence[str]] = []
        with pa.ipc.open_stream(ipc) as reader:
            if {name for name in reader.schema.names if name != AUDIENCE_COLUMN} != set(self._names):
                raise OtherShapeError(self._table)
            for batch in reader:
                rows += batch.num_rows
                for i, (name, convert) in enumerate(zip(self._names, self._converters, strict=True)):
                    values = convert(batch.column(name))
                    columns[i] = columns[i] + values if columns[i] else values
                if self._restricted:
                    audiences += [one or () for one in batch.column(AUDIENCE_COLUMN).to_pylist()]
        return Chunk(rows, zip(*columns, strict=True), audiences)
