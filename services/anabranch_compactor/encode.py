"""The canonical encoding (``anabranch.values.canonical``) of whole columns, and sums of the hashes of rows and effects.

Takes the columns of files: a proof adds up the typed values that were read, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.columnar.proof import INSERT, UPDATE, Sum
from anabranch.values import Kind, Table
from anabranch.values.canonical import INTEGER_TAGS, SUM_MODULUS, TEXT_TAGS, value_encoder
from anabranch.values.parquet import FileCodec, decimal_texts, file_codecs

Parts = list[Any]
"""Columns and scalars of bytes that stand one behind the other."""
_LITERAL, _BYTES = 0x0D, 0x05
_NULL = pa.scalar(b"\x00", pa.binary())
NAME_SEPARATOR = "\0"
"""Between the names of changed columns: no name in Postgres has it."""


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "big")


def _name(name: str) -> bytes:
    raw = name.encode()
    return _u32(len(raw)) + raw


def _fixed(rows: Any, nulls: pa.Array) -> pa.Array:
    """A matrix of bytes as a column, NULL encoded where ``nulls``."""
    count, size = rows.shape
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32) if size else np.zeros(count + 1, np.int32)
    array = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(rows.reshape(-1))])
    return pc.if_else(nulls, _NULL, array) if pc.any(nulls).as_py() else array


def _headed(tag: int, bits: Any, nulls: pa.Array) -> pa.Array:
    """A tag and the eight bytes of each number."""
    rows = np.empty((len(bits), 9), np.uint8)
    rows[:, 0] = tag
    rows[:, 1:] = bits.astype(">i8" if bits.dtype != np.uint64 else ">u8").view(np.uint8).reshape(-1, 8)
    return _fixed(rows, nulls)


def _sized(tag: int, raw: pa.Array) -> pa.Array:
    """A tag, the length and the content of each value."""
    sizes = pc.binary_length(raw).fill_null(0).to_numpy(zero_copy_only=False).astype(">u4")
    rows = np.empty((len(raw), 5), np.uint8)
    rows[:, 0] = tag
    rows[:, 1:] = sizes.view(np.uint8).reshape(-1, 4)
    heads = _fixed(rows, pa.scalar(False))
    return pc.binary_join_element_wise(heads, raw, pa.scalar(b"", pa.binary())).fill_null(_NULL)


class ColumnEncoder:
    """Encodes and hashes rows of one table, given as the columns of files and the exact texts beside them."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._codecs: Sequence[FileCodec] = file_codecs(table.columns)
        self._head = _name(table.name) + _u32(len(table.key_columns))
        self._names = [pa.scalar(_name(column.name), pa.binary()) for column in table.columns]
        self._ordered = sorted(range(len(table.columns)), key=lambda i: table.columns[i].name.encode())

    def value(self, place: int, values: pa.Array, exact: pa.Array | None) -> pa.Array:
        """The encoded values of one column."""
        encoded = self._value(place, values)
        if exact is None or exact.null_count == len(exact):
            return encoded
        tag = _LITERAL if self._table.columns[place].kind is Kind.TIMESTAMP else TEXT_TAGS[Kind.DECIMAL]
        return pc.if_else(exact.is_valid(), _sized(tag, exact.cast(pa.binary())), encoded)

    def _value(self, place: int, values: pa.Array) -> pa.Array:
        column, kind = self._table.columns[place], self._table.columns[place].kind
        nulls = values.is_null()
        if kind in INTEGER_TAGS:
            numbers = values.view(pa.int32() if kind is Kind.DATE else pa.int64())
            return _headed(INTEGER_TAGS[kind], numbers.fill_null(0).to_numpy().astype(np.int64), nulls)
        if kind is Kind.BOOL:
            rows = np.empty((len(values), 2), np.uint8)
            rows[:, 0], rows[:, 1] = 1, values.fill_null(False).to_numpy(zero_copy_only=False)
            return _fixed(rows, nulls)
        if kind is Kind.DOUBLE:
            numbers = values.fill_null(0.0).to_numpy().copy()
            bits = numbers.view(np.uint64).copy()
            bits[np.isnan(numbers)] = 0x7FF8000000000000
            return _headed(0x03, bits, nulls)
        if kind is Kind.BYTES:
            return _sized(_BYTES, values)
        if kind is Kind.ARRAY:
            encode = value_encoder(kind, column.element_kind)
            return pa.array([encode(cell) for cell in self._codecs[place].read(values)], pa.binary())
        if pa.types.is_decimal(values.type):
            values = decimal_texts(values)
        return _sized(TEXT_TAGS[kind], values.cast(pa.binary()))

    def values(self, batch: pa.RecordBatch | pa.Table) -> list[pa.Array]:
        """The encoded values of columns ``c…`` and ``x…``."""
        return [self.value(i, *self.column(batch, i)) for i in range(len(self._table.columns))]

    @staticmethod
    def column(batch: pa.RecordBatch, place: int) -> tuple[pa.Array, pa.Array | None]:
        """A column and its exact texts."""
        exact = f"x{place}"
        return batch.column(f"c{place}"), batch.column(exact) if exact in batch.schema.names else None

    def keys(self, batch: pa.RecordBatch) -> pa.Array:
        """The encoded keys: equal where rows have the same key."""
        values = [self.value(i, *self.column(batch, i)) for i in self._table.key_index]
        return values[0] if len(values) == 1 else _joined(values)

    def _row(self, head: bytes, values: Sequence[pa.Array], given: Sequence[int]) -> pa.Array:
        parts: Parts = [pa.scalar(head + self._head, pa.binary())]
        parts += [values[i] for i in self._table.key_index]
        for i in given:
            parts += [self._names[i], values[i]]
        return _joined(parts)

    def row_hashes(self, values: Sequence[pa.Array]) -> Sum:
        """The sum of the row hashes of encoded values."""
        return hash_sum(self._row(b"", values, self._ordered))

    def effect_hashes(self, type_: int, changed: Sequence[str], values: Sequence[pa.Array]) -> Sum:
        """The sum of the hashes of effects of one form.

        Raises:
            KeyError: a changed column is none of the table's.
        """
        names = self._table.column_names if type_ == INSERT else changed if type_ == UPDATE else ()
        given = {self._table.index[name] for name in (*names, *self._table.key_columns)}
        return hash_sum(self._row(bytes((type_,)), values, [i for i in self._ordered if i in given]))


