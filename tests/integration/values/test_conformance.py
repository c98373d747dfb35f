"""Every kind, at its edges, through every form in which a value travels or is held, there and back.

``EDGES`` has the cells and ``FORMS`` the forms. A new kind is a line in ``EDGES`` and one entry in each module of
``anabranch.values``; what is missing is told by name.
"""

from __future__ import annotations

import pkgutil
import sqlite3
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anabranch import values
from anabranch.client.reading.arrow_rows import ArrowRows
from anabranch.columnar.chunks import from_ipc, to_ipc
from anabranch.columnar.encode import ColumnEncoder
from anabranch.store.catalog.relation import types_of
from anabranch.store.cells.binary_cells import literal_sender, output_text, quote, read_expression, row_loader, sender
from anabranch.store.session import binary, steps
from anabranch.store.session.engine import Session
from anabranch.v1 import value_pb2
from anabranch.values import (
    Cell,
    Column,
    Kind,
    Table,
    arrow,
    canonical,
    key_cells,
    key_text,
    message_bytes,
    messages,
    parquet,
    postgres_text,
    python,
    sqlite,
)
from anabranch.values.calendar import DAY_US, FIRST_DAY, FIRST_US, LAST_DAY
from anabranch.values.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    Literal,
)
from anabranch.values.decimals import add_decimals
from anabranch.values.postgres_types import REFUSED_KEYS, kinds_of
from anabranch.wire.effects import EffectBuilder
from anabranch_compactor.effect_columns import EffectDecoder

INFINITE, NAN = float("inf"), float("nan")
REAL_TENTH = struct.unpack("f", struct.pack("f", 0.1))[0]
TYPES = """
create schema app;
create type app.mood as enum ('sad', 'it''s "ok"', 'ünïcode 😀');
create domain app.price as numeric(10,2);
create domain app.moment as timestamptz;
create type app.pair as (a integer, b text);
"""


class Edge(NamedTuple):
    """A type, its kinds, and its outermost cells."""

    postgres_type: str
    kind: Kind
    cells: Sequence[Cell]
    element: Kind | None = None

    @property
    def column(self) -> Column:
        return Column("v", self.kind, self.postgres_type, element_kind=self.element)


