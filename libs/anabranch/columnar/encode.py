"""The canonical encoding (``anabranch.values.canonical``) of whole columns, for what a proof adds up.

It needs Arrow alone, because the services that prove have no numpy. While columns are worked on, ``c0``, ``c1``, … are
the cells, in the table's order, and ``x0``, … the exact texts of those that their file column can't hold (only for
columns that may have such), so that a table's columns may have any names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anabranch.columnar.file_columns import OWN, FileColumn, FileTable
from anabranch.values import Column, Kind, Table
from anabranch.values.arrow import to_cells
from anabranch.values.canonical import INTEGER_TAGS, TEXT_TAGS, value_encoder
from anabranch.values.effect_hashes import INSERT_TYPE
from anabranch.values.parquet import FileCodec, decimal_texts, file_codecs, may_need_text

_LITERAL, _BYTES, _DOUBLE = 0x0D, 0x05, 0x03
_NAN_BITS = 0x7FF8000000000000


def _bytes(content: bytes) -> pa.Scalar:
    return pa.scalar(content, pa.binary())


_NULL, _TRUE, _FALSE = _bytes(b"\x00"), _bytes(b"\x01\x01"), _bytes(b"\x01\x00")
_NOTHING = _bytes(b"")


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _name(name: str) -> bytes:
    raw = name.encode()
    return _u32(len(raw)) + raw


def joined(*parts: Any) -> pa.Array:
    """Columns and scalars of bytes, one behind the other; NULL where one of them is."""
    return pc.binary_join_element_wise(*parts, _bytes(b""))


def _tagged(tag: int, numbers: pa.Array) -> pa.Array:
    """A tag and the bytes of each number, of which none is NULL, the most significant one first."""
    size, count = numbers.type.bit_width // 8, len(numbers)
    first = numbers.offset * size
    raw = bytes(memoryview(numbers.buffers()[1])[first : first + size * count]) if count else b""
    rows = bytearray(bytes((tag,)) * (size + 1) * count)
    for to, place in enumerate(range(size) if sys.byteorder == "big" else range(size - 1, -1, -1), 1):
        rows[to :: size + 1] = raw[place::size]
    return pa.Array.from_buffers(pa.binary(size + 1), count, [None, pa.py_buffer(rows)]).cast(pa.binary())


def _integers(tag: int, numbers: pa.Array) -> pa.Array:
    encoded = _tagged(tag, numbers.fill_null(0))
    return pc.if_else(numbers.is_null(), _NULL, encoded) if numbers.null_count else encoded


def _sized(tag: int, raw: pa.Array) -> pa.Array:
    """A tag, the length and the content of each value."""
    return joined(_tagged(tag, pc.binary_length(raw).fill_null(0)), raw).fill_null(_NULL)


def own_fields(rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """The fields of our struct in rows of files."""
    own = rows.column(OWN)
    return dict(zip([field.name for field in own.type], own.flatten(), strict=True))


def cells_of(files: FileTable, rows: pa.RecordBatch, places: Iterable[int]) -> pa.RecordBatch:
    """``c…`` and ``x…`` of some columns of files' rows, as the columns are now. A column that is younger than its file
    has its initial value, NULL without one."""
    there, found, texts = set(rows.schema.names), {}, {}
    exact = rows.column(OWN).field("exact") if OWN in there else pa.nulls(0)
    for i in places:
        now = files.columns[i]
        held = next((one for one in files.places[i] if one.file_name in there), None)
        if held is None:
            found[f"c{i}"], texts[f"x{i}"] = initial_column(now.column, rows.num_rows)
            continue
        values, of_it = rows.column(held.file_name), None
        values = values if values.type == held.type else values.cast(held.type)
        if may_need_text(held.column) and exact.null_count < len(exact):
            of_it = pc.map_lookup(exact, pa.scalar(held.file_name), "first")
        if held is not now:
            values, of_it = _as_now(held, now, values, of_it)
        found[f"c{i}"] = values
        if of_it is not None:
            texts[f"x{i}"] = of_it
    none = pa.nulls(rows.num_rows, pa.string())
    found |= {f"x{i}": texts.get(f"x{i}", none) for i in files.with_text if f"c{i}" in found}
    return pa.RecordBatch.from_pydict(found)


def _as_now(
    held: FileColumn, now: FileColumn, values: pa.Array, exact: pa.Array | None
) -> tuple[pa.Array, pa.Array | None]:
    """Values of a file column as one of another type holds them, and their exact texts."""
    made, texts = FileCodec(now.column).from_pull(FileCodec(held.column).to_pull(values, exact))
    return made, None if texts is None else pa.array(texts, pa.string())


def initial_column(column: Column, count: int) -> tuple[pa.Array, pa.Array]:
    """A column of so many initial values as a file holds them (NULL without one), and their exact texts."""
    values, exact = FileCodec(column).write(column.initial or (None,))
    text = pa.scalar(None if exact is None else exact[0], pa.string())
    return pa.repeat(values[0], count), pa.repeat(text, count)


class ColumnEncoder:
    """Encodes rows of one table, given as ``c…`` and ``x…``."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._codecs = file_codecs(table.columns)
        self._head = _name(table.name) + _u32(len(table.key_columns))
        self._heads = [_bytes(_name(column.name)) for column in table.columns]
        self._ordered = sorted(range(len(table.columns)), key=lambda i: table.columns[i].name.encode())
        self._initial = {
            i: _bytes(value_encoder(column.kind, column.element_kind)(column.initial[0]))
            for i, column in enumerate(table.columns)
            if column.initial and i not in table.key_index
        }

    def value(self, place: int, values: pa.Array, exact: pa.Array | None = None) -> pa.Array:
        """The encoded values of one column, as a file has it, or as a Pull carries it (then ``exact`` is None)."""
        encoded = self._value(place, values)
        if exact is None or exact.null_count == len(exact):
            return encoded
        tag = _LITERAL if self.table.columns[place].kind is Kind.TIMESTAMP else TEXT_TAGS[Kind.DECIMAL]
        return pc.if_else(exact.is_valid(), _sized(tag, exact.cast(pa.binary())), encoded)

    def _value(self, place: int, values: pa.Array) -> pa.Array:
        column = self.table.columns[place]
        kind = column.kind
        if kind is Kind.ARRAY or (kind is Kind.TIMESTAMP and pa.types.is_string(values.type)):
            encode = value_encoder(kind, column.element_kind)
            cells = self._codecs[place].read(values) if kind is Kind.ARRAY else to_cells(column, values)
            return pa.array(map(encode, cells), pa.binary())
        if kind in INTEGER_TAGS:
            wide = values.view(pa.int32()).cast(pa.int64()) if kind is Kind.DATE else values.view(pa.int64())
            return _integers(INTEGER_TAGS[kind], wide)
        if kind is Kind.BOOL:
            return pc.if_else(values, _TRUE, _FALSE).fill_null(_NULL)
        if kind is Kind.DOUBLE:
            nan = pa.scalar(_NAN_BITS, pa.int64())
            return _integers(_DOUBLE, pc.if_else(pc.is_nan(values), nan, values.view(pa.int64())))
        if pa.types.is_decimal(values.type):
            values = decimal_texts(values)
        return _sized(_BYTES if kind is Kind.BYTES else TEXT_TAGS[kind], values.cast(pa.binary()))

    def _encoded(self, cells: pa.RecordBatch, place: int, rows: pa.Array | None = None) -> pa.Array:
        names = [name for name in (f"c{place}", f"x{place}") if name in cells.schema.names]
        values = [cells.column(name) if rows is None else cells.column(name).take(rows) for name in names]
        return self.value(place, *values)

    def values(self, cells: pa.RecordBatch) -> list[pa.Array]:
        """The encoded values of all columns."""
        return [self._encoded(cells, i) for i in range(len(self.table.columns))]

    def keys(self, cells: pa.RecordBatch) -> pa.Array:
        """The encoded keys: equal where rows have the same key."""
        values = [self._encoded(cells, i) for i in self.table.key_index]
        return values[0] if len(values) == 1 else joined(*values)

    def rows(self, values: Sequence[pa.Array]) -> pa.Array:
        """Whole rows, of encoded values."""
        return self._rows(b"", dict(enumerate(values)), self._initial)

    def effects(self, type_: int, names: Iterable[str], cells: pa.RecordBatch, rows: pa.Array) -> pa.Array:
        """The effects, all of one type, in some ``rows`` of ``cells``; beside the key they give the columns ``names``.

        Raises:
            KeyError: a column is none of the table's.
        """
        given = {self.table.index[name] for name in (*names, *self.table.key_columns)}
        left_out = self._initial if type_ == INSERT_TYPE else {}
        return self._rows(bytes((type_,)), {i: self._encoded(cells, i, rows) for i in given}, left_out)

    def _rows(self, head: bytes, values: Mapping[int, pa.Array], left_out: Mapping[int, pa.Scalar]) -> pa.Array:
        parts = [_bytes(head + self._head), *(values[i] for i in self.table.key_index)]
        for i in self._ordered:
            if i in values and i in left_out:
                field = joined(self._heads[i], values[i])
                parts.append(pc.if_else(pc.equal(values[i], left_out[i]), _NOTHING, field))
            elif i in values:
                parts += [self._heads[i], values[i]]
        return joined(*parts)
