"""Values of many megabytes, held in the pieces in which they came: joining them would hold a value twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

_COMPARED_BYTES = 4 * 2**20


class Pieces:
    """Bytes end to end. A slice of them is bytes, and a copy; ``parts`` are no copies. As a cell, bytes."""

    __slots__ = ("_size", "parts")

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.parts = tuple(parts)
        self._size = sum(map(len, self.parts))

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, wanted: slice) -> bytes:
        start, stop, step = wanted.indices(self._size)
        if step != 1:
            raise ValueError("pieces are cut into slices without steps")
        cut = []
        at = 0
        for part in self.parts:
            if start < at + len(part) and at < stop:
                cut.append(part[max(start - at, 0) : stop - at])
            at += len(part)
        return b"".join(cut)

    def __radd__(self, head: bytes) -> bytes:
        return b"".join((head, *self.parts))

    def __bytes__(self) -> bytes:
        return b"".join(self.parts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Pieces | bytes):
            return NotImplemented
        if len(self) != len(other):
            return False
        places = [*range(0, len(self), _COMPARED_BYTES), len(self)]
        return all(self[start:stop] == other[start:stop] for start, stop in pairwise(places))

    def __hash__(self) -> int:
        return hash(bytes(self))


class LargeText(Pieces):
    """A text that is held as its UTF-8 bytes, since a ``str`` of it may be four times as large."""

    __slots__ = ()

    def encode(self) -> bytes:
        """Encode as a ``str`` does."""
        return bytes(self)

    def __str__(self) -> str:
        return bytes(self).decode()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other.encode() if isinstance(other, str) else other)

    def __hash__(self) -> int:
        return hash(str(self))


def whole(row: Sequence[Any]) -> list[Any]:
    """A row with its values in one piece, for callers that can't handle pieces."""
    return [
        str(cell) if isinstance(cell, LargeText) else bytes(cell) if isinstance(cell, Pieces) else cell for cell in row
    ]
