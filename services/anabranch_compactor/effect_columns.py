"""Effects to columns of cells, without looking at any value by itself.

Effects of one form (the same type and the same columns) begin with the same bytes. Such a beginning is parsed with the
contract's own class, once; the values stand behind it, in the same order in every effect of that form, and are read
column by column (``scan``). An effect that is written in another way than ours (fields in another order, say) is parsed
with the contract's class as a whole, and so is a value that the columns have no form for; arrays always are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from anabranch.errors import ServerError
from anabranch.v1 import change_pb2, value_pb2
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.message_bytes import LENGTH_DELIMITED, field_number
from anabranch.values.messages import ARMS, column_reader
from anabranch.values.parquet import FileCodec, file_codecs, may_need_text
from anabranch.wire.effects import UPDATE
from anabranch_compactor.scan import Flags, Messages, Places

_TABLE = field_number(change_pb2.Effect, "table") << 3 | LENGTH_DELIMITED
_TYPE = field_number(change_pb2.Effect, "type") << 3
_COLUMNS = field_number(change_pb2.Effect, "columns") << 3 | LENGTH_DELIMITED
_VALUES = field_number(change_pb2.Effect, "values") << 3 | LENGTH_DELIMITED
_NULL = field_number(value_pb2.Value, "null_value") << 3
_LITERAL = field_number(value_pb2.Value, "text_literal") << 3 | LENGTH_DELIMITED
_NUMBERS = {Kind.INT64, Kind.TIMESTAMP, Kind.DATE, Kind.TIME}
_MOST_COLUMNS = 2_000
_UNREADABLE = (DecodeError, ValueError, OverflowError)
"""Exceptions for bytes that are no effect of the table's; any other is a fault of the program, or of the machine."""


class MalformedEffectError(ServerError, ValueError):
    """A row of the log is no effect of the table's."""


@dataclass(frozen=True, slots=True)
class DecodedColumn:
    """A column of a file (``values``), and the texts of what it can't hold (None: of nothing)."""

    values: pa.Array
    exact: pa.Array | None


@dataclass(frozen=True, slots=True)
class Form:
    """Effects of one form: their places in the column, ascending, and their cells by the column's place."""

    rows: Places
    type: int
    changed: tuple[str, ...]
    cells: dict[int, DecodedColumn] = field(default_factory=dict)


