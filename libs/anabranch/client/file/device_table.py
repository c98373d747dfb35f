"""A synced table on the device: its columns, its statements, its conversions, compiled once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from anabranch.client.writes.sure import SureOfColumn, sure_of
from anabranch.merge.model import Policy
from anabranch.v1 import snapshot_pb2, value_pb2
from anabranch.values import Cell, Column, Kind, Table, key_text
from anabranch.values.canonical import RowEncoder
from anabranch.values.messages import column_reader, column_writer
from anabranch.values.sqlite import RowCodec, declared_type, storer

_CHUNK_VARIABLES = 500
_LARGE = frozenset({Kind.BYTES, Kind.JSON})


def quote(name: str) -> str:
    """``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def table_of(message: snapshot_pb2.Table) -> Table:
    """The table that a Describe message describes."""
    return Table(
        message.name,
        tuple(
            Column(
                name=c.name,
                kind=Kind(c.kind),
                postgres_type=c.postgres_type,
                element_kind=Kind(c.element_kind) if c.element_kind else None,
                not_null=c.not_null,
                generated=c.generated,
                has_default=c.has_default,
                policy=c.policy or "lww",
            )
            for c in message.columns
        ),
        tuple(message.key_columns),
    )


def device_table(message: snapshot_pb2.Table) -> DeviceTable:
    """The table that a Describe message describes, with the values that the server is sure to refuse in it."""
    table = table_of(message)
    return DeviceTable(table, sure_of(message, table.columns), message.restricted)


