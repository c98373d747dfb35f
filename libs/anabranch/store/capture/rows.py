"""Rows as the capture triggers wrote them, back to cells.

``anabranch.captured`` holds whole rows as ``record_send`` makes them: 32 bit number of columns, then for each the oid
of its type, 32 bit length (-1 is NULL) and bytes. Only Postgres can read every type, so the images go back to it
as one array of the table's row type, and come out as the columns that any other reader selects: cells are exactly those
of ``rows.TableSql.read``.

An image may be older than the table is today, by DDL that was not noticed yet (that which was noticed: see
``older_images``). Its first columns are those of the registration, in their order: columns that were added since stand
behind them, and a table that lost one of its own, or holds another type in it, has drifted (``drift``). Further columns
are cut off or filled up with NULLs; oids that have changed while the type is carried alike (``integer`` to ``bigint``,
a length taken away, a restored dump) are corrected.

Columns whose types have no binary form stand in the images as text, with the oid of text. No array of the table's row
type can hold those: a temporary type that is made like it, with text in their place, is read instead.

A session that reads the table's row type for the first time needs a lock on the table, and would wait for a session
that holds an exclusive lock on it. Then a temporary type that is made like it takes its place: the images can be read
without the table.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from anabranch.errors import ServerError
from anabranch.store.capture.large_images import LargeImage
from anabranch.store.cells.binary_cells import Row, quote, read_expression, row_loader
from anabranch.store.session import binary
from anabranch.store.session.binary import Connection
from anabranch.values import Column, Kind, Table
from anabranch.values.postgres_binary import Parameter

_MOST_ROWS = 5_000
_MOST_BYTES = 8 * 2**20

_INT2, _INT4, _INT8, _TEXT, _VARCHAR = 21, 23, 20, 25, 1043
_WIDTHS = {_INT2: 2, _INT4: 4, _INT8: 8}
_TEXTS = frozenset({_TEXT, _VARCHAR})
_LONG_KINDS = frozenset({Kind.STRING, Kind.JSON, Kind.BYTES})

_SHAPE = """
select c.reltype::int8,
       array(select a.attname::text from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum),
       array(select a.atttypid::int8 from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum),
       (exists (select from pg_locks l
                where l.locktype = 'relation' and l.relation = c.oid and l.mode = 'AccessExclusiveLock'
                  and l.database = (select d.oid from pg_database d where d.datname = current_database())
                  and l.pid is distinct from pg_backend_pid())
        and current_setting('transaction_read_only') = 'off'
        and has_database_privilege(current_database(), 'TEMP')),
       array(select anabranch.has_binary(a.atttypid) from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum),
       array(select format_type(a.atttypid, a.atttypmod) from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum),
       array(select a.attnum::int4 from pg_attribute a
             where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = %s and c.relkind in ('r', 'p')
"""

_STAND_IN = "pg_temp.anabranch_image"
_COLUMN_TYPES = """
select format_type(a.atttypid, a.atttypmod)
from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.reltype = %s::int8::oid and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_STAND_IN_TYPE = f"select '{_STAND_IN}'::regtype::oid::int8".encode()

_header = struct.Struct(">iiIii").pack
_length = struct.Struct(">i").pack
_count_of = struct.Struct(">i").unpack_from
_field_of = struct.Struct(">Ii").unpack_from
_field = struct.Struct(">Ii").pack


class UndecodableError(ServerError, ValueError):
    """Images of a table can't be read as rows of it: it has drifted. ``table`` is its identity; ``sqlstate`` is that of
    Postgres's error, "" where Postgres was not asked."""

    REASON = "TABLE_CHANGED"

    def __init__(self, table: Table, why: str, sqlstate: str = "") -> None:
        super().__init__(f'rows captured of table "{table.sql_name}" can\'t be read: {why}')
        self.table = table.name
        self.sqlstate = sqlstate


class _ImageShape(NamedTuple):
    """A table as it is now: its row type's oid, its columns' names and type oids in order. ``locked``: another session
    holds an exclusive lock on it, or waits for one, and this session may make a type. ``binary``: of each column,
    whether its type has a binary form; the oids are those in images, that of text where it has none. ``types``: as
    ``format_type`` prints them; ``numbers``: Postgres's own."""

    row_type: int
    names: list[str]
    oids: list[int]
    locked: bool
    binary: list[bool]
    types: list[str]
    numbers: list[int]

    def is_registered(self, table: Table) -> bool:
        """Whether these are the columns that the table was registered with, as far as images show them."""
        return self.types == [column.postgres_type for column in table.columns] and all(
            column.number in (0, number) for column, number in zip(table.columns, self.numbers, strict=True)
        )


def decode(
    conn: Connection,
    schema_name: str,
    table: Table,
    images: Sequence[bytes],
    *,
    altered: Callable[[], None] | None = None,
) -> list[Row]:
    """The rows of ``images`` (``captured.old`` or ``captured.new``, none of them NULL), in their order.

    A statement for each ``_MOST_ROWS`` images or ``_MOST_BYTES``. Must be called inside a transaction; one that holds
    locks on rows of the table can't see it change meanwhile. ``altered`` is called first where the table or an image
    has other columns than are registered: what it raises is raised.

    Raises:
        UndecodableError: the table is no longer what it was when it was registered. With an ``sqlstate`` the
            transaction has failed.
    """
    if not images:
        return []
    shape = _shape(conn, schema_name, table)
    large = {place: image for place, image in enumerate(images) if isinstance(image, LargeImage)}
    if large:
        images = [image.without() if isinstance(image, LargeImage) else image for image in images]
    is_current = _is_current(shape, images)
    if altered is not None and not (is_current and shape.is_registered(table)):
        altered()
    if not is_current:
        images = [_made_current(table, shape, image) for image in images]
    rows = _decode(conn, schema_name, table, shape, images)
    for place, image in large.items():
        # Columns that were added since the registration stand behind its own.
        put_back(table, rows[place], image, {place: place for place in range(len(table.columns))})
    return rows


def put_back(table: Table, row: Row, image: LargeImage, into: Mapping[int, int]) -> None:
    """Put the long values of an image into its row. ``into``: by the place of a column in the image, its place in the
    row; the other columns are left out.

    Raises:
        UndecodableError: a column of the table is of another type than the image's.
    """
    for place in image.long:
        if place in into:
            column = table.columns[into[place]]
            if column.kind not in _LONG_KINDS:
                raise UndecodableError(table, f'column "{column.sql_name}" has another type now')
            is_text = column.kind is not Kind.BYTES
            cell: Any = image.cell(place, is_text=is_text)
            if into[place] in table.key_index:
                cell = str(cell) if is_text else bytes(cell)
            row[into[place]] = cell


def _decode(conn: Connection, schema_name: str, table: Table, shape: _ImageShape, images: Sequence[bytes]) -> list[Row]:
    if shape.locked or not all(shape.binary):
        types = conn.execute(_COLUMN_TYPES, [shape.row_type])
        columns = [
            (name, kind if has_binary else "text")
            for name, (kind,), has_binary in zip(shape.names, types, shape.binary, strict=True)
        ]
        with stand_in(conn, columns) as (row_type, name):
            return read_images(conn, table, table.columns, row_type, name, images)
    name = f"{quote(schema_name)}.{quote(table.sql_name)}"
    return read_images(conn, table, table.columns, shape.row_type, name, images)


def read_images(
    conn: Connection, table: Table, columns: Sequence[Column], row_type: int, type_name: str, images: Sequence[bytes]
) -> list[Row]:
    """The cells of ``columns`` in images of rows of a type, each with all of its columns.

    Raises:
        UndecodableError: Postgres can't read them as such; the transaction has failed.
    """
    selected = ", ".join(read_expression(column, "t") for column in columns)
    statement = f"select {selected} from unnest($1::{type_name}[]) as t".encode()
    load = row_loader(columns)
    rows: list[Row] = []
    cursor = binary.cursor(conn)
    try:
        for chunk in _chunks(images):
            # A prepared statement would outlive a table that is dropped and created again under its name.
            cursor.execute(statement, [_array(row_type, chunk)], prepare=False, binary=True)
            rows += load(cursor.fetchall())
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.IntegrityError, psycopg.NotSupportedError) as error:
        # Also for a value that its domain or its enumeration no longer allows.
        why = f"its columns or their types have changed (SQLSTATE {error.sqlstate})"
        raise UndecodableError(table, why, error.sqlstate or "") from error
    return rows


