"""Captured rows of many megabytes, read in slices and held in them, so that memory holds little more than the row
itself.

A captured row is as ``record_send`` made it (``capture.rows``). Where it is large, its long texts and bytes are taken
out: the remaining image has their digests in their places, and compares equal where the row does; the values are beside
it, each once, as they came. They need no decoding: Postgres sends a text, a ``json`` and a ``jsonb`` as they are
printed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import sha256

from anabranch.store.inbox.claim import renew
from anabranch.store.session.binary import Connection, run
from anabranch.values.pieces import LargeText, Pieces
from anabranch.values.postgres_binary import int8

LARGE_BYTES = 16 * 2**20
"""An image with more bytes is read in slices."""
CARRIED_BYTES = 256 * 2**20
"""An image with more bytes is not carried at all."""
_SLICE_BYTES = 4 * 2**20
_LONG_BYTES = 2**20
_BYTEA, _JSONB = 17, 3802
_PLAIN = frozenset({25, 1043, 114, _BYTEA, _JSONB})
"""text, varchar, json, bytea, jsonb: types whose values need no reading. A domain has a number of its own."""

_count_of = struct.Struct(">i").unpack_from
_field_of = struct.Struct(">Ii").unpack_from
_field = struct.Struct(">Ii").pack
_NULL = -1

_SLICES = {
    which: f"""
select substring({which} from $3::int8::int for $4::int8::int) from anabranch.captured
where database_id = $1::int8::int and id = $2::int8
""".encode()
    for which in ("old", "new")
}


class LargeImage(bytes):
    """An image without its long values; they are in ``long``, by the number of their column."""

    long: dict[int, Pieces]

    def without(self) -> bytes:
        """The image with NULL in place of its long values."""
        parts = [self[:4]]
        at = 4
        (count,) = _count_of(self)
        for place in range(count):
            oid, size = _field_of(self, at)
            at += 8
            if place in self.long:
                parts.append(_field(oid, _NULL))
            else:
                parts.append(_field(oid, size) + self[at : at + max(size, 0)])
            at += max(size, 0)
        return b"".join(parts)

    def cell(self, place: int, *, is_text: bool) -> Pieces:
        """A long value as a cell."""
        value = self.long[place]
        return LargeText(value.parts) if is_text else value


def image_size(image: bytes) -> int:
    """How many bytes an image holds."""
    return len(image) + (sum(map(len, image.long.values())) if isinstance(image, LargeImage) else 0)


def read_image(conn: Connection, database_id: int, number: int, which: str, size: int) -> LargeImage:
    """The image ``which`` ("old" or "new") of a captured change; ``size``: its bytes."""
    source = _Source(_slices(conn, database_id, number, which, size))
    head = source.take(4)
    (count,) = _count_of(head)
    parts = [head]
    long: dict[int, Pieces] = {}
    for place in range(count):
        field = source.take(8)
        oid, length = _field_of(field, 0)
        if length < _LONG_BYTES or oid not in _PLAIN:
            parts += [field, source.take(max(length, 0))]
            continue
        # The version of jsonb's binary form stands before its text.
        version = source.take(1 if oid == _JSONB else 0)
        value = long[place] = Pieces(source.take_pieces(length - len(version)))
        state = sha256(version)
        for piece in value.parts:
            state.update(piece)
        digest = state.digest()
        parts += [_field(oid, len(digest)), digest]
    image = LargeImage(b"".join(parts))
    image.long = long
    return image


def _slices(conn: Connection, database_id: int, number: int, which: str, size: int) -> Iterator[bytes]:
    for at in range(1, size + 1, _SLICE_BYTES):
        wanted = [int8(database_id), int8(number), int8(at), int8(_SLICE_BYTES)]
        [(piece,)] = run(conn, _SLICES[which], wanted).fetchall()
        renew(conn)
        yield piece


class _Source:
    """Bytes that come in slices, given out as they are asked for."""

    def __init__(self, slices: Iterator[bytes]) -> None:
        self._slices = slices
        self._left = b""

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        return b"".join(self.take_pieces(size))

    def take_pieces(self, size: int) -> Iterator[bytes]:
        """The next ``size`` bytes as they come; all are to be taken."""
        while size > len(self._left):
            piece, self._left = self._left, b""
            size -= len(piece)
            if piece:
                yield piece
                del piece
            self._left = next(self._slices)
        taken, self._left = self._left[:size], self._left[size:]
        yield taken
