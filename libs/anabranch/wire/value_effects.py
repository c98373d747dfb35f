"""Effects that tell values which a change of a table has given its columns, without a change of any row: after a column
was added that each row computes, or was retyped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from anabranch.values import Cell, Table
from anabranch.wire.effects import INSERT, UPDATE, Effect, EffectParts


class Told(NamedTuple):
    """A row's effect, None where there is nothing to tell, and the hash that the row adds to its table's sum."""

    effect: Effect | None
    row_hash: int


class ValueEffects(EffectParts):
    """Builds the effects of one table: UPDATEs of the columns ``told``, or with ``whole`` INSERTs of rows that nobody
    knows yet. A column that is new has its initial value wherever nothing else is told. The effects add nothing to a
    sum: it is that of all rows."""

    def __init__(self, table: Table, told: Collection[str], *, new: Collection[str] = (), whole: bool = False) -> None:
        super().__init__(table)
        encoders = self._encoder.encoders
        self._whole = whole
        self._told = [
            (i, encoders[i](column.initial[0]) if column.name in new and column.initial else None)
            for i, column in enumerate(table.columns)
            if column.name in told
        ]

    def of(self, row: Sequence[Cell]) -> Told:
        """The effect that tells of ``row``."""
        encoder = self._encoder
        fields = encoder.fields(row)
        row_hash = encoder.hash_fields(fields)
        if self._whole:
            values = [write(cell) for write, cell in zip(self._ordered_writers, self._ordered(row), strict=True)]
            digest = encoder.insert_hashes(INSERT, fields)[0]
            return Told(Effect(INSERT, self._head[INSERT] + b"".join(values), (), digest, 0, 0), row_hash)
        changed = tuple([i for i, known in self._told if fields[i] != known])
        if not changed:
            return Told(None, row_hash)
        head, columns, places, names = self._shape(changed)
        data = head + b"".join([self._writers[i](row[i]) for i in columns])
        digest = encoder.effect_hash_fields(UPDATE, fields, places)
        return Told(Effect(UPDATE, data, names, digest, 0, 0), row_hash)
