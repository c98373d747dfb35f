"""A synced table on the device: its columns, its statements, its conversions, compiled once."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from anabranch.client.file.told import GONE, LATER, apart, became
from anabranch.client.writes.sure import SureOfColumn, sure_of
from anabranch.merge.model import Policy
from anabranch.v1 import snapshot_pb2, value_pb2
from anabranch.values import Cell, Column, Kind, Table, key_text
from anabranch.values.canonical import RowEncoder
from anabranch.values.kinds import TEXT_KINDS
from anabranch.values.messages import Writer, column_reader, column_writer
from anabranch.values.sqlite import RowCodec, declared_type, storer

_CHUNK_VARIABLES = 500
_LARGE = frozenset({Kind.BYTES, Kind.JSON})


def quote(name: str) -> str:
    """``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def table_of(message: snapshot_pb2.Table) -> Table:
    """The table that a message of the server describes, by identities; without columns that are gone."""
    columns = tuple(_column(c) for c in message.columns if not c.gone)
    return Table(message.name, columns, tuple(message.key_columns), renamed=message.sql_name)


def _column(message: snapshot_pb2.Column) -> Column:
    column = Column(
        name=message.name,
        kind=Kind(message.kind),
        postgres_type=message.postgres_type,
        element_kind=Kind(message.element_kind) if message.element_kind else None,
        not_null=message.not_null,
        generated=message.generated,
        has_default=message.has_default,
        policy=message.policy or "lww",
        renamed=message.sql_name,
    )
    if not message.HasField("initial"):
        return column
    return replace(column, initial=(column_reader(column)(message.initial),))


def device_table(message: snapshot_pb2.Table) -> DeviceTable:
    """The table that a message describes, with the values that the server is sure to refuse in it. Raises ValueError
    where the message can't be one of this release."""
    table = table_of(message)
    return DeviceTable(
        table,
        sure_of(message, table.columns),
        message.restricted,
        frozenset(c.name for c in message.columns if c.hidden),
        tuple(_column(c) for c in message.columns if c.gone),
        message.changed_position,
    )


