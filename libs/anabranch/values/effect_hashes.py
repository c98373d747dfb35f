"""The hashes of effects, and of rows whose values are held in pieces: what only servers make.

A caller that needs a row's hash and an effect's as well, or the hashes of two rows that differ little, makes the fields
once (``RowEncoder.fields``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from anabranch.values.canonical import TEXT_TAGS, RowEncoder, digest_of, name_bytes, new_hash, pack_u32
from anabranch.values.cells import Cell
from anabranch.values.kinds import Kind
from anabranch.values.pieces import Pieces
from anabranch.values.table import Table

INSERT_TYPE = 1
"""``anabranch.v1.EFFECT_TYPE_INSERT``: the one type of effect that leaves out what a row does."""
_LARGE_TAGS = {**TEXT_TAGS, Kind.BYTES: 0x05}


class EffectEncoder(RowEncoder):
    """Encodes and hashes rows and effects of one table."""

    __slots__ = ("_columns", "_index")

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self._index = table.index
        self._columns = table.columns

    def hash_fields(self, fields: Sequence[bytes]) -> int:
        """The row hash, from the row's fields: a number below 2**128."""
        return int.from_bytes(digest_of(self.encode_fields(fields)), "big")

    def effect_hash(self, effect_type: int, row: Sequence[Cell], given: Collection[str] | None = None) -> bytes:
        """The hash, 16 bytes, of an effect of ``effect_type`` that gives the columns ``given`` (None: all) of ``row``;
        the key's always."""
        fields = self.fields(row)
        places = self.places(range(len(fields)) if given is None else (self._index[name] for name in given))
        if effect_type == INSERT_TYPE:
            places = tuple([i for i in places if fields[i] != self._initial.get(i)])
        return self.effect_hash_fields(effect_type, fields, places)

    def places(self, given: Iterable[int]) -> tuple[int, ...]:
        """The places of the columns ``given`` and of the key's, in the order in which an effect's encoding has them."""
        key = (i for i, _ in self._key)
        return tuple(sorted({*given, *key}, key=self._rank.__getitem__))

    def effect_hash_fields(self, effect_type: int, fields: Sequence[bytes], places: Iterable[int]) -> bytes:
        """``effect_hash`` from the fields of a row at ``places`` (as the method gives them), of which none is left
        out."""
        head = bytes((effect_type,)) + self._head
        for i, start in self._key:
            head += fields[i][start:]
        return digest_of(head + b"".join([fields[i] for i in places]))

    def large_hash(
        self, row: Sequence[Cell], places: Iterable[int] | None = None, effect_type: int | None = None
    ) -> bytes:
        """The row hash of ``row`` as bytes, or that of an effect with the columns at ``places`` (as the method gives
        them; None: all of an INSERT): one field is made after the other, and no field of a value in pieces is built, so
        that no row is held twice."""
        encoders, initial = self._encoders, self._initial if places is None else {}
        state = new_hash()
        state.update(b"" if effect_type is None else bytes((effect_type,)))
        state.update(self._head)
        for i, start in self._key:
            state.update(encoders[i](row[i])[start:])
        for i in self.places(range(len(encoders))) if places is None else places:
            cell = row[i]
            if i in initial and self._is_initial(i, cell):
                continue
            if isinstance(cell, Pieces):
                column = self._columns[i]
                state.update(name_bytes(column.name) + bytes((_LARGE_TAGS[column.kind],)) + pack_u32(len(cell)))
                for part in cell.parts:
                    state.update(part)
            else:
                state.update(encoders[i](cell))
        return state.digest()

    def _is_initial(self, place: int, cell: Any) -> bool:
        left_out = self._initial[place]
        if isinstance(cell, Pieces) and len(cell) > len(left_out):
            return False
        return self._encoders[place](cell) == left_out

    def insert_hashes(self, effect_type: int, fields: Sequence[bytes]) -> tuple[bytes, int, int]:
        """The hash of an INSERT, which gives a whole new row, and its additions to the table sum (1, and the row's
        hash)."""
        encoded = self.encode_fields(fields)
        row_hash = int.from_bytes(digest_of(encoded), "big")
        return digest_of(bytes((effect_type,)) + encoded), 1, row_hash