@contextmanager
def stand_in(conn: Connection, columns: Iterable[tuple[str, str]]) -> Iterator[tuple[int, str]]:
    """A temporary type with these columns, which only this session sees: its oid and its name."""
    made = ", ".join(f"{quote(name)} {kind}" for name, kind in columns)
    conn.execute(f"create type {_STAND_IN} as ({made})".encode(), prepare=False)
    [(row_type,)] = conn.execute(_STAND_IN_TYPE, prepare=False)
    yield int(row_type), _STAND_IN
    # Not as a statement that the driver recognises as a DROP: it would forget its prepared statements, and in a
    # pipeline it would make the server forget those, too, that are prepared before the server has done so.
    conn.execute(f"do $$ begin drop type {_STAND_IN}; end $$".encode(), prepare=False)


def _shape(conn: Connection, schema_name: str, table: Table) -> _ImageShape:
    found = conn.execute(_SHAPE, (schema_name, table.sql_name)).fetchone()
    if found is None:
        raise UndecodableError(table, "the table is gone")
    shape = _ImageShape(*found)
    shape.oids[:] = [oid if has_binary else _TEXT for oid, has_binary in zip(shape.oids, shape.binary, strict=True)]
    for place, column in enumerate(table.columns):
        if place >= len(shape.names) or shape.names[place] != column.sql_name:
            raise UndecodableError(table, f'column "{column.sql_name}" is gone')
    return shape