class DeviceTable:
    """Statements and conversions of one table. Rows are in the order of ``table.columns``: as *cells*, or *stored*, as
    SQLite holds them. ``key`` is always the stored form of the key, in the key's order. ``restricted``: the device gets
    the rows of its audiences alone, and keeps each row's audiences beside it.

    ``name`` and the names in ``table`` are identities, by which everything goes that is kept, sent or received.
    ``sql_name`` and each column's are those in SQLite, which the app knows. An app that is tied to a schema version
    does not know the ``hidden`` columns, which came later; those ``gone`` since are NULL in every row of it, and in no
    row of ours: what it writes to them is only sent."""

    def __init__(
        self,
        table: Table,
        sure: Mapping[str, SureOfColumn] = MappingProxyType({}),
        restricted: bool = False,
        hidden: frozenset[str] = frozenset(),
        gone: tuple[Column, ...] = (),
        changed_ms: int = 0,
    ) -> None:
        self.table = table
        self.changed_ms = changed_ms
        """The position of the schema change that made it what it is; 0 where it is as it was registered."""
        self.blank = tuple(c.initial[0] if c.initial else None for c in table.columns)
        """The cells of a row where nothing gives them: initial values, where the server has those, too."""
        self.restricted = restricted
        self.sure = sure
        self.hidden = hidden
        self.gone = gone
        self.name = table.name
        self.sql_name = table.sql_name
        self.codec = RowCodec(table)
        self.encoder = RowEncoder(table)
        self.policy = Policy(columns={c.name: c.policy for c in table.columns if c.policy != "lww"})
        self.forms: list[Any] = []
        """The forms of effects on it that were read (``reading.effects``)."""
        self.readers = [column_reader(c) for c in table.columns]
        self.writers = [column_writer(c) for c in table.columns]
        self.storers = [storer(c) for c in table.columns]
        self.quoted = quote(table.sql_name)
        names = [quote(c.sql_name) for c in table.columns]
        self.columns_sql = ", ".join(names)
        self.exact_sql = ", ".join(
            f"{quote(c.sql_name)} COLLATE BINARY" if c.kind is Kind.DECIMAL else quote(c.sql_name)
            for c in table.columns
        )
        """``columns_sql`` for comparisons that distinguish 1.10 from 1.1."""
        self._key_names = [quote(table.by_name[n].sql_name) for n in table.key_columns]
        self.key_sql = ", ".join(self._key_names)
        self._values = ", ".join("?" * len(names))
        rest = [quote(c.sql_name) for c in table.columns if c.name not in table.key_columns]
        action = "UPDATE SET " + ", ".join(f"{n} = excluded.{n}" for n in rest) if rest else "NOTHING"
        self.insert_sql = self.insert_into(table.sql_name)
        self._or_update = f" ON CONFLICT ({self.key_sql}) DO {action}"
        self.upsert_sql = self.upsert()
        match = " AND ".join(f"{n} = ?" for n in self._key_names)
        self.delete_sql = f"DELETE FROM {self.quoted} WHERE {match}"
        # The stored form of a key is the cell itself but for booleans, which are equal to it.
        self._key_loaders = [(p, bool) for p, i in enumerate(table.key_index) if table.columns[i].kind is Kind.BOOL]
        single_text = len(table.key_columns) == 1 and table.by_name[table.key_columns[0]].kind in TEXT_KINDS
        self.key_text: Callable[[Sequence[Any]], str] = itemgetter(0) if single_text else self._key_text
        """The key text of a stored key, or of one of cells."""
        visible = [c for c in table.columns if c.name not in hidden]
        self.writable = {c.sql_name: c for c in (*visible, *gone)}
        """The columns that the app knows, by their names in SQL; generated ones included."""
        self.identities = tuple(c.name for c in (*table.columns, *gone))
        """The columns that a batch may name, in the order in which it does."""
        self._shown = [(table.index[c.name], c.sql_name) for c in visible]
        self._sql_names = {c.name: c.sql_name for c in (*visible, *gone)}
        self._gone_writers = {c.name: column_writer(c) for c in gone}

    def create_sql(self, name: str | None = None) -> str:
        """The table's DDL, under another ``name`` for a table that a pull fills. The key is its only constraint.

        Without a rowid where that is smaller and faster: not where a single integer key becomes the rowid itself, and
        not where rows can be large."""
        table = self.table
        columns = [f"{quote(c.sql_name)} {declared_type(c.kind)}".rstrip() for c in (*table.columns, *self.gone)]
        single_integer = len(table.key_columns) == 1 and table.by_name[table.key_columns[0]].kind is Kind.INT64
        rowid = single_integer or any(c.kind in _LARGE for c in table.columns)
        key = f"PRIMARY KEY ({self.key_sql})"
        return f"CREATE TABLE {quote(name or self.sql_name)} ({', '.join([*columns, key])})" + (
            "" if rowid else " WITHOUT ROWID"
        )

    def insert_into(self, name: str, rows: int = 1) -> str:
        """The statement that adds so many stored rows to the table ``name``, which has this table's columns."""
        return f"INSERT INTO {quote(name)} ({self.columns_sql}) VALUES {', '.join([f'({self._values})'] * rows)}"

    def upsert(self, rows: int = 1) -> str:
        """The statement that adds so many stored rows to the table, or makes those that are there the same."""
        return self.insert_into(self.sql_name, rows) + self._or_update

    def key_of(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """The key in a row of cells or a stored row."""
        return tuple(row[i] for i in self.table.key_index)

    def _key_text(self, key: Sequence[Any]) -> str:
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
        head = f"SELECT {self.columns_sql} FROM {quote(name or self.sql_name)} WHERE "
        if width == 1:
            head += f"{self._key_names[0]} IN "
            group = "?"
        else:
            head += f"({self.key_sql}) IN "
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

    def writer_of(self, column: str) -> Writer:
        """The function that converts a cell of a column, also one that is gone, to a Value."""
        place = self.table.index.get(column)
        return self._gone_writers[column] if place is None else self.writers[place]

    def shown_value(self, column: str, value: value_pb2.Value) -> Any:
        """A Value of ``column`` as a read gives it. Raises KeyError for a column that the table lacks, and ValueError
        for a Value that is not given or of another kind."""
        place = self.table.index[column]
        cell = self.readers[place](value)
        store = self.storers[place]
        return cell if store is None or cell is None else store(cell)

    def shown(self, stored: Sequence[Any]) -> dict[str, Any]:
        """A stored row as the app reads it, by the names of columns in SQL."""
        row = {name: stored[place] for place, name in self._shown}
        row.update((c.sql_name, None) for c in self.gone)
        return row

    def shown_columns(self, differ: Sequence[bool] | None = None) -> tuple[str, ...]:
        """The names in SQL of the columns that the app reads; of those alone that ``differ``, by their places."""
        return tuple(name for place, name in self._shown if differ is None or differ[place])

    def told(self, column: str, *, dropped: bool = False) -> str:
        """A column's name as the app knows it, of one that was retyped its name of today; of a column that the app does
        not know its identity, with a mark behind it where another column is called so. ``dropped``: it is known that
        the column was not retyped."""
        known = self._sql_names.get(column)
        if known is not None or not column:
            return known or column
        if column in self.hidden:
            return apart(column, self.writable, LATER)
        now = None if dropped else self.retyped(column)
        return apart(column, self.writable, GONE) if now is None else now.sql_name

    def retyped(self, column: str) -> Column | None:
        """The column, one that the app knows, that an earlier one was retyped into; None for a column that is gone, or
        that the app knows."""
        if column in self._sql_names or column in self.hidden:
            return None
        found = became(column, self.table.by_name)
        return None if not found or found in self.hidden else self.table.by_name[found]

    def is_hidden(self, column: str) -> bool:
        """Whether the app, tied to an earlier schema version, does not know a column of the table."""
        return column in self.hidden


class DeviceTables(dict[str, DeviceTable]):
    """The synced tables of a file by identity; never changed."""

    def __init__(self, tables: Iterable[DeviceTable] = ()) -> None:
        super().__init__((table.name, table) for table in tables)
        self.by_sql_name = {table.sql_name: table for table in self.values()}

    def named(self, sql_name: str) -> DeviceTable | None:
        """The table that has a name in SQL; None where none has."""
        return self.by_sql_name.get(sql_name)

    def told(self, name: str) -> str:
        """A table's name as the app knows it; of one that the file does not have its identity, which another table may
        have for its name."""
        table = self.get(name)
        return name if table is None else table.sql_name


def compiled(conn: sqlite3.Connection) -> DeviceTables:
    """The synced tables, as the transaction of ``conn`` sees them. Raises one of UNREADABLE (``believed``)."""
    rows = conn.execute("SELECT value FROM _db_tables ORDER BY ordinal")
    return DeviceTables(_described(value) for (value,) in rows.fetchall())


@lru_cache(maxsize=1024)
def _described(value: bytes) -> DeviceTable:
    # A table is never changed: a change of one of many makes that one anew.
    return device_table(snapshot_pb2.Table.FromString(value))