class DeviceTable:
    """Statements and conversions of one table. Rows are in the order of ``table.columns``: as *cells*, or *stored*, as
    SQLite holds them. ``key`` is always the stored form of the key, in the key's order. ``restricted``: the device gets
    the rows of its audiences alone, and keeps each row's audiences beside it."""

    def __init__(
        self, table: Table, sure: Mapping[str, SureOfColumn] = MappingProxyType({}), restricted: bool = False
    ) -> None:
        self.table = table
        self.restricted = restricted
        self.sure = sure
        self.name = table.name
        self.codec = RowCodec(table)
        self.encoder = RowEncoder(table)
        self.policy = Policy(columns={c.name: c.policy for c in table.columns if c.policy != "lww"})
        self.readers = [column_reader(c) for c in table.columns]
        self.writers = [column_writer(c) for c in table.columns]
        self.storers = [storer(c) for c in table.columns]
        self.quoted = quote(table.name)
        names = [quote(n) for n in table.column_names]
        self.columns_sql = ", ".join(names)
        self.exact_sql = ", ".join(
            f"{quote(c.name)} COLLATE BINARY" if c.kind is Kind.DECIMAL else quote(c.name) for c in table.columns
        )
        """``columns_sql`` for comparisons that distinguish 1.10 from 1.1."""
        self._key_names = [quote(n) for n in table.key_columns]
        self._values = ", ".join("?" * len(names))
        rest = [quote(c.name) for c in table.columns if c.name not in table.key_columns]
        action = "UPDATE SET " + ", ".join(f"{n} = excluded.{n}" for n in rest) if rest else "NOTHING"
        self.insert_sql = self.insert_into(table.name)
        self.upsert_sql = f"{self.insert_sql} ON CONFLICT ({', '.join(self._key_names)}) DO {action}"
        match = " AND ".join(f"{n} = ?" for n in self._key_names)
        self.delete_sql = f"DELETE FROM {self.quoted} WHERE {match}"
        # The stored form of a key is the cell itself but for booleans, which are equal to it.
        self._key_loaders = [(p, bool) for p, i in enumerate(table.key_index) if table.columns[i].kind is Kind.BOOL]

    def create_sql(self, name: str | None = None) -> str:
        """The table's DDL, under another ``name`` for a table that a pull fills. The key is its only constraint.

        Without a rowid where that is smaller and faster: not where a single integer key becomes the rowid itself, and
        not where rows can be large."""
        table = self.table
        columns = [f"{quote(c.name)} {declared_type(c.kind)}".rstrip() for c in table.columns]
        single_integer = len(table.key_columns) == 1 and table.by_name[table.key_columns[0]].kind is Kind.INT64
        rowid = single_integer or any(c.kind in _LARGE for c in table.columns)
        key = f"PRIMARY KEY ({', '.join(self._key_names)})"
        return f"CREATE TABLE {quote(name or self.name)} ({', '.join([*columns, key])})" + (
            "" if rowid else " WITHOUT ROWID"
        )

    def insert_into(self, name: str) -> str:
        """The statement that adds a stored row to the table ``name``, which has this table's columns."""
        return f"INSERT INTO {quote(name)} ({self.columns_sql}) VALUES ({self._values})"

    def key_of(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """The key in a row of cells or a stored row."""
        return tuple(row[i] for i in self.table.key_index)

    def key_text(self, key: Sequence[Any]) -> str:
        """The key text of a stored key, or of one of cells."""
        if self._key_loaders:
            cells = list(key)
            for position, load in self._key_loaders:
                cells[position] = load(cells[position])
            return key_text(cells)
        return key_text(key)

    def read(
        self, conn: sqlite3.Connection, keys: Iterable[tuple[Any, ...]], name: str | None = None
    ) -> list[tuple[Any, ...]]:
        """The stored rows of ``keys`` that the table (or the one called ``name``) has, in no order."""
        keys = list(keys)
        width = len(self._key_names)
        step = max(1, _CHUNK_VARIABLES // width)
        head = f"SELECT {self.columns_sql} FROM {quote(name or self.name)} WHERE "
        if width == 1:
            head += f"{self._key_names[0]} IN "
            group = "?"
        else:
            head += f"({', '.join(self._key_names)}) IN "
            group = f"({', '.join('?' * width)})"
        rows: list[tuple[Any, ...]] = []
        for start in range(0, len(keys), step):
            chunk = keys[start : start + step]
            # Padded to a power of two with a key that is there anyway, so that few statements are ever prepared.
            size = min(step, 1 << (len(chunk) - 1).bit_length())
            chunk += [chunk[-1]] * (size - len(chunk))
            marks = ", ".join([group] * size)
            sql = head + (f"({marks})" if width == 1 else f"(VALUES {marks})")
            rows += conn.execute(sql, [v for key in chunk for v in key]).fetchall()
        return rows

    def read_by_text(
        self, conn: sqlite3.Connection, keys: dict[str, tuple[Any, ...]], name: str | None = None
    ) -> dict[str, tuple[Any, ...]]:
        """The stored rows of ``keys`` (key text to key), by their key texts."""
        rows = self.read(conn, keys.values(), name)
        if len(keys) == 1:
            return dict(zip(keys, rows, strict=False))
        text = self.key_text
        key_of = self.key_of
        return {text(key_of(row)): row for row in rows}

    def to_bytes(self, cells: Sequence[Cell]) -> bytes:
        """A row of cells as a serialized ``anabranch.v1.Row``: how base images are kept."""
        values = [write(cell) for write, cell in zip(self.writers, cells, strict=True)]
        return value_pb2.Row(values=values).SerializeToString()

    def from_bytes(self, data: bytes) -> tuple[Cell, ...]:
        """The cells of ``to_bytes``; columns added since are None."""
        values = value_pb2.Row.FromString(data).values
        cells: list[Cell] = [read(value) for read, value in zip(self.readers, values, strict=False)]
        cells += [None] * (len(self.readers) - len(cells))
        return tuple(cells)

    def shown_value(self, column: str, value: value_pb2.Value) -> Any:
        """A Value of ``column`` as a read gives it. Raises KeyError for a column that the table lacks, and ValueError
        for a Value that is not given or of another kind."""
        place = self.table.index[column]
        cell = self.readers[place](value)
        store = self.storers[place]
        return cell if store is None or cell is None else store(cell)

    def shown(self, stored: Sequence[Any]) -> dict[str, Any]:
        """A stored row by column names."""
        return dict(zip(self.table.column_names, stored, strict=True))
