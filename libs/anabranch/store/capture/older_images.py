"""Images of captured changes that are older than their tables are: read by the columns that these had, and brought to
the columns of today.

Columns are matched by their numbers, which are Postgres's own as long as the table is there. A column that is gone is
left out; one that was added since has its initial value in every older row. Of a column whose values the change of the
table has made others, without a change of any row, an older image says nothing: the caller reads those values from the
table, and here they are as if they had not been given (``unknown``).

Postgres reads the images by a temporary type of the columns that are wanted (``rows``): nobody needs the table for it,
nor the types of the other columns.

A label that is renamed needs no lock of a table, so that a session may go on for a moment with the label of before. So
its images are of either shape, have either label, and mean the same row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from anabranch.store.capture.large_images import LargeImage
from anabranch.store.capture.rows import (
    UndecodableError,
    fields_of,
    image_of,
    put_back,
    read_images,
    stand_in,
)
from anabranch.store.cells.binary_cells import Row
from anabranch.store.ddl.following import renamed_labels
from anabranch.store.ddl.images import ImageShapes
from anabranch.store.ddl.shapes import ImageColumn, Shape, columns_of
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

    def era_of(self, table_id: int, captured_id: int) -> int:
        """A number that the changes of a table have in common whose images are of one shape; 0 for the present one."""
        before, _ = self.shapes.older.get(table_id, ((), ()))
        return len(before) - bisect_right(before, captured_id)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A column of an image that is read. ``place``: its place there; ``into``: its place among the table's columns;
    ``column``: the column as it is read, under a name of its own."""

    place: int
    into: int
    column: Column


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
    types = _types(conn, columns)
    wanted = list(_wanted(table, columns, types, older.unknown.get(table.id, ())))
    slim = [image.without() if isinstance(image, LargeImage) else image for image in images]
    parts = [_part(table, columns, wanted, types, image) for image in slim]
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


def _types(conn: Connection, columns: Sequence[ImageColumn]) -> list[tuple[str, int]]:
    """By column, the type that reads its values, and that type's oid: 0 where there is none any more."""
    names = [column.read_as or column.type for column in columns]
    return list(zip(names, [oid for (oid,) in conn.execute(_OIDS, (names,))], strict=True))


def _wanted(
    table: Table, columns: Sequence[ImageColumn], types: Sequence[tuple[str, int]], unknown: Collection[str]
) -> Sequence[_Wanted]:
    into = {column.number: place for place, column in enumerate(table.columns) if column.name not in unknown}
    found = []
    for place, (column, (name, oid)) in enumerate(zip(columns, types, strict=True)):
        if column.number not in into:
            continue
        now = table.columns[into[column.number]]
        if not oid:
            raise UndecodableError(table, f'column "{column.name}" had type {column.type}, which is gone')
        read = replace(now, name=f"c{place}", renamed="", postgres_type=name, base_type="", initial=())
        found.append(_Wanted(place, into[column.number], read))
    return found


def _part(
    table: Table,
    columns: Sequence[ImageColumn],
    wanted: Sequence[_Wanted],
    types: Sequence[tuple[str, int]],
    image: bytes,
) -> bytes:
    """The wanted columns of an image, with the oids of the types that read them."""
    fields = list(fields_of(image))
    if len(fields) != len(columns):
        text = f"an image has {len(fields)} columns, and the table had {len(columns)}"
        raise UndecodableError(table, text)
    return image_of([(types[one.place][1], fields[one.place][1]) for one in wanted])
