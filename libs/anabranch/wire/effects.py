"""Effects: serialized ``anabranch.v1.Effect`` messages, their hashes, and what they do to a table's sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from anabranch.schema.cells import Cell
from anabranch.schema.table import Table


class Effect(NamedTuple):
    """``type``: an ``anabranch.v1.EffectType``. ``data``: the serialized Effect. ``changed``: the changed columns of an
    update. ``hash``: 16 bytes. ``count`` and ``hash_change``: what to add to the table sum's count and, modulo 2**128, to
    its hash."""

    type: int
    data: bytes
    changed: tuple[str, ...]
    hash: bytes
    count: int
    hash_change: int


class EffectBuilder:
    """Builds the effects of one table from rows: cells in the order of ``table.columns``."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def insert(self, row: Sequence[Cell]) -> Effect:
        """``row`` is new."""
        raise NotImplementedError

    def update(self, before: Sequence[Cell], after: Sequence[Cell]) -> Effect:
        """``before`` became ``after``, with the same key. NONE where nothing differs."""
        raise NotImplementedError

    def delete(self, before: Sequence[Cell]) -> Effect:
        """``before`` is gone."""
        raise NotImplementedError

    def none(self, key: Sequence[Cell]) -> Effect:
        """A batch touched the row of ``key`` (cells in the key's order) and changed nothing; the row need not exist."""
        raise NotImplementedError
