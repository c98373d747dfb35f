"""Effects: serialized ``anabranch.v1.Effect`` messages, their hashes, and their changes of a table's sum.

The messages are built by hand, as are the values in them (see ``value_bytes``), with the fields in the order of their
numbers, as in protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from anabranch.v1 import change_pb2
from anabranch.values import Cell, Kind, Table
from anabranch.values.effect_hashes import EffectEncoder
from anabranch.values.message_bytes import LENGTH_DELIMITED, delimited, field_number, value_writer, varint

INSERT, UPDATE, DELETE, NONE = (
    int(change_pb2.EFFECT_TYPE_INSERT),
    int(change_pb2.EFFECT_TYPE_UPDATE),
    int(change_pb2.EFFECT_TYPE_DELETE),
    int(change_pb2.EFFECT_TYPE_NONE),
)


class Effect(NamedTuple):
    """``type``: an ``anabranch.v1.EffectType``. ``data``: the serialized Effect. ``changed``: the changed columns of an
    update. ``hash``: 16 bytes. ``count_change`` and ``hash_change``: the additions to the table sum's count and, modulo
    2**128, to its hash."""

    type: int
    data: bytes
    changed: tuple[str, ...]
    hash: bytes
    count_change: int
    hash_change: int


_Shape = tuple[bytes, tuple[int, ...], tuple[int, ...], tuple[str, ...]]
"""For a set of changed columns: the head of an UPDATE with their titles; the places of the columns given, in its order
and in the canonical one; the changed columns' names."""
_SHAPES = 1024


class EffectParts:
    """Builds parts of the effects of one table."""

    def __init__(self, table: Table) -> None:
        values = self._tag = varint(field_number(change_pb2.Effect, "values") << 3 | LENGTH_DELIMITED)
        columns = field_number(change_pb2.Effect, "columns")
        self.table = table
        self._encoder = EffectEncoder(table)
        self._key = table.key_index
        rest = [i for i in range(len(table.columns)) if i not in self._key]
        self._rest = tuple(rest)
        # The order of an effect's columns: the key's first.
        order = (*self._key, *rest)
        self._ordered: Callable[[Sequence[Any]], Sequence[Any]] = (
            tuple if order == tuple(range(len(order))) else itemgetter(*order)
        )
        self._writers = [value_writer(c.kind, c.element_kind, values) for c in table.columns]
        self._ordered_writers = self._ordered(self._writers)
        self._title = [delimited(columns, c.name.encode()) for c in table.columns]
        self._names = table.column_names
        # Columns whose cells may be equal in Python and different in Postgres (-0.0), or unequal and the same (NaN).
        self._compare = [c.kind in (Kind.DOUBLE, Kind.ARRAY) for c in table.columns]
        self._unequal = [i for i, compare in enumerate(self._compare) if compare]
        name = delimited(field_number(change_pb2.Effect, "table"), table.name.encode())
        type_tag = varint(field_number(change_pb2.Effect, "type") << 3)
        key_titles = b"".join([self._title[i] for i in self._key])
        self._head = {t: name + type_tag + varint(t) + key_titles for t in (INSERT, UPDATE, DELETE, NONE)}
        self._key_places = self._encoder.places(())
        self._shape = lru_cache(maxsize=_SHAPES)(self._make_shape)
        self._head[INSERT] += b"".join([self._title[i] for i in rest])

    def _make_shape(self, changed: tuple[int, ...]) -> _Shape:
        head = self._head[UPDATE] + b"".join([self._title[i] for i in changed])
        names = tuple([self._names[i] for i in changed])
        return head, (*self._key, *changed), self._encoder.places(changed), names

    def none(self, key: Sequence[Cell]) -> Effect:
        """The effect of a batch that left the row of ``key`` (cells in its order) unchanged; it may not exist."""
        fields = [b""] * len(self._writers)
        parts = [self._head[NONE]]
        for i, cell in zip(self._key, key, strict=True):
            fields[i] = self._encoder.encoders[i](cell)
            parts.append(self._writers[i](cell))
        digest = self._encoder.effect_hash_fields(NONE, fields, self._key_places)
        return Effect(NONE, b"".join(parts), (), digest, 0, 0)


class EffectBuilder(EffectParts):
    """Builds the effects of one table from rows: cells in the order of ``table.columns``."""

    def differ(self, row: Sequence[Cell], other: Sequence[Cell]) -> bool:
        """Whether two rows that are equal in Python are not the same: -0.0 is not 0.0."""
        for i in self._unequal:
            cell = row[i]
            # Only a zero has a sign that does not show; an array may hold one.
            if (cell == 0.0 or type(cell) is tuple) and repr(cell) != repr(other[i]):
                return True
        return False

    def insert(self, row: Sequence[Cell]) -> Effect:
        """The effect of inserting ``row``."""
        fields = self._encoder.fields(row)
        # "strict" costs a fifth of it all here; the fields were made from the same row.
        values = [write(cell) for write, cell in zip(self._ordered_writers, self._ordered(row))]  # noqa: B905
        data = self._head[INSERT] + b"".join(values)
        return Effect(INSERT, data, (), *self._encoder.insert_hashes(INSERT, fields))

    def row_hash(self, row: Sequence[Cell]) -> int:
        """The hash that ``row`` adds to a sum."""
        return self._encoder.hash_fields(self._encoder.fields(row))

    def whole_update(self, before: Sequence[Cell], after: Sequence[Cell]) -> Effect:
        """As ``update``, with all columns beside the key named as changed; the two differ. A reader that lacks the row
        has the whole of it."""
        encoder = self._encoder
        old, new = encoder.fields(before), encoder.fields(after)
        head, columns, places, names = self._shape(self._rest)
        data = head + b"".join([self._writers[i](after[i]) for i in columns])
        digest = encoder.effect_hash_fields(UPDATE, new, places)
        return Effect(UPDATE, data, names, digest, 0, encoder.hash_fields(new) - encoder.hash_fields(old))

    def update(self, before: Sequence[Cell], after: Sequence[Cell]) -> Effect:
        """The effect of changing ``before`` to ``after``, with the same key; NONE where nothing differs."""
        encoder, encoders, compare = self._encoder, self._encoder.encoders, self._compare
        old = encoder.fields(before)
        new = old.copy()
        changed = []
        for i, cell in enumerate(after):
            if before[i] != cell or compare[i]:
                field = encoders[i](cell)
                if field != old[i]:
                    new[i] = field
                    changed.append(i)
        if not changed:
            return self.none([before[i] for i in self._key])
        writers = self._writers
        head, columns, places, names = self._shape(tuple(changed))
        return Effect(
            UPDATE,
            head + b"".join([writers[i](after[i]) for i in columns]),
            names,
            encoder.effect_hash_fields(UPDATE, new, places),
            0,
            encoder.hash_fields(new) - encoder.hash_fields(old),
        )

    def delete(self, before: Sequence[Cell]) -> Effect:
        """The effect of deleting ``before``."""
        fields = self._encoder.fields(before)
        data = self._head[DELETE] + b"".join([self._writers[i](before[i]) for i in self._key])
        digest = self._encoder.effect_hash_fields(DELETE, fields, self._key_places)
        return Effect(DELETE, data, (), digest, -1, -self._encoder.hash_fields(fields))