class EffectDecoder:
    """Decodes effects of one table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._codecs = file_codecs(table.columns)
        self._readers = [column_reader(column) for column in table.columns]

    def decode(self, effects: pa.Array) -> Iterator[Form]:
        """The effects (serialized ``anabranch.v1.Effect``) form by form; each is in one of them.

        Raises:
            MalformedEffectError: one is no effect of the table's.
        """
        messages = Messages(effects)
        values_at = _skip_head(messages)
        left = np.arange(len(effects))
        while len(left):
            first = left[0]
            size = int(values_at[first] - messages.starts[first])
            alike = np.flatnonzero(values_at[left] - messages.starts[left] == size)
            heads = messages.prefixes(left[alike], size)
            alike = alike[(heads == heads[0]).all(axis=1)]
            rows, left = left[alike], np.delete(left, alike)
            yield from self._form(effects, messages, rows, heads[0].tobytes())

    def _form(self, effects: pa.Array, messages: Messages, rows: Places, head: bytes) -> Iterator[Form]:
        try:
            effect = change_pb2.Effect.FromString(head)
            places = self._places(effect)
        except _UNREADABLE:
            # Which of them is wrong, and how, is said there.
            yield from self._one_by_one(effects, rows)
            return
        at, ends = messages.starts[rows] + len(head), messages.ends[rows]
        fits = np.ones(len(rows), np.bool_)
        found: dict[int, tuple[Places, Places]] = {}
        for place in places:
            fits &= messages.byte(at) == _VALUES
            size, begin = messages.size(at + 1)
            at = begin + size
            fits &= (at <= ends) & (size > 0)
            found[place] = begin, at
        fits &= at == ends
        for place, (begin, end) in found.items():
            fits &= self._carries(self._table.columns[place], messages, begin, end)
        if not fits.all():
            yield from self._one_by_one(effects, rows[~fits])
            rows = rows[fits]
            found = {place: (begin[fits], end[fits]) for place, (begin, end) in found.items()}
        if len(rows):
            cells = {place: self._column(place, messages, *bounds) for place, bounds in found.items()}
            yield Form(rows, effect.type, _changed(self._table, effect), cells)

    def _places(self, effect: change_pb2.Effect) -> list[int]:
        """The places of its columns in the table. Raises ValueError: the table has no such column."""
        unknown = [name for name in effect.columns if name not in self._table.index]
        if unknown:
            raise ValueError(f"there is no column {unknown[0]}")
        return [self._table.index[name] for name in effect.columns]

    def _carries(self, column: Column, messages: Messages, begin: Places, end: Places) -> Flags:
        """Whether each Value is one that ``_column`` reads."""
        kind, tag = column.kind, messages.byte(begin)
        size = end - begin
        null = (tag == _NULL) & (size == 2) & (messages.byte(begin + 1) == 0)
        own = field_number(value_pb2.Value, ARMS[kind]) << 3
        if kind in _NUMBERS or kind is Kind.BOOL:
            number, after = messages.varint(begin + 1)
            fits = (tag == own) & (after == end)
            if kind is Kind.BOOL:
                fits &= number <= 1
        elif kind is Kind.DOUBLE:
            fits = (tag == own | 1) & (size == 9)
        elif kind is Kind.ARRAY:
            fits = np.ones(len(begin), np.bool_)
        else:
            length, after = messages.size(begin + 1)
            fits = (tag == own | LENGTH_DELIMITED) & (after + length == end)
        found: Flags = fits | null
        return found

    def _column(self, place: int, messages: Messages, begin: Places, end: Places) -> DecodedColumn:
        column, codec = self._table.columns[place], self._codecs[place]
        kind = column.kind
        there = messages.byte(begin) != _NULL
        nulls = None if there.all() else ~there
        if kind in _NUMBERS:
            numbers = messages.varint(begin + 1)[0].view(np.int64)
            if kind is Kind.DATE:
                return DecodedColumn(pa.array(numbers.astype(np.int32), mask=nulls).view(pa.date32()), None)
            array = pa.array(numbers, mask=nulls)
            return DecodedColumn(array if codec.type == pa.int64() else array.view(codec.type), None)
        if kind is Kind.BOOL:
            return DecodedColumn(pa.array(messages.byte(begin + 1) == 1, mask=nulls), None)
        if kind is Kind.DOUBLE:
            return DecodedColumn(pa.array(messages.doubles(begin + 1), mask=nulls, from_pandas=False), None)
        if kind is Kind.ARRAY:
            values = messages.slices(begin, end, np.ones(len(begin), np.bool_), pa.binary()).to_pylist()
            read = self._readers[place]
            return _written(codec, [read(value_pb2.Value.FromString(value)) for value in values])
        _, after = messages.size(begin + 1)
        texts = messages.slices(np.where(there, after, begin), np.where(there, end, begin), there, _text_type(column))
        if kind is Kind.UUID:
            texts = pc.ascii_lower(texts)
        array, exact = codec.from_pull(texts)
        return DecodedColumn(array, None if exact is None else pa.array(exact, pa.string()))

    def _one_by_one(self, effects: pa.Array, rows: Places) -> Iterator[Form]:
        """Effects by the contract's class, a form each."""
        for row in rows:
            data = effects[int(row)].as_py()
            try:
                effect = change_pb2.Effect.FromString(data)
                if len(effect.columns) != len(effect.values):
                    raise ValueError(f"{len(effect.columns)} columns and {len(effect.values)} values")
                places = self._places(effect)
                cells: list[Cell] = [
                    self._readers[place](value) for place, value in zip(places, effect.values, strict=True)
                ]
                found = {p: _written(self._codecs[p], [cell]) for p, cell in zip(places, cells, strict=True)}
            except _UNREADABLE as error:
                kind = type(error).__name__
                raise MalformedEffectError(f"an effect of {self._table.name} can't be read: {kind}") from error
            yield Form(np.array([row]), effect.type, _changed(self._table, effect), found)


def _text_type(column: Column) -> pa.DataType:
    return pa.binary() if column.kind is Kind.BYTES else pa.string()


def _written(codec: FileCodec, cells: Sequence[Cell]) -> DecodedColumn:
    values, exact = codec.write(cells)
    return DecodedColumn(values, None if exact is None else pa.array(exact, pa.string()))


def _changed(table: Table, effect: change_pb2.Effect) -> tuple[str, ...]:
    if effect.type != UPDATE:
        return ()
    return tuple(name for name in effect.columns if name not in table.key_columns)


def _skip_head(messages: Messages) -> Places:
    """The place of each effect's first value: behind table, type and columns; at its end where it has none."""
    at, ends = messages.starts.copy(), messages.ends
    at = _skip_if(messages, at, ends, _TABLE, sized=True)
    at = _skip_if(messages, at, ends, _TYPE, sized=False)
    for _ in range(_MOST_COLUMNS):
        after = _skip_if(messages, at, ends, _COLUMNS, sized=True)
        if (after == at).all():
            break
        at = after
    return at


def _skip_if(messages: Messages, at: Places, ends: Places, tag: int, *, sized: bool) -> Places:
    found = (messages.byte(at) == tag) & (at < ends)
    number, after = messages.size(at + 1)
    return np.minimum(np.where(found, after + number if sized else after, at), ends)


def exact_columns(table: Table) -> list[int]:
    """Places of the columns that may need exact texts."""
    return [i for i, column in enumerate(table.columns) if may_need_text(column)]