def _is_current(shape: _ImageShape, images: Sequence[bytes]) -> bool:
    """Whether Postgres takes all of them as they are. Types change under a lock that keeps writers out: where the first
    image and the last one have the present types, those between them do, if they have as many columns."""
    count = _length(len(shape.oids))
    return all(image.startswith(count) for image in images) and all(
        [oid for oid, _ in fields_of(image)] == shape.oids for image in (images[0], images[-1])
    )


def fields_of(image: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Type oid and bytes of each column."""
    (count,) = _count_of(image)
    at = 4
    for _ in range(count):
        oid, size = _field_of(image, at)
        at += 8
        yield oid, None if size < 0 else image[at : at + size]
        at += max(size, 0)


def _made_current(table: Table, shape: _ImageShape, image: bytes) -> bytes:
    """``image`` with the table's present columns and oids."""
    fields = list(fields_of(image))[: len(table.columns)]
    if len(fields) < len(table.columns):
        raise UndecodableError(table, f"an image has {len(fields)} columns of {len(table.columns)}")
    made: list[tuple[int, bytes | None]] = [
        (oid, None if data is None else _moved(table, column, was, oid, data))
        for column, (was, data), oid in zip(table.columns, fields, shape.oids, strict=False)
    ]
    return image_of([*made, *((oid, None) for oid in shape.oids[len(fields) :])])


def image_of(fields: Sequence[tuple[int, bytes | None]]) -> bytes:
    """The image of a row, from the type oid and the bytes of each column."""
    parts = [_length(len(fields))]
    for oid, data in fields:
        parts.append(_field(oid, -1 if data is None else len(data)))
        parts.append(data or b"")
    return b"".join(parts)


def _moved(table: Table, column: Column, was: int, oid: int, data: bytes) -> bytes:
    """The bytes of a value of type ``was`` as those of type ``oid``."""
    if was in _WIDTHS and oid in _WIDTHS:
        try:
            return int.from_bytes(data, "big", signed=True).to_bytes(_WIDTHS[oid], "big", signed=True)
        except OverflowError as error:
            raise UndecodableError(table, f'column "{column.sql_name}" has a smaller type now') from error
    if was == oid or {was, oid} <= _TEXTS:
        return data
    if min(was, oid) < _FIRST_USER_OID:
        raise UndecodableError(table, f'column "{column.sql_name}" has another type now')
    # The application's own type has another oid, as after a dump was restored: its receive function checks the bytes.
    return data


_FIRST_USER_OID = 16_384


def _chunks(images: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    first = size = 0
    for place, image in enumerate(images):
        if place - first == _MOST_ROWS or size > _MOST_BYTES:
            yield images[first:place]
            first, size = place, 0
        size += len(image)
    yield images[first:]


def _array(row_type: int, images: Sequence[bytes]) -> Parameter:
    """Images as an array of the row type, which the statement names."""
    woven = [b""] * (2 * len(images))
    woven[0::2] = map(_length, map(len, images))
    woven[1::2] = images
    return Parameter(0, _header(1, 0, row_type, len(images), 1) + b"".join(woven))
