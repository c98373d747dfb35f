"""Images of captured changes that are older than their tables are: read by the columns that these had, and brought to
the columns of today.

Columns are matched by their numbers, which are Postgres's own as long as the table is there. A column that is gone is
left out; one that was added since has its initial value in every older row. Of a column whose values the change of the
table has made others, without a change of any row, an older image says nothing: the caller reads those values from the
table, and here they are as if they had not been given (``unknown``).

Postgres reads the images by a temporary type of the columns that are wanted (``rows``): nobody needs the table for it,
nor the types of the other columns.

A type that is altered in itself needs no lock of a table, so that a session may go on for a moment with the type as it
was before. So its images are of either shape, have either label or either attributes, and mean the same row: their
values are brought to the type of today (``older_types``).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.store.capture.large_images import LargeImage
from anabranch.store.capture.older_types import Deep, StrangeValueError, added_types, brought
from anabranch.store.capture.rows import (
    UndecodableError,
    fields_of,
    image_of,
    put_back,
    read_images,
    stand_in,
)
from anabranch.store.cells.binary_cells import Row
from anabranch.store.ddl.following import renamed_labels, texts_differ
from anabranch.store.ddl.images import ImageShapes
from anabranch.store.ddl.shapes import ImageColumn, Shape, ShapeColumn, columns_of
from anabranch.store.session.binary import Connection
from anabranch.values import Cell, Column, Table

_OIDS = """
select coalesce(pg_catalog.to_regtype(t.name)::oid::int8, 0)
from unnest(%s::text[]) with ordinality as t (name, place) order by t.place
"""


@dataclass(frozen=True)
class OlderImages:
    """The shapes of the images that wait. ``unknown``: by a table's number, the columns of which older images say
    nothing."""

    shapes: ImageShapes
    unknown: Mapping[int, Collection[str]] = field(default_factory=dict)
    _labels: dict[int, Mapping[int, Mapping[str, str]]] = field(default_factory=dict)
    _altered: dict[int, bool] = field(default_factory=dict)

    def shape_of(self, table_id: int, captured_id: int) -> Shape | None:
        """The shape of the images of a captured change; None where it is the table's present one."""
        return self.shapes.of(table_id, captured_id) if self.era_of(table_id, captured_id) else None

    def is_silent(self, table_id: int, captured_id: int) -> bool:
        """Whether the images of a captured change say nothing of some column."""
        return bool(self.unknown.get(table_id)) and self.era_of(table_id, captured_id) > 0

    def labels_of(self, table_id: int) -> Mapping[int, Mapping[str, str]]:
        """By the number of a column of an enumeration, the labels that have another name since, with that."""
        if table_id not in self._labels:
            now = self.shapes.current.get(table_id)
            found: dict[int, dict[str, str]] = {}
            for shape in self.shapes.older.get(table_id, ((), ()))[1]:
                for column in shape.columns:
                    there = None if now is None else now.by_number.get(column.number)
                    if there is not None and (labels := renamed_labels(column.deep, there.deep)):
                        found.setdefault(column.number, {}).update(labels)
            self._labels[table_id] = found
        return self._labels[table_id]

    def has_older(self, table_id: int) -> bool:
        """Whether images of a table may come that are older than it is."""
        return table_id in self.shapes.older

    def may_be_older(self, table_id: int) -> bool:
        """Whether images of the present shape may have values of types as they were before."""
        if table_id not in self._altered:
            now = self.shapes.current.get(table_id)
            columns = () if now is None else now.columns
            self._altered[table_id] = any(len(self.types_of(table_id, c.number, now)) > 1 for c in columns)
        return self._altered[table_id]

    def types_of(self, table_id: int, number: int, shape: Shape | None) -> list[Deep]:
        """The makings of a column's type in images of a shape (None: the present one), and before, as long as
        it was the same type: each once, the latest first. None for a type that can't change."""
        _, shapes = self.shapes.older.get(table_id, ((), ()))
        now = self.shapes.current.get(table_id)
        last = next((place for place, one in enumerate(shapes) if one is shape), len(shapes))
        found: list[Deep] = []
        there = None if now is None else now.by_number.get(number)
        for one in reversed([*shapes, now][: last + 1]):
            column = None if one is None else one.by_number.get(number)
            if column is None or there is None or column.type_oid != there.type_oid:
                break
            if column.deep is not None and column.deep not in found:
                found.append(column.deep)
        return found

    def era_of(self, table_id: int, captured_id: int) -> int:
        """A number that the changes of a table have in common whose images are of one shape; 0 for the present one."""
        before, _ = self.shapes.older.get(table_id, ((), ()))
        return len(before) - bisect_right(before, captured_id)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A column of an image that is read. ``place``: its place there; ``into``: its place among the table's columns;
    ``column``: the column as it is read, under a name of its own. Its values are brought from what its type may have
    been made of (``were``) to what it is now, where that is given. ``oid``: the number of the type that reads them."""

    place: int
    into: int
    column: Column
    were: Sequence[Deep]
    now: Deep | None
    oid: int = 0


def key_places(table: Table, shape: Shape) -> tuple[int, ...]:
    """The places of the key's columns in images of that shape, in the key's order.

    Raises:
        UndecodableError: it lacks one.
    """
    there = {column.number: place for place, column in enumerate(columns_of(shape))}
    found = tuple([there.get(table.by_name[name].number, -1) for name in table.key_columns])
    if min(found) < 0:
        raise UndecodableError(table, "its key was another one when they were captured")
    return found


def decode_older(
    conn: Connection, table: Table, shape: Shape, images: Sequence[bytes], older: OlderImages
) -> list[Row]:
    """The rows of ``images``, which were captured while the table had ``shape``, as rows of the table as it is today.
    Must be called inside a transaction.

    Raises:
        UndecodableError: they can't be read. With an ``sqlstate`` the transaction has failed.
    """
    if not images:
        return []
    columns = columns_of(shape)
    wanted = _wanted(conn, table, columns, older, shape)
    oid_of = _added(conn, wanted)
    slim = [image.without() if isinstance(image, LargeImage) else image for image in images]
    parts = [_part(table, columns, wanted, oid_of, image) for image in slim]
    read = [one.column for one in wanted]
    with stand_in(conn, [(column.name, column.postgres_type) for column in read]) as (row_type, name):
        found = read_images(conn, table, read, row_type, name, parts)
    blank: list[Cell] = [column.initial[0] if column.initial else None for column in table.columns]
    rows: list[Row] = []
    for cells in found:
        row = blank.copy()
        for one, cell in zip(wanted, cells, strict=True):
            row[one.into] = cell
        rows.append(row)
    for number, labels in older.labels_of(table.id).items():
        for place in (one.into for one in wanted if table.columns[one.into].number == number):
            for row in rows:
                cell = row[place]
                row[place] = labels.get(cell, cell) if isinstance(cell, str) else cell
    into = {one.place: one.into for one in wanted}
    for row, image in zip(rows, images, strict=True):
        if isinstance(image, LargeImage):
            put_back(table, row, image, into)
    return rows


def _oids_of(conn: Connection, names: Sequence[str]) -> list[int]:
    """The numbers of types, by their names in SQL; 0 for one that is gone."""
    return [oid for (oid,) in conn.execute(_OIDS, (names,))] if names else []


def _wanted(
    conn: Connection, table: Table, columns: Sequence[ImageColumn], older: OlderImages, shape: Shape
) -> list[_Wanted]:
    unknown = older.unknown.get(table.id, ())
    into = {column.number: place for place, column in enumerate(table.columns) if column.name not in unknown}
    present = older.shapes.current.get(table.id)
    there = {} if present is None else present.by_number
    found = []
    for place, column in enumerate(columns):
        if column.number not in into:
            continue
        number, now = into[column.number], there.get(column.number)
        if column.textual and now is not None and texts_differ(column.deep, now.deep):
            raise UndecodableError(table, f'the type of column "{column.name}" was altered, and has no binary form')
        were = older.types_of(table.id, column.number, shape) if column.read_as == "" else []
        name = _bare(now) if were and now is not None else column.read_as or column.type
        read = replace(
            table.columns[number], name=f"c{place}", renamed="", postgres_type=name, base_type="", initial=()
        )
        found.append(_Wanted(place, number, read, were, now.deep if were and now is not None else None))
    oids = _oids_of(conn, [one.column.postgres_type for one in found])
    for one, oid in zip(found, oids, strict=True):
        if not oid:
            column = columns[one.place]
            raise UndecodableError(table, f'column "{column.name}" had type {column.type}, which is gone')
    return [replace(one, oid=oid) for one, oid in zip(found, oids, strict=True)]


def _bare(column: ShapeColumn) -> str:
    """The type of a column as SQL names it, without the domains over it, which might refuse an older value."""
    name, deep = column.type, column.deep
    while deep is not None and "domain" in deep:
        name, deep = deep["domain"], deep.get("of")
    return name


def _added(conn: Connection, wanted: Sequence[_Wanted]) -> Callable[[str], int]:
    """The numbers of the types that values are given which they had not."""
    names = sorted(set().union(*(added_types(one.were, one.now) for one in wanted if one.now is not None)))
    return dict(zip(names, _oids_of(conn, names), strict=True)).__getitem__


def _part(
    table: Table, columns: Sequence[ImageColumn], wanted: Sequence[_Wanted], oid_of: Callable[[str], int], image: bytes
) -> bytes:
    """The wanted columns of an image, with the oids of the types that read them."""
    fields = list(fields_of(image))
    if len(fields) != len(columns):
        text = f"an image has {len(fields)} columns, and the table had {len(columns)}"
        raise UndecodableError(table, text)
    parts = []
    for one in wanted:
        data = fields[one.place][1]
        if data is not None and one.now is not None:
            try:
                data = brought(data, one.were, one.now, oid_of)
            except (StrangeValueError, struct.error) as error:
                why = f'a value of column "{columns[one.place].name}" is of no type that it had: {error}'
                raise UndecodableError(table, why) from error
        parts.append((one.oid, data))
    return image_of(parts)