def _joined(parts: Parts) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def hash_sum(encoded: pa.Array) -> Sum:
    """The sum of the BLAKE2b of each value."""
    # Every value is hashed by itself: there is no other way to have the sum of hashes.
    start = blake2b(digest_size=16).copy
    digests = []
    for data in encoded.to_pylist():
        one = start()
        one.update(data)
        digests.append(one.digest())
    limbs = np.frombuffer(b"".join(digests), ">u4").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    total = 0
    for limb in limbs.tolist():
        total = (total << 32) + limb
    return Sum(len(digests), total % SUM_MODULUS)


def row_sum(encoder: ColumnEncoder, batch: pa.RecordBatch) -> Sum:
    """The sum of the row hashes of columns ``c…`` and ``x…``."""
    return encoder.row_hashes(encoder.values(batch))


def effect_sum(encoder: ColumnEncoder, batch: pa.RecordBatch) -> Sum:
    """The sum of the effect hashes of rows with ``kind`` (a number) and ``changed`` (names with NAME_SEPARATOR)."""
    forms = pc.binary_join_element_wise(
        batch.column("kind").cast(pa.string()), batch.column("changed").fill_null(""), NAME_SEPARATOR
    ).dictionary_encode()
    codes = forms.indices.to_numpy()
    values = encoder.values(batch)
    total = Sum()
    for code, form in enumerate(forms.dictionary.to_pylist()):
        kind, _, names = form.partition(NAME_SEPARATOR)
        rows = pa.array(np.flatnonzero(codes == code))
        chosen = values if len(rows) == len(codes) else [one.take(rows) for one in values]
        total += encoder.effect_hashes(int(kind), names.split(NAME_SEPARATOR) if names else (), chosen)
    return total