ZONED_LATE, LATE = Literal("294276-12-31 23:59:59.999999+00"), Literal("294247-01-10 04:00:54.775807")
MOMENTS = (
    0,
    -1,
    1,
    FIRST_US,
    TIMESTAMP_INFINITY - 1,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    -62_135_596_800_000_001,
)
DAYS = (0, -1, FIRST_DAY, LAST_DAY, DATE_INFINITY, DATE_MINUS_INFINITY, -141_428, -719_163)
TEXTS = ("", "NULL", "null", "naïve 😀 e\u0301", "\\N", '"', "a,b", "{x}", " b ", "a\x01b\n", "x" * 300, "'")
UUIDS = (
    "6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d",
    "00000000-0000-0000-0000-000000000000",
    "f" * 8 + "-ffff" * 3 + "-" + "f" * 12,
)
JSONS = ('{"a": null, "n": 12345678901234567890}', "null", '"null"', "[1, 2]", '"\\"\\\\"', "true")
DOUBLES = (0.0, -0.0, 5e-324, 1.7976931348623157e308, 3.141592653589793, NAN, INFINITE, -INFINITE, 1e22, -1.5)
NUMBERS = (
    "0",
    "0.00",
    "1.10",
    "-1.10",
    "1" + "0" * 50,
    "0." + "7" * 51,
    "NaN",
    "Infinity",
    "-Infinity",
    "-0.0000000001",
)
INTEGERS = (0, 1, -1, 127, 128, 2**31, 2**63 - 1, -(2**63), 9_007_199_254_740_993)
BYTES = (b"", b"\0", b"\xde\xad\xbe\xef", bytes(range(256)) * 2, b'\\"')
TIMES = (0, 1, DAY_US - 1, DAY_US, 45_296_789_000)
EDGES = [
    Edge("boolean", Kind.BOOL, (True, False)),
    Edge("smallint", Kind.INT64, (-(2**15), 2**15 - 1)),
    Edge("integer", Kind.INT64, (-(2**31), 2**31 - 1)),
    Edge("bigint", Kind.INT64, INTEGERS),
    Edge("real", Kind.DOUBLE, (REAL_TENTH, -0.0, NAN, INFINITE, -INFINITE, 2.0**-149)),
    Edge("double precision", Kind.DOUBLE, DOUBLES),
    Edge("text", Kind.STRING, TEXTS),
    Edge("character varying(5)", Kind.STRING, ("ab", "", "😀😀😀😀😀", " b")),
    Edge("character(5)", Kind.STRING, ("ab   ", "     ")),
    Edge("name", Kind.STRING, ("pg_class", "")),
    Edge("app.mood", Kind.STRING, ("sad", 'it\'s "ok"', "ünïcode 😀")),
    Edge("bytea", Kind.BYTES, BYTES),
    Edge("numeric", Kind.DECIMAL, NUMBERS),
    Edge("numeric(12,2)", Kind.DECIMAL, ("0.00", "-1.50", "NaN", "9999999999.99", "-9999999999.99")),
    Edge("numeric(38,10)", Kind.DECIMAL, ("1234567890123456789012345678.0123456789", "-0.0000000001", "0.0000000000")),
    Edge("app.price", Kind.DECIMAL, ("1.50", "NaN")),
    Edge("timestamp with time zone", Kind.TIMESTAMP, (*MOMENTS, ZONED_LATE)),
    Edge("timestamp without time zone", Kind.TIMESTAMP, (*MOMENTS, LATE)),
    Edge("app.moment", Kind.TIMESTAMP, MOMENTS),
    Edge("date", Kind.DATE, DAYS),
    Edge("time without time zone", Kind.TIME, TIMES),
    Edge("jsonb", Kind.JSON, JSONS),
    Edge("json", Kind.JSON, (*JSONS, '{"b":1,   "a":2, "b":3}', "1.10")),
    Edge("uuid", Kind.UUID, UUIDS),
    Edge("time with time zone", Kind.LITERAL, ("12:00:00.5+02", "24:00:00-15:59:59")),
    Edge("interval", Kind.LITERAL, ("1 mon", "30 days", "-1 years -2 mons +3 days -04:05:06.789", "00:00:00")),
    Edge("inet", Kind.LITERAL, ("1.2.3.4", "1.2.3.0/24", "::1")),
    Edge("int4range", Kind.LITERAL, ("[1,5)", "empty", "(,)")),
    Edge("bit varying", Kind.LITERAL, ("", "10101")),
    Edge("app.pair", Kind.LITERAL, ("(1,)", '(2,"a,b")', "(,)")),
    Edge("interval[]", Kind.LITERAL, ('{"1 mon","30 days"}',)),
    Edge("boolean[]", Kind.ARRAY, ((True, False, None), ()), Kind.BOOL),
    Edge("bigint[]", Kind.ARRAY, (INTEGERS, (), ((1, None), (3, 4)), Literal("[2:3]={1,2}")), Kind.INT64),
    Edge("double precision[]", Kind.ARRAY, (DOUBLES, (None, -0.0), Literal("[0:0]={0.1}")), Kind.DOUBLE),
    Edge("real[]", Kind.ARRAY, ((REAL_TENTH, -0.0, NAN, None),), Kind.DOUBLE),
    Edge("text[]", Kind.ARRAY, (TEXTS, ("", None, "NULL"), (("a", None), ("NULL", ""))), Kind.STRING),
    Edge("character(3)[]", Kind.ARRAY, (("a  ", None),), Kind.STRING),
    Edge("app.mood[]", Kind.ARRAY, (("sad", None, 'it\'s "ok"'),), Kind.STRING),
    Edge("bytea[]", Kind.ARRAY, ((*BYTES, None),), Kind.BYTES),
    Edge("numeric[]", Kind.ARRAY, ((*NUMBERS, None),), Kind.DECIMAL),
    Edge("timestamp with time zone[]", Kind.ARRAY, ((*MOMENTS, None, ZONED_LATE), ((1,), (2,))), Kind.TIMESTAMP),
    Edge("timestamp without time zone[]", Kind.ARRAY, ((*MOMENTS, None, LATE),), Kind.TIMESTAMP),
    Edge("date[]", Kind.ARRAY, ((*DAYS, None),), Kind.DATE),
    Edge("time without time zone[]", Kind.ARRAY, ((*TIMES, None),), Kind.TIME),
    Edge("jsonb[]", Kind.ARRAY, ((*JSONS, None),), Kind.JSON),
    Edge("uuid[]", Kind.ARRAY, ((*UUIDS, None),), Kind.UUID),
]
NO_ELEMENTS = {Kind.ARRAY, Kind.LITERAL}
"""An array of arrays is one array, and an array of what has no form of its own has none."""
EVERY_EDGE = pytest.mark.parametrize("edge", EDGES, ids=lambda edge: edge.postgres_type)


