"""The sums of a proof: hashes of effects and of rows, computed anew from the cells of files.

Columns come as lists of cells, in the table's order. Sums are modulo 2**128, and so may be added in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anabranch.values import Cell, Table
from anabranch.values.canonical import SUM_MODULUS, RowEncoder


@dataclass(frozen=True, slots=True)
class Sum:
    """A number of hashes and their sum modulo 2**128."""

    count: int = 0
    total: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.count + other.count, (self.total + other.total) % SUM_MODULUS)

    def __sub__(self, other: Sum) -> Sum:
        return Sum(self.count - other.count, (self.total - other.total) % SUM_MODULUS)

    def to_bytes(self) -> bytes:
        """The sum alone, as ``anabranch.table_sums`` keeps it: 16 bytes, big-endian."""
        return self.total.to_bytes(16, "big")


INSERT, UPDATE = 1, 2
"""Numbers of ``anabranch.v1.EffectType``; all others give the key alone."""


class Prover:
    """Adds up hashes for one table."""

    def __init__(self, table: Table) -> None:
        self._encoder = RowEncoder(table)
        self._index = table.index
        self._width = len(table.columns)

    def rows(self, columns: Sequence[Sequence[Cell]]) -> Sum:
        """The sum of row hashes."""
        encoder = self._encoder
        fields = [list(map(encode, cells)) for encode, cells in zip(encoder.encoders, columns, strict=True)]
        hashes = [encoder.hash_fields(row) for row in zip(*fields, strict=True)]
        return Sum(len(hashes), sum(hashes) % SUM_MODULUS)

    def effects(self, types: Sequence[int], changed: Sequence[Sequence[str]], columns: Sequence[Sequence[Cell]]) -> Sum:
        """The sum of effect hashes. ``changed``: the names of the columns that an update changed.

        Raises:
            KeyError: a changed column is none of the table's.
        """
        shapes: dict[tuple[int, tuple[str, ...]], list[int]] = {}
        for i, kind in enumerate(types):
            shapes.setdefault((kind, tuple(changed[i]) if kind == UPDATE else ()), []).append(i)
        total = 0
        for (kind, names), places in shapes.items():
            total += self._shape(kind, names, [[cells[i] for i in places] for cells in columns])
        return Sum(len(types), total % SUM_MODULUS)

    def _shape(self, kind: int, names: Iterable[str], columns: Sequence[Sequence[Cell]]) -> int:
        encoder = self._encoder
        given = range(self._width) if kind == INSERT else [self._index[name] for name in names]
        places = encoder.places(given)
        fields: list[Sequence[bytes]] = [()] * self._width
        for i in places:
            fields[i] = list(map(encoder.encoders[i], columns[i]))
        total = 0
        row: list[bytes] = [b""] * self._width
        for at in range(len(columns[0])):
            for i in places:
                row[i] = fields[i][at]
            total += int.from_bytes(encoder.effect_hash_fields(kind, row, places), "big")
        return total
