"""Pull carries every type bit for bit (cases T01, T03, T06, T07, T08, T10, T12, T15, T17, T18, T23, T24, T25): what it
brings is, cell by cell, what the set statements read, whose own tests hold them to what Postgres prints."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from anabranch.columnar.chunks import from_ipc
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table
from anabranch.store.cells.binary_cells import Row, quote
from anabranch.store.group.rows import TableSql
from anabranch.testkit.snapshot_reader import Reader
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.arrow import arrow_type, to_cells
from anabranch.values.cells import DATE_INFINITY, TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, Literal
from anabranch.values.postgres_text import element_parser

# Type, and what to store, as SQL; each list is read with a NULL behind it.
VALUES: list[tuple[str, list[str]]] = [
    ("smallint", ["-32768", "32767"]),
    ("integer", ["-2147483648", "2147483647"]),
    ("bigint", ["9007199254740993", "-9223372036854775808", "9223372036854775807"]),
    ("real", ["0.1::real", "'-0'", "'NaN'", "'Infinity'", "1e-45"]),
    ("double precision", ["pi()", "5e-324", "'-0'", "'NaN'", "'-Infinity'", "1.7976931348623157e308"]),
    ("numeric(38,10)", ["1234567890123456789012345678.0123456789", "'NaN'"]),
    ("numeric", ["1.10", "1e50", "0." + "7" * 51, "'Infinity'", "'-Infinity'", "0.00"]),
    ("numeric(12,2)", ["24680"]),
    ("numeric(5,-2)", ["12345"]),
    ("text", ["'naïve 😀 e\u0301'", "''", "'NULL'", "'\\N'", "repeat('x', 100000)", "' b '"]),
    ("character varying(5)", ["'ab'", "''"]),
    ("character(5)", ["'ab'", "''"]),
    ("name", ["'pg_class'"]),
    ("bytea", ["''", "'\\xdeadbeef00'"]),
    ("boolean", ["true", "false"]),
    ("jsonb", ["""'{"a": null, "n": 12345678901234567890}'""", "'null'", "'\"null\"'"]),
    ("json", ["""'{"b":1,   "a":2, "b":3}'""", "'null'"]),
    ("uuid", ["'6B3B2C1E-7F6C-4A4E-9A1C-0F5D2C1B3A4D'"]),
    (
        "timestamp with time zone",
        ["'1969-12-31 23:59:59.999999+00'", "'infinity'", "'-infinity'", "'0001-01-01 BC'", "'4714-11-24 00:00:00 BC'"],
    ),
    ("timestamp without time zone", ["'1582-10-10 12:00'", "'infinity'", "'-infinity'", "'2024-03-31 02:30'"]),
    (
        "timestamp(3) with time zone",
        ["'294276-12-31 23:59:59.999+00'", "'294247-01-10 04:00:54.775+00'", "'infinity'", "'-infinity'", "'1900-1-1'"],
    ),
    (
        "timestamp(6) without time zone",
        ["'294247-01-10 04:00:54.775806'", "'294247-01-10 04:00:54.775807'", "'-infinity'"],
    ),
    ("date", ["'1582-10-04'", "'4713-11-24 BC'", "'5874897-12-31'", "'infinity'", "'-infinity'", "'1969-12-31'"]),
    ("time without time zone", ["'00:00'", "'00:00:00.000001'", "'24:00'"]),
    ("time with time zone", ["'12:00:00.5+02'"]),
    ("interval", ["'1 mon'", "'30 days'", "'-1 years -2 mons +3 days -04:05:06.789'"]),
    ("bit(3)", ["B'101'"]),
    ("inet", ["'1.2.3.4'", "'1.2.3.0/24'"]),
    ("cidr", ["'1.2.3.4/32'"]),
    ("money", ["'$1,234.50'"]),
    ("int4range", ["'[1,5)'", "'empty'"]),
    ("tsvector", ["'a:1 b'"]),
    ("point", ["'(1.5,2)'"]),
    ("app.mood", ["'sad'", "'it''s \"ok\"'", "'ünïcode 😀'"]),
    ("app.short", ["'abc'"]),
    ("app.padded", ["'a'"]),
    ("app.price", ["1.50", "'NaN'"]),
    ("app.whole", ["5"]),
    ("app.moment", ["'infinity'", "'1969-12-31 23:59:59.999999+00'"]),
    ("app.pair", ["row(1, 'a,b')"]),
    (
        "text[]",
        ["array['', null, 'NULL', 'a,b', '\"q\"', '\\', '{x}', ' ', 'null']", "'{}'", '\'{{a,NULL},{"NULL",""}}\''],
    ),
    ("integer[]", ["'{1,NULL,-2147483648}'", "'{{{1,2},{3,4}},{{5,6},{7,8}}}'", "'[2:3]={1,2}'"]),
    ("bigint[]", ["'{9007199254740993,-9223372036854775808}'"]),
    ("numeric[]", ["'{1.10,NaN,1e50}'"]),
    ("real[]", ["'{0.1,-0,NaN,Infinity}'"]),
    ("double precision[]", ["'{5e-324,-0,NaN,-Infinity}'", "'[0:0]={0.1}'"]),
    ("boolean[]", ["'{t,f,NULL}'"]),
    ("bytea[]", ["array[''::bytea, '\\x005c22'::bytea, null]"]),
    ("timestamp with time zone[]", ["'{infinity,-infinity,1969-12-31 23:59:59.999999+00,0001-01-01 BC,294270-01-01}'"]),
    ("timestamp without time zone[]", ["'{1970-01-01,-infinity,4714-11-24 BC}'"]),
    ("date[]", ["'{infinity,-infinity,4714-11-24 BC,5874897-12-31,NULL}'"]),
    ("time without time zone[]", ["'{00:00,24:00,00:00:00.000001}'"]),
    ("jsonb[]", ['array[\'null\', null, \'{"a": "b\\"c"}\']::jsonb[]']),
    ("uuid[]", ["'{6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d}'"]),
    ("character(3)[]", ["'{a,NULL}'"]),
    ("app.mood[]", ["array['sad', null, 'it''s \"ok\"']::app.mood[]"]),
    ("app.tags", ["'{a,NULL}'", "'{}'"]),
    ("inet[]", ["'{1.2.3.4,NULL}'"]),
    ("interval[]", ["'{1 mon,30 days}'"]),
]
TYPES = """
create schema app;
create type app.mood as enum ('sad', 'it''s "ok"', 'ünïcode 😀');
create domain app.short as character varying(5);
create domain app.padded as character(3);
create domain app.price as numeric(10,2);
create domain app.whole as integer;
create domain app.moment as timestamptz;
create domain app.tags as text[];
create type app.pair as (a integer, b text);
"""


def exact(cell: Cell) -> Any:
    """A cell so that equal means the same bits and the same form."""
    if isinstance(cell, float):
        return "NaN" if cell != cell else struct.pack(">d", cell)
    if isinstance(cell, tuple):
        return tuple(map(exact, cell))
    return (type(cell) is Literal, type(cell).__name__, cell)


def pulled_cells(reader: Reader, table: Table) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for response in reader.pull([(table.name, b"")]):
        if response.arrow_ipc:
            chunk = from_ipc(response.arrow_ipc).combine_chunks()
            columns = [cells_of(column, chunk.column(column.name)) for column in table.columns]
            rows.extend(map(list, zip(*columns, strict=True)))
    return rows


def cells_of(column: Column, values: pa.ChunkedArray) -> list[Cell]:
    element = element_parser(column.element_kind or Kind.STRING) if column.kind is Kind.ARRAY else None
    (chunk,) = values.chunks
    late = column.kind is Kind.TIMESTAMP and pa.types.is_string(chunk.type)
    assert late or chunk.type == arrow_type(column)
    return to_cells(column, chunk, element)


def values_for(server_version: int) -> list[tuple[str, list[str]]]:
    """The types that a server has: negative scales came with Postgres 15."""
    return [one for one in VALUES if one[0] != "numeric(5,-2)" or server_version >= 150000]


def make_every_type(place: Any) -> tuple[Table, list[Row]]:
    """A synced table with a column of every type; with its rows as the set statements read them, by key."""
    conn = place.conn
    conn.execute(TYPES.encode())
    kinds = values_for(conn.info.server_version)
    columns = ", ".join(f'"c{i}" {kind}' for i, (kind, _) in enumerate(kinds))
    conn.execute(f"create table {place.schema}.v (id bigint primary key, {columns})".encode())
    most = max(len(values) for _, values in kinds)
    for n in range(most + 1):
        row = [values[n] if n < len(values) else "null" for _, values in kinds]
        conn.execute(f"insert into {place.schema}.v values ({n}, {', '.join(row)})".encode())
    add_table(conn, place.name, "v")
    table = load_database(conn, place.name).tables["v"]
    stored = TableSql(f"app_{place.name}", table).read(conn, [(n,) for n in range(most + 1)])()
    return table, sorted(stored.values(), key=lambda row: int(str(row[0])))


def require_same(table: Table, found: Sequence[Sequence[Cell]], expected: Sequence[Sequence[Cell]]) -> None:
    assert len(found) == len(expected)
    for i, column in enumerate(table.columns):
        have, want = [exact(row[i]) for row in found], [exact(row[i]) for row in expected]
        assert have == want, f"{column.name} {column.postgres_type}"


def test_every_type_comes_back_bit_for_bit(place: Any, reader: Reader) -> None:
    # Made after the process has looked at the server's types for the first time.
    reader_before = list(reader.pull())
    assert reader_before[-1].done
    table, expected = make_every_type(place)
    require_same(table, pulled_cells(reader, table), expected)


def test_the_numbers_mean_what_the_contract_says(place: Any, reader: Reader) -> None:
    conn = place.conn
    conn.execute(f"create table {place.schema}.m (id text primary key, t timestamptz, w timestamp, d date)".encode())
    conn.execute(
        f"""insert into {place.schema}.m values
            ('a', '1969-12-31 23:59:59.999999+00', '1969-12-31 23:59:59.999999', '1969-12-31'),
            ('b', 'infinity', '-infinity', 'infinity'),
            ('c', '0001-01-01 00:00:00+00', '1582-10-10 00:00', '1582-10-10')""".encode()
    )
    add_table(conn, place.name, "m")
    assert pulled_cells(reader, load_database(conn, place.name).tables["m"]) == [
        ["a", -1, -1, -1],
        ["b", TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, DATE_INFINITY],
        ["c", -62135596800000000, -141432 * 86_400_000_000, -141432],
    ]


def test_timestamps_beyond_64_bits_come_as_text_and_the_others_beside_them_as_numbers(
    place: Any, reader: Reader
) -> None:
    conn = place.conn
    conn.execute(f"create table {place.schema}.late (id text primary key, t timestamptz)".encode())
    conn.execute(
        f"""insert into {place.schema}.late values
            ('a', '294270-01-01 00:00:00.5+00'), ('b', '1970-01-01'), ('c', null)""".encode()
    )
    add_table(conn, place.name, "late")
    (chunk, _) = reader.pull([("late", b"")])
    column = from_ipc(chunk.arrow_ipc).column("t")
    assert column.type == pa.string()
    assert column.to_pylist() == ["294270-01-01 00:00:00.5+00", "0", None]


ODD_TABLE = 'Order "by"'
ODD_NAMES = ["select", "7.5", 'q"q', "Mixed Case", "%s", "$1", "tab\t", "deleted"]


def test_t24_t25_odd_names_and_generated_columns(place: Any, reader: Reader) -> None:
    conn = place.conn
    names = [quote(name) for name in ODD_NAMES]
    columns = ", ".join(f"{name} text" for name in names if name != '"7.5"')
    relation = f"{place.schema}.{quote(ODD_TABLE)}"
    conn.execute(
        f'create table {relation} ({columns}, "7.5" bigint generated always as (length("select")) stored, '
        f'primary key ({names[2]}, "select"))'.encode()
    )
    conn.execute(f"insert into {relation} values ('s', '''; drop table x; --', 'm', 'p', 'd', 't', null)".encode())
    add_table(conn, place.name, ODD_TABLE)
    table = load_database(conn, place.name).tables[ODD_TABLE]
    (row,) = pulled_cells(reader, table)
    expected = ["s", 1, "'; drop table x; --", "m", "p", "d", "t", None]
    assert dict(zip(table.column_names, row, strict=True)) == dict(zip(ODD_NAMES, expected, strict=True))
    (described,) = [one for one in reader.describe().tables if one.name == ODD_TABLE]
    assert [column.name for column in described.columns] == list(table.column_names)
