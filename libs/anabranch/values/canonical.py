"""The canonical encoding of a row and its hash.

One encoding serves table sums, the chain of groups, the compaction proof and the tests, on server, device and in
Parquet. All integers are big-endian; a *text* is a 32 bit length in bytes and then UTF-8.

* value: one byte of tag, then the content. ``00`` NULL; ``01`` boolean, one byte; ``02`` integer, 8 bytes; ``03``
  double, the 8 bytes of IEEE 754, every NaN as ``7ff8000000000000``; ``04`` string, text; ``05`` bytes, 32 bit length
  and content; ``06`` decimal, text; ``07`` timestamp, ``08`` date, ``09`` time, 8 bytes each; ``0a`` JSON, text; ``0b``
  UUID, text; ``0c`` array, 32 bit count and the elements as values; ``0d`` literal, text.
* field: a column's name as text, and the value. The name is the column's identity, that of the table is its, too:
  neither changes with a rename.
* row: the table's name as text; 32 bit count of key columns and their values in the key's order; then the fields of all
  columns in the order of the UTF-8 bytes of their names. The field of a column that was added to the table is *left
  out* where the value's encoding is that of the column's initial value, NULL or a constant: so the rows that were there
  before the column keep their encoding. The fields of the key's columns are never left out.
* row hash: BLAKE2b of the row with a digest of 16 bytes, read as a number.
* key hash: BLAKE2b, 16 bytes, of a row's encoding up to the end of its key. Key ranges are cut by it (``ranges``),
  because it is the same wherever a row is held, as no database's order of keys is.
* effect: one byte with the number of its type (``anabranch.v1.EffectType``), then a row that has only the given columns
  (the key's always); its hash is made like a row's. An INSERT leaves out what a row does; any other effect has the
  fields of all columns that it gives. A proof compares sums of these.
* table sum: number of rows, and the sum of the row hashes modulo 2**128. A sum, not an exclusive or, so that a pair
  of equal rows does not vanish.

``tests/unit/canonical_vectors.json`` holds examples for other languages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import islice
from operator import itemgetter
from typing import Any

from anabranch.values.cells import Cell, Literal
from anabranch.values.kinds import ByKind, Kind, NoFormError
from anabranch.values.table import Table

SUM_MODULUS = 1 << 128
_DIGEST_BYTES = 16
_SHORT = 256
"""Heads of lengths below this are made in advance."""
_AT_ONCE = 1_000
"""So many rows are encoded together."""
pack_u32 = struct.Struct(">I").pack
# Copying a prepared state costs less than making one.
new_hash = blake2b(digest_size=_DIGEST_BYTES).copy

Encoder = Callable[[Any], bytes]
"""Converts a cell to its encoding. The encoders of a RowEncoder's columns put the column's name before it."""


@lru_cache(maxsize=4096)
def _text(tag: int, prefix: bytes) -> Encoder:
    # Kept: a table is compiled anew whenever its description changes, mostly with the columns that it had.
    null = prefix + b"\x00"
    head = prefix + bytes((tag,))
    heads = tuple(head + pack_u32(n) for n in range(_SHORT))

    def encode(cell: str | None) -> bytes:
        if cell is None:
            return null
        raw = cell.encode()
        size = len(raw)
        return heads[size] + raw if size < _SHORT else head + pack_u32(size) + raw

    return encode


def _integer(tag: int, prefix: bytes) -> Encoder:
    null = prefix + b"\x00"
    head = prefix + bytes((tag,))
    pack = struct.Struct(f">{len(head)}sq").pack
    literal = _text(0x0D, prefix)

    def encode(cell: int | Literal | None) -> bytes:
        if cell is None:
            return null
        if type(cell) is Literal:
            return literal(cell)
        return pack(head, cell)

    return encode


def _bool(prefix: bytes) -> Encoder:
    encoded = {None: prefix + b"\x00", False: prefix + b"\x01\x00", True: prefix + b"\x01\x01"}
    return encoded.__getitem__


def _double(prefix: bytes) -> Encoder:
    null = prefix + b"\x00"
    head = prefix + b"\x03"
    nan = head + b"\x7f\xf8\x00\x00\x00\x00\x00\x00"
    pack = struct.Struct(f">{len(head)}sd").pack

    def encode(cell: float | None) -> bytes:
        if cell is None:
            return null
        return pack(head, cell) if cell == cell else nan

    return encode


def _bytes(prefix: bytes) -> Encoder:
    null = prefix + b"\x00"
    head = prefix + b"\x05"

    def encode(cell: bytes | None) -> bytes:
        return null if cell is None else head + pack_u32(len(cell)) + cell

    return encode


def _array(element: Encoder, prefix: bytes) -> Encoder:
    literal = _text(0x0D, b"")

    def value(cell: tuple[Any, ...] | str | None) -> bytes:
        if cell is None:
            return b"\x00"
        if type(cell) is Literal:
            return literal(cell)
        parts = [value(c) if type(c) is tuple else element(c) for c in cell]
        return b"\x0c" + pack_u32(len(parts)) + b"".join(parts)

    return lambda cell: prefix + value(cell)


TEXT_TAGS = ByKind(
    __name__, {Kind.STRING: 0x04, Kind.DECIMAL: 0x06, Kind.JSON: 0x0A, Kind.UUID: 0x0B, Kind.LITERAL: 0x0D}
)
INTEGER_TAGS = {Kind.INT64: 0x02, Kind.TIMESTAMP: 0x07, Kind.DATE: 0x08, Kind.TIME: 0x09}


def value_encoder(kind: Kind, element_kind: Kind | None = None, prefix: bytes = b"") -> Encoder:
    """The function that encodes cells of ``kind`` (of an array: with elements of ``element_kind``), each after
    ``prefix``."""
    if kind in TEXT_TAGS:
        return _text(TEXT_TAGS[kind], prefix)
    if kind in INTEGER_TAGS:
        return _integer(INTEGER_TAGS[kind], prefix)
    match kind:
        case Kind.BOOL:
            return _bool(prefix)
        case Kind.DOUBLE:
            return _double(prefix)
        case Kind.BYTES:
            return _bytes(prefix)
        case Kind.ARRAY:
            return _array(value_encoder(element_kind or Kind.STRING), prefix)
    raise NoFormError(kind, __name__)


def name_bytes(name: str) -> bytes:
    """A name as text."""
    raw = name.encode()
    return pack_u32(len(raw)) + raw


def digest_of(encoded: bytes) -> bytes:
    """The hash of an encoding, 16 bytes."""
    state = new_hash()
    state.update(encoded)
    return state.digest()


def _row_order(order: Sequence[int], initial: Mapping[int, bytes]) -> Callable[[Sequence[bytes]], Sequence[bytes]]:
    """The function that puts a row's fields in the places' ``order``, without those that are ``initial``."""
    ordered: Callable[[Sequence[bytes]], Sequence[bytes]] = itemgetter(*order) if len(order) > 1 else tuple
    if not initial:
        return ordered
    left_out = tuple(initial.get(i) for i in order)
    return lambda fields: [field for field, one in zip(ordered(fields), left_out, strict=True) if field != one]


class RowEncoder:
    """Encodes and hashes rows of one table. Rows are sequences of cells in the order of ``table.columns``.

    ``fields(row)`` has a row's fields in the order of the columns, with those that a row leaves out.
    """

    __slots__ = ("_encoders", "_head", "_initial", "_key", "_new", "_ordered", "_rank")

    def __init__(self, table: Table) -> None:
        names = [name_bytes(column.name) for column in table.columns]
        self._encoders = [
            value_encoder(c.kind, c.element_kind, name) for c, name in zip(table.columns, names, strict=True)
        ]
        self._head = name_bytes(table.name) + pack_u32(len(table.key_columns))
        self._new = blake2b(self._head, digest_size=_DIGEST_BYTES).copy
        # The place at which a key's value begins in its field.
        self._key = [(i, len(names[i])) for i in table.key_index]
        order = sorted(range(len(names)), key=lambda i: table.columns[i].name.encode())
        # Of a column with an initial value: the field that a row leaves out.
        self._initial = {
            i: self._encoders[i](column.initial[0])
            for i, column in enumerate(table.columns)
            if column.initial and i not in table.key_index
        }
        self._ordered = _row_order(order, self._initial)
        self._rank = {i: rank for rank, i in enumerate(order)}

    @property
    def encoders(self) -> Sequence[Encoder]:
        """The functions that make the field of each column."""
        return self._encoders

    def fields(self, row: Sequence[Cell]) -> list[bytes]:
        """The fields of ``row``."""
        # "strict" costs a fifth of the whole time here; a row that is too short fails where its fields are joined.
        return [encode(cell) for encode, cell in zip(self._encoders, row)]  # noqa: B905

    def encode_fields(self, fields: Sequence[bytes]) -> bytes:
        """The canonical bytes of a row, from its fields."""
        head = self._head
        for i, start in self._key:
            head += fields[i][start:]
        return head + b"".join(self._ordered(fields))

    def encode(self, row: Sequence[Cell]) -> bytes:
        """The canonical bytes of ``row``."""
        return self.encode_fields(self.fields(row))

    def hash(self, row: Sequence[Cell]) -> int:
        """The row hash of ``row``: a number below 2**128."""
        return int.from_bytes(digest_of(self.encode_fields(self.fields(row))), "big")

    def row_hashes(self, rows: Sequence[Sequence[Cell]]) -> list[int]:
        """The row hashes of ``rows``, which are encoded column by column, in half the time."""
        fields = [list(map(encode, column)) for encode, column in zip(self._encoders, zip(*rows, strict=True))]  # noqa: B905
        if not fields:
            return []
        keys = [[field[start:] for field in fields[i]] for i, start in self._key]
        for i, initial in self._initial.items():
            fields[i] = [b"" if field == initial else field for field in fields[i]]
        hashes, new, join, number = list[int](), self._new, b"".join, int.from_bytes
        for parts in zip(*keys, *[fields[i] for i in self._rank], strict=True):
            state = new()
            state.update(join(parts))
            hashes.append(number(state.digest(), "big"))
        return hashes

    def key_hash(self, row: Sequence[Cell]) -> bytes:
        """The key hash of ``row``, of which only the key's cells are looked at."""
        encoders = self._encoders
        return digest_of(self._head + b"".join([encoders[i](row[i])[start:] for i, start in self._key]))

    def hashes(self, row: Sequence[Cell]) -> tuple[bytes, int]:
        """The key hash and the row hash of ``row``."""
        fields = self.fields(row)
        key = self._head
        for i, start in self._key:
            key += fields[i][start:]
        return digest_of(key), int.from_bytes(digest_of(key + b"".join(self._ordered(fields))), "big")


def table_sum(encoder: RowEncoder, rows: Iterable[Sequence[Cell]]) -> tuple[int, int]:
    """Count and hash sum of ``rows``."""
    count, total, left = 0, 0, iter(rows)
    while chunk := list(islice(left, _AT_ONCE)):
        count += len(chunk)
        total += sum(encoder.row_hashes(chunk))
    return count, total % SUM_MODULUS
