"""The shapes by which images of captured changes are read that wait."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from anabranch.store.ddl.shapes import Shape

Connection = psycopg.Connection[Any]

_CURRENT: LiteralString = "select id, shape from anabranch.synced_tables where database_id = %s and shape is not null"
_OLDER: LiteralString = """
select s.table_id, s.before_id, s.shape
from anabranch.captured_shapes s join anabranch.synced_tables t on t.id = s.table_id
where t.database_id = %s order by s.table_id, s.before_id
"""


@dataclass(frozen=True)
class ImageShapes:
    """By a table's number, its shape as registered; and of tables that were altered, the numbers before which images
    have an older shape, with these."""

    current: Mapping[int, Shape]
    older: Mapping[int, tuple[Sequence[int], Sequence[Shape]]]

    def of(self, table_id: int, captured_id: int) -> Shape | None:
        """The shape of the images of one captured change; None where the table has none on record."""
        if table_id in self.older:
            before, shapes = self.older[table_id]
            place = bisect_right(before, captured_id)
            if place < len(before):
                return shapes[place]
        return self.current.get(table_id)


def image_shapes(conn: Connection, database_id: int) -> ImageShapes:
    """The shapes of a database's tables. Raises psycopg.Error."""
    current = {number: Shape.from_json(kept) for number, kept in conn.execute(_CURRENT, (database_id,)).fetchall()}
    older: dict[int, tuple[list[int], list[Shape]]] = {}
    for number, before, kept in conn.execute(_OLDER, (database_id,)).fetchall():
        befores, shapes = older.setdefault(number, ([], []))
        befores.append(before)
        shapes.append(Shape.from_json(kept))
    return ImageShapes(current, older)
