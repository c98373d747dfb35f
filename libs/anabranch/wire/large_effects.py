"""Effects of rows of many megabytes: the same messages and hashes as ``effects`` makes, built column by column. An
effect is held in pieces, and its large values are the row's own pieces, so that none is held twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from anabranch.values import Cell, Table
from anabranch.values.message_bytes import large_head
from anabranch.values.pieces import Pieces
from anabranch.wire.effects import DELETE, INSERT, UPDATE, Effect, EffectParts


class LargeEffect(NamedTuple):
    """An ``Effect`` with ``data`` in pieces."""

    type: int
    data: Pieces
    changed: tuple[str, ...]
    hash: bytes
    count_change: int
    hash_change: int


class LargeEffectBuilder(EffectParts):
    """An ``EffectBuilder`` for a few large rows. ``heartbeat`` is called after each hash: the hash of one value of 200
    MB takes about a second."""

    def __init__(self, table: Table, heartbeat: Callable[[], None]) -> None:
        super().__init__(table)
        self._heartbeat = heartbeat

    def insert(self, row: Sequence[Cell]) -> LargeEffect:
        """The effect of inserting ``row``."""
        row_hash = self._row_hash(row)
        digest = self._hash(row, None, INSERT)
        places = self._ordered(range(len(row)))
        return LargeEffect(INSERT, self._pieces(self._head[INSERT], places, row), (), digest, 1, row_hash)

    def update(self, before: Sequence[Cell], after: Sequence[Cell]) -> Effect | LargeEffect:
        """The effect of changing ``before`` to ``after``, with the same key; NONE where nothing differs."""
        changed = tuple([i for i, cell in enumerate(after) if self._changed(i, before[i], cell)])
        if not changed:
            return self.none([before[i] for i in self._key])
        return self._update(before, after, changed)

    def _update(self, before: Sequence[Cell], after: Sequence[Cell], changed: tuple[int, ...]) -> LargeEffect:
        head, columns, places, names = self._shape(changed)
        change = self._row_hash(after) - self._row_hash(before)
        digest = self._hash(after, places, UPDATE)
        return LargeEffect(UPDATE, self._pieces(head, columns, after), names, digest, 0, change)

    def row_hash(self, row: Sequence[Cell]) -> int:
        """As ``EffectBuilder.row_hash``."""
        return self._row_hash(row)

    def whole_update(self, before: Sequence[Cell], after: Sequence[Cell]) -> LargeEffect:
        """As ``EffectBuilder.whole_update``."""
        return self._update(before, after, self._rest)

    def delete(self, before: Sequence[Cell]) -> LargeEffect:
        """The effect of deleting ``before``."""
        data = self._pieces(self._head[DELETE], self._key, before)
        digest = self._hash(before, self._key_places, DELETE)
        return LargeEffect(DELETE, data, (), digest, -1, -self._row_hash(before))

    def _pieces(self, head: bytes, places: Iterable[int], row: Sequence[Cell]) -> Pieces:
        """``head``, and the values of the columns at ``places``."""
        parts = [head]
        for i in places:
            cell: Any = row[i]
            if isinstance(cell, Pieces):
                parts += [large_head(self.table.columns[i].kind, self._tag)(len(cell)), *cell.parts]
            else:
                parts.append(self._writers[i](cell))
        return Pieces(parts)

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