def exact(cell: Cell) -> Any:
    """A cell so that equal means the same bits and the same form."""
    if isinstance(cell, float):
        return "NaN" if cell != cell else struct.pack(">d", cell)
    if isinstance(cell, tuple):
        return tuple(map(exact, cell))
    return (type(cell).__name__, cell)


def element_of(column: Column) -> Kind:
    return column.element_kind or Kind.STRING


@pytest.fixture(scope="module")
def conn(session: Session) -> Session:
    session.execute(TYPES.encode())
    return session


@dataclass(frozen=True)
class Place:
    """The surroundings that forms need beside the cells."""

    conn: Session
    folder: Path


def through_messages(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    write, read = messages.column_writer(column), messages.column_reader(column)
    sent = [write(cell).SerializeToString() for cell in cells]
    return [read(value_pb2.Value.FromString(one)) for one in sent]


def through_message_bytes(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    by_hand, by_protobuf = message_bytes.value_bytes(column), messages.column_writer(column)
    sent = [by_hand(cell) for cell in cells]
    assert sent == [by_protobuf(cell).SerializeToString() for cell in cells]
    return [messages.column_reader(column)(value_pb2.Value.FromString(one)) for one in sent]


def through_effects(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    """The log's effects to columns of files, as the compactor has them."""
    table = Table("t", (Column("id", Kind.INT64, "bigint"), column), ("id",))
    builder, codec = EffectBuilder(table), parquet.FileCodec(column)
    effects = pa.array([builder.insert([i, cell]).data for i, cell in enumerate(cells)], pa.binary())
    out: list[Cell] = [None] * len(cells)
    for form in EffectDecoder(table).decode(effects):
        found = form.cells[1]
        read = codec.read(found.values, None if found.exact is None else found.exact.to_pylist())
        for row, cell in zip(form.rows, read, strict=True):
            out[row] = cell
    return out


def through_postgres_text(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    if column.kind is Kind.ARRAY:
        show, read = postgres_text.array_printer(element_of(column)), postgres_text.array_parser(element_of(column))
    else:
        show, read = postgres_text.element_printer(column.kind), postgres_text.element_parser(column.kind)
    value = f"t.v::{column.postgres_type}"
    if Kind.DOUBLE in (column.kind, column.element_kind):
        # A real is widened exactly.
        value += "::float8[]" if column.kind is Kind.ARRAY else "::float8"
    statement = f"select {output_text(value)} from unnest(%s::text[]) with ordinality t (v, place) order by t.place"
    texts = [None if cell is None else show(cell) for cell in cells]
    rows = place.conn.execute(statement.encode(), [texts]).fetchall()
    return [None if text is None else read(text) for (text,) in rows]


def through_postgres_binary(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    late = column.kind is Kind.TIMESTAMP and any(type(cell) is Literal for cell in cells)
    sent = (literal_sender if late else sender)(column)
    name = quote(column.name)
    cells_of = f"(t.v{sent.cast})::{column.postgres_type} as {name}, t.place"
    statement = (
        f"select {read_expression(column, 'q')} from (select {cells_of} "
        f"from unnest($1::{sent.array_type}) with ordinality t (v, place)) q order by q.place"
    )
    rows = binary.run(place.conn, statement.encode(), [sent.build(cells)]).fetchall()
    return [cell for (cell,) in row_loader([column])(rows)]


def through_arrow(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    """As a pull carries them, from a file: to cells, to what SQLite holds, and to a file again."""
    codec = parquet.FileCodec(column)
    written, texts = codec.write(cells)
    carried = codec.to_pull(written, None if texts is None else pa.array(texts, pa.string()))
    late = texts is not None and column.kind is Kind.TIMESTAMP
    assert carried.type == (pa.string() if late else arrow.arrow_type(column))
    data = to_ipc(pa.record_batch([carried], [column.name]))
    (chunk,) = from_ipc(bytes(data)).column(0).chunks
    table = Table("t", (column,), (column.name,))
    stored_rows = ArrowRows(table).read(bytes(data))
    count, rows = stored_rows.count, stored_rows.rows
    load = sqlite.loader(column)
    stored = [load(value) if load else value for (value,) in rows]
    assert (count, list(map(exact, stored))) == (len(cells), list(map(exact, cells)))
    assert list(map(exact, codec.read(*codec.from_pull(chunk)))) == list(map(exact, cells))
    return arrow.to_cells(column, chunk, postgres_text.element_parser(element_of(column)))


def through_parquet(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    codec = parquet.FileCodec(column)
    column_of_file, texts = codec.write(cells)
    assert texts is None or parquet.may_need_text(column)
    file = place.folder / "values.parquet"
    beside = pa.array(texts or [None] * len(cells), pa.string())
    pq.write_table(pa.table({"v": column_of_file, "exact": beside}), file)
    read = pq.read_table(file).combine_chunks()
    assert read.schema.field("v").type == parquet.file_type(column)
    return codec.read(read.column("v").chunk(0), read.column("exact").chunk(0).to_pylist())


def held_by_sqlite(place: Place, column: Column, cells: Sequence[Cell]) -> list[Any]:
    store = sqlite.storer(column)
    with sqlite3.connect(place.folder / "values.sqlite") as file:
        add_decimals(file)
        file.execute(f"create table t (place integer primary key, v {sqlite.declared_type(column.kind)})")
        stored = [None if cell is None else store(cell) if store else cell for cell in cells]
        file.executemany("insert into t (v) values (?)", [(value,) for value in stored])
    with sqlite3.connect(place.folder / "values.sqlite") as file:
        found = [value for (value,) in file.execute("select v from t order by place")]
    file.close()
    assert [type(value) for value in found] == [str if type(v) is Literal else type(v) for v in stored]
    return found


def through_sqlite(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    load = sqlite.loader(column)
    found = held_by_sqlite(place, column, cells)
    return [value if value is None or load is None else load(value) for value in found]


def through_python(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    """Read a value as an app does: it may write that."""
    take = python.converter(column)
    found = held_by_sqlite(place, column, cells)
    return [None if value is None else take(value) for value in found]


def through_keys(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    """Alone, and beside another column."""
    if column.kind in REFUSED_KEYS or column.kind is Kind.LITERAL:
        return list(cells)
    other = Column("w", Kind.STRING, "text")
    alone = Table("t", (column,), ("v",))
    beside = Table("t", (column, other), ("v", "w"))
    out: list[Cell] = []
    for cell in cells:
        if cell is None:
            with pytest.raises(ValueError, match="a key's cell"):
                key_text((cell,))
            out.append(cell)
            continue
        assert key_cells(beside, key_text((cell, "[]")))[1] == "[]"
        assert exact(key_cells(beside, key_text((cell, "[]")))[0]) == exact(cell)
        out.append(key_cells(alone, key_text((cell,)))[0])
    assert len({key_text((cell,)) for cell in cells if cell is not None}) == len(cells) - 1
    return out


def through_canonical(place: Place, column: Column, cells: Sequence[Cell]) -> list[Cell]:
    """It has no way back: no two cells have one encoding, and by columns it is the same."""
    encode = canonical.value_encoder(column.kind, column.element_kind)
    encoded = [encode(cell) for cell in cells]
    assert len(set(encoded)) == len(cells)
    written, texts = parquet.FileCodec(column).write(cells)
    by_columns = ColumnEncoder(Table("t", (column,), ("v",)))
    beside = None if texts is None else pa.array(texts, pa.string())
    assert by_columns.value(0, written, beside).to_pylist() == encoded
    return list(cells)


ENCODED: dict[str, str] = {
    "boolean": "75215a9498a54097",
    "smallint": "1f37b087394e027e",
    "integer": "ad7aff83c5790e9b",
    "bigint": "6ee0076d29b49e0b",
    "real": "8a3b5eb257087a4a",
    "double precision": "a0c740eda5c03263",
    "text": "a46ce81be3b389fd",
    "character varying(5)": "7489abb7c03cba45",
    "character(5)": "5593397f7d46603e",
    "name": "09d947cfb348fbbf",
    "app.mood": "28de97e37cdfaa6e",
    "bytea": "feb047687f3896f5",
    "numeric": "ed6fc472abac0492",
    "numeric(12,2)": "c0fdbc245de911c5",
    "numeric(38,10)": "f135174c894c50a8",
    "app.price": "40e6501d9c90c120",
    "timestamp with time zone": "916f3d58a69ea718",
    "timestamp without time zone": "250ed58ce198469c",
    "app.moment": "ed5480a770eb490f",
    "date": "a27f3592ac6e19b0",
    "time without time zone": "a90c1e11b6edd19e",
    "jsonb": "1fb53fc4482430c7",
    "json": "00dc7e14cdbdbdd6",
    "uuid": "98ed004bd0d701eb",
    "time with time zone": "3ce3cbdb1ac8a610",
    "interval": "4015189113781017",
    "inet": "db532375b21b1c99",
    "int4range": "2ef4328dc8f76c7e",
    "bit varying": "57277df8b5af0f31",
    "app.pair": "49b5c36e0cb720e9",
    "interval[]": "aea7c276ed7e19d9",
    "boolean[]": "313e410e9a1bed75",
    "bigint[]": "fdca6ceb0e5b701b",
    "double precision[]": "351105702468b02f",
    "real[]": "310f365f404db21e",
    "text[]": "53d1f86c879eaea7",
    "character(3)[]": "e6109728ae556782",
    "app.mood[]": "e2d220651ee044f0",
    "bytea[]": "880b7dda68087bcd",
    "numeric[]": "3d2ed2e6ad2557b8",
    "timestamp with time zone[]": "c9529222a1e14604",
    "timestamp without time zone[]": "6efca3b9239bc1bc",
    "date[]": "643467b77f7e5b57",
    "time without time zone[]": "40861bd038c847ac",
    "jsonb[]": "4d951b02d22f4288",
    "uuid[]": "e8f125ff11a904de",
}
"""A digest of the encodings of each edge's cells. One that changes is a break of every sum there is."""
OF_SERVICES = {"effects": through_effects}
FORMS: dict[str, Callable[[Place, Column, Sequence[Cell]], list[Cell]]] = {
    "messages": through_messages,
    "message_bytes": through_message_bytes,
    "postgres_text": through_postgres_text,
    "postgres_binary": through_postgres_binary,
    "arrow": through_arrow,
    "parquet": through_parquet,
    "sqlite": through_sqlite,
    "python": through_python,
    "keys": through_keys,
    "canonical": through_canonical,
    **OF_SERVICES,
}
NO_FORMS = {"calendar", "cells", "decimals", "effect_hashes", "growth", "kinds", "pieces", "postgres_types", "table"}
WITH_OTHERS = {"arrow_to_sqlite"}
"""The forms that another one's own way there and back goes through."""


@EVERY_EDGE
@pytest.mark.parametrize("form", FORMS)
def test_every_cell_comes_back_as_it_was(conn: Session, tmp_path: Path, form: str, edge: Edge) -> None:
    cells = [*edge.cells, None]
    found = FORMS[form](Place(conn, tmp_path), edge.column, cells)
    assert list(map(exact, found)) == list(map(exact, cells))


@EVERY_EDGE
def test_postgres_names_the_kind(conn: Session, edge: Edge) -> None:
    found = conn.execute(b"select %s::regtype::oid", [edge.postgres_type]).fetchone()
    assert found is not None
    assert kinds_of(steps.run(conn, types_of({found[0]})), found[0]) == (edge.kind, edge.element)


@EVERY_EDGE
def test_the_bytes_under_all_sums_are_those_that_they_were(edge: Edge) -> None:
    encode = canonical.value_encoder(edge.kind, edge.element)
    assert blake2b(b"".join(map(encode, edge.cells)), digest_size=8).hexdigest() == ENCODED.get(edge.postgres_type)


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_is_in_the_table(kind: Kind) -> None:
    assert kind in {edge.kind for edge in EDGES}, f"{kind.name} has no edge: add a type of it and its outermost cells"
    if kind not in NO_ELEMENTS:
        assert kind in {edge.element for edge in EDGES}, f"{kind.name} is no array's element in the table: add an array"


def test_every_form_is_in_the_table() -> None:
    modules = {module.name for module in pkgutil.iter_modules(values.__path__)}
    assert modules == {*FORMS.keys() - OF_SERVICES.keys(), *NO_FORMS, *WITH_OTHERS}
