"""Effects of rows that have many megabytes: the same messages and hashes as ``effects`` makes, put together column by
column, so that beside the row and its effect no more than one value is held twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from anabranch.schema import Table
from anabranch.schema.cells import Cell
from anabranch.wire.effects import DELETE, INSERT, UPDATE, Effect, EffectBuilder


class LargeEffectBuilder(EffectBuilder):
    """As its base, for a few large rows. ``heartbeat`` is called after each hash: the hash of one value of 200 MB takes
    about a second."""

    def __init__(self, table: Table, heartbeat: Callable[[], None]) -> None:
        super().__init__(table)
        self._heartbeat = heartbeat

    def insert(self, row: Sequence[Cell]) -> Effect:
        """``row`` is new."""
        row_hash = self._row_hash(row)
        digest = self._hash(row, None, INSERT)
        return Effect(
            INSERT, _joined(self._head[INSERT], self._ordered_writers, self._ordered(row)), (), digest, 1, row_hash
        )

    def update(self, before: Sequence[Cell], after: Sequence[Cell]) -> Effect:
        """``before`` became ``after``, with the same key. NONE where nothing differs."""
        changed = tuple([i for i, cell in enumerate(after) if self._changed(i, before[i], cell)])
        if not changed:
            return self.none([before[i] for i in self._key])
        head, columns, places, names = self._shape(changed)
        change = self._row_hash(after) - self._row_hash(before)
        digest = self._hash(after, places, UPDATE)
        data = _joined(head, [self._writers[i] for i in columns], [after[i] for i in columns])
        return Effect(UPDATE, data, names, digest, 0, change)

    def delete(self, before: Sequence[Cell]) -> Effect:
        """``before`` is gone."""
        data = _joined(self._head[DELETE], [self._writers[i] for i in self._key], [before[i] for i in self._key])
        digest = self._hash(before, self._key_places, DELETE)
        return Effect(DELETE, data, (), digest, -1, -self._row_hash(before))

    def _row_hash(self, row: Sequence[Cell]) -> int:
        return int.from_bytes(self._hash(row), "big")

    def _hash(self, row: Sequence[Cell], places: Iterable[int] | None = None, effect_type: int | None = None) -> bytes:
        digest = self._encoder.large_hash(row, places, effect_type)
        self._heartbeat()
        return digest

    def _changed(self, place: int, before: Cell, after: Cell) -> bool:
        if self._compare[place]:
            encode = self._encoder.encoders[place]
            return encode(before) != encode(after)
        return before != after


def _joined(head: bytes, writers: Sequence[Callable[[Any], bytes]], cells: Sequence[Any]) -> bytes:
    data = bytearray(head)
    for write, cell in zip(writers, cells, strict=True):
        data += write(cell)
    return bytes(data)
