"""The canonical encoding of a row and its hash.

One encoding serves table sums, the chain of groups, the compaction proof and the tests, on server, device and in
Parquet. All integers are big-endian; a *text* is a 32 bit length in bytes and then UTF-8.

* value: one byte of tag, then the content. ``00`` NULL; ``01`` boolean, one byte; ``02`` integer, 8 bytes; ``03``
  double, the 8 bytes of IEEE 754, every NaN as ``7ff8000000000000``; ``04`` string, text; ``05`` bytes, 32 bit length
  and content; ``06`` decimal, text; ``07`` timestamp, ``08`` date, ``09`` time, 8 bytes each; ``0a`` JSON, text; ``0b``
  UUID, text; ``0c`` array, 32 bit count and the elements as values; ``0d`` literal, text.
* row: the table's name as text; 32 bit count of key columns and their values in the key's order; then every column in
  the order of the UTF-8 bytes of its name: the name as text, and the value.
* row hash: BLAKE2b of the row with a digest of 16 bytes, read as a number.
* effect: one byte with the number of its type (``anabranch.v1.EffectType``), then a row that has only the given columns
  (the key's always); its hash is made like a row's. A proof compares sums of these.
* table sum: number of rows, and the sum of the row hashes modulo 2**128. A sum, not an exclusive or, so that a pair
  of equal rows does not vanish.

``tests/unit/canonical_vectors.json`` holds examples for other languages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b

from anabranch.schema.cells import Cell, Literal
from anabranch.schema.table import Kind, Table

SUM_MODULUS = 1 << 128
_pack_u32 = struct.Struct(">I").pack
_pack_i64 = struct.Struct(">bq").pack
_pack_f64 = struct.Struct(">bd").pack
_NAN = b"\x03\x7f\xf8\x00\x00\x00\x00\x00\x00"

Encoder = Callable[[Cell], bytes]


def _text(tag: int) -> Encoder:
    pack = struct.Struct(">BI").pack

    def encode(cell: Cell) -> bytes:
        if cell is None:
            return b"\x00"
        raw = cell.encode()  # type: ignore[union-attr]
        return pack(tag, len(raw)) + raw

    return encode


_literal = _text(0x0D)


def _integer(tag: int) -> Encoder:
    def encode(cell: Cell) -> bytes:
        if cell is None:
            return b"\x00"
        if type(cell) is Literal:
            return _literal(cell)
        return _pack_i64(tag, cell)

    return encode


def _bool(cell: Cell) -> bytes:
    if cell is None:
        return b"\x00"
    return b"\x01\x01" if cell else b"\x01\x00"


def _double(cell: Cell) -> bytes:
    if cell is None:
        return b"\x00"
    return _NAN if cell != cell else _pack_f64(3, cell)


def _bytes(cell: Cell) -> bytes:
    if cell is None:
        return b"\x00"
    return b"\x05" + _pack_u32(len(cell)) + cell  # type: ignore[arg-type,operator]


_SCALARS: dict[Kind, Encoder] = {
    Kind.BOOL: _bool,
    Kind.INT64: _integer(2),
    Kind.DOUBLE: _double,
    Kind.STRING: _text(4),
    Kind.BYTES: _bytes,
    Kind.DECIMAL: _text(6),
    Kind.TIMESTAMP: _integer(7),
    Kind.DATE: _integer(8),
    Kind.TIME: _integer(9),
    Kind.JSON: _text(0x0A),
    Kind.UUID: _text(0x0B),
    Kind.LITERAL: _literal,
}


def _array(element: Encoder) -> Encoder:
    def encode(cell: Cell) -> bytes:
        if cell is None:
            return b"\x00"
        if type(cell) is Literal:
            return _literal(cell)
        parts = [encode(c) if type(c) is tuple else element(c) for c in cell]  # type: ignore[union-attr]
        return b"\x0c" + _pack_u32(len(parts)) + b"".join(parts)

    return encode


def value_encoder(kind: Kind, element_kind: Kind | None = None) -> Encoder:
    """The function that encodes cells of ``kind`` (of an array: with elements of ``element_kind``)."""
    if kind is Kind.ARRAY:
        return _array(_SCALARS[element_kind or Kind.STRING])
    return _SCALARS[kind]


def _name(name: str) -> bytes:
    raw = name.encode()
    return _pack_u32(len(raw)) + raw


class RowEncoder:
    """Encodes and hashes rows of one table. Rows are sequences of cells in the order of ``table.columns``."""

    __slots__ = ("_columns", "_head", "_key", "_names")

    def __init__(self, table: Table) -> None:
        self._names = table.column_names
        encoders = [value_encoder(c.kind, c.element_kind) for c in table.columns]
        self._head = _name(table.name) + _pack_u32(len(table.key_columns))
        self._key = [(i, encoders[i]) for i in table.key_index]
        ordered = sorted(range(len(table.columns)), key=lambda i: table.columns[i].name.encode())
        self._columns = [(_name(table.columns[i].name), i, encoders[i]) for i in ordered]

    def encode(self, row: Sequence[Cell]) -> bytes:
        """The canonical bytes of ``row``."""
        parts = [self._head]
        for i, enc in self._key:
            parts.append(enc(row[i]))
        for name, i, enc in self._columns:
            parts.append(name)
            parts.append(enc(row[i]))
        return b"".join(parts)

    def hash(self, row: Sequence[Cell]) -> int:
        """The row hash of ``row``: a number below 2**128."""
        return int.from_bytes(blake2b(self.encode(row), digest_size=16).digest(), "big")

    def effect_hash(self, effect_type: int, row: Sequence[Cell], given: Collection[str] | None = None) -> bytes:
        """The hash, 16 bytes, of an effect of ``effect_type`` that gives the columns ``given`` (None: all) of ``row``."""
        parts = [effect_type.to_bytes(1, "big"), self._head]
        for i, enc in self._key:
            parts.append(enc(row[i]))
        for name, i, enc in self._columns:
            if given is None or self._names[i] in given:
                parts.append(name)
                parts.append(enc(row[i]))
        return blake2b(b"".join(parts), digest_size=16).digest()


def table_sum(encoder: RowEncoder, rows: Iterable[Sequence[Cell]]) -> tuple[int, int]:
    """Count and hash sum of ``rows``."""
    count = total = 0
    for row in rows:
        count += 1
        total += encoder.hash(row)
    return count, total % SUM_MODULUS
