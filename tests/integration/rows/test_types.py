"""Promise: what Postgres stores comes back bit for bit (cases T01, T03, T06, T07, T08, T10, T12, T15, T17, T18)."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import errors

from anabranch.store.group.rows import TableSql
from anabranch.store.session.engine import Session
from anabranch.testkit.cell_strategies import cells
from anabranch.values import Cell, Table
from anabranch.values.cells import (
    DATE_INFINITY,
    DATE_MINUS_INFINITY,
    TIMESTAMP_INFINITY,
    TIMESTAMP_MINUS_INFINITY,
    Literal,
)
from anabranch.values.postgres_binary import NulInTextError

Register = Callable[[str, str], Table]

INFINITE = float("inf")
LONG_TEXT = "x" * 5_000
# (type, cells that come back as they were sent)
EXACT: list[tuple[str, list[Cell]]] = [
    ("smallint", [-(2**15), 2**15 - 1, 0]),
    ("integer", [-(2**31), 2**31 - 1]),
    ("bigint", [9007199254740993, -(2**63), 2**63 - 1, -1]),
    ("real", [struct.unpack("f", struct.pack("f", 0.1))[0], -0.0, INFINITE, -INFINITE, math.nan, 2.0**-149]),
    ("double precision", [math.pi, 5e-324, -0.0, 0.0, math.nan, INFINITE, -INFINITE, 1.7976931348623157e308]),
    ("numeric(38,10)", ["1234567890123456789012345678.0123456789", "-0.0000000001", "1.1000000000"]),
    ("numeric", ["1.10", "1" + "0" * 50, "0." + "7" * 51, "NaN", "Infinity", "-Infinity", "0", "0.00"]),
    ("numeric(12,2)", ["24680.00", "-1.50"]),
    ("numeric(5,-2)", ["12300", "-100"]),
    ("text", ["naïve 😀 e\u0301", "", "NULL", "\\N", LONG_TEXT, "a\x01b", " trailing "]),
    ("character varying(5)", ["ab", "", "😀😀😀😀😀"]),
    ("character(5)", ["ab   ", "     "]),
    ("name", ["pg_class", ""]),
    ("bytea", [b"", b"\xde\xad\xbe\xef\x00", bytes(range(256)) * 8]),
    ("boolean", [True, False]),
    ("jsonb", ['{"a": null, "n": 12345678901234567890}', "null", '"null"', "[1, 2]"]),
    ("json", ['{"b":1,   "a":2, "b":3}', "null", "1.10"]),
    ("uuid", ["6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d"]),
    (
        "timestamp with time zone",
        [-1, 0, 1, TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, -62135596800000000, -210866803200000000],
    ),
    (
        "timestamp without time zone",
        [-1, -12219292800000000, TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, TIMESTAMP_INFINITY - 1],
    ),
    ("date", [-1, -141428, -2440588, 2145042905, DATE_INFINITY, DATE_MINUS_INFINITY]),
    ("time without time zone", [0, 1, 86_399_999_999, 86_400_000_000]),
    ("time with time zone", ["12:00:00.5+02", "24:00:00-15:59:59"]),
    ("interval", ["1 mon", "30 days", "-1 years -2 mons +3 days -04:05:06.789"]),
    ("bit(3)", ["101"]),
    ("bit varying", ["", "1", "10101"]),
    ("inet", ["1.2.3.4", "1.2.3.0/24", "::1"]),
    ("cidr", ["1.2.3.0/24", "1.2.3.4/32"]),
    ("macaddr", ["08:00:2b:01:02:03"]),
    ("money", ["$12.34", "-$1,000.00"]),
    ("int4range", ["[1,5)", "empty", "(,)"]),
    ("tsvector", ["'a':1 'b'"]),
    ("point", ["(1.5,2)"]),
    ("box[]", ["{(1,1),(0,0);(3,3),(2,2)}"]),
    ("inet[]", ["{1.2.3.4,NULL}"]),
    ("interval[]", ['{"1 mon","30 days"}']),
    ("int4range[]", ['{"[1,5)"}']),
    ("app.mood", ["sad", 'it\'s "ok"', "back\\slash", "ünïcode 😀"]),
    ("app.short", ["abc", ""]),
    ("app.padded", ["a  "]),
    ("app.price", ["1.50", "NaN"]),
    ("app.whole", [5, 2**31 - 1]),
    ("app.moment", [-1, TIMESTAMP_INFINITY]),
    ("app.pair", ["(1,)", '(2,"a,b")', "(,)"]),
    ("app.host", ["1.2.3.4"]),
    ("text[]", [("", None, "NULL", "a,b", '"q"', "\\", "{x}", " ", "null"), (), (("a", None), ("NULL", ""))]),
    ("integer[]", [(1, None, -(2**31)), (((1, 2), (3, 4)), ((5, 6), (7, 8))), Literal("[2:3]={1,2}")]),
    ("bigint[]", [(9007199254740993, -(2**63))]),
    ("numeric[]", [("1.10", "NaN", "1" + "0" * 50)]),
    ("real[]", [(struct.unpack("f", struct.pack("f", 0.1))[0], -0.0, math.nan, INFINITE)]),
    ("double precision[]", [(math.pi, 5e-324, -0.0, math.nan, -INFINITE), Literal("[0:0]={0.1}")]),
    ("boolean[]", [(True, False, None)]),
    ("bytea[]", [(b"", b'\x00\\"', None)]),
    (
        "timestamp with time zone[]",
        [(-1, None, TIMESTAMP_INFINITY, -62135596800000001, Literal("294270-01-01 00:00:00+00"))],
    ),
    ("timestamp without time zone[]", [(0, TIMESTAMP_MINUS_INFINITY, -210866803200000000)]),
    ("date[]", [(-1, DATE_INFINITY, DATE_MINUS_INFINITY, -2440588, 2145042905, None)]),
    ("time without time zone[]", [(0, 1, 86_400_000_000)]),
    ("jsonb[]", [("null", None, '{"a": "b\\"c"}')]),
    ("uuid[]", [("6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d",)]),
    ("character(3)[]", [("a  ", None)]),
    ("app.mood[]", [("sad", None, 'it\'s "ok"')]),
    ("app.tags", [("a", None), ()]),
]
# Types whose cells are text.
PRINTED = [t for t, sent in EXACT if all(type(cell) is str for cell in sent)]
# (type, cell, what psql prints): what the numbers of the other kinds mean
MEANINGS: list[tuple[str, Cell, str]] = [
    ("timestamp with time zone", -1, "1969-12-31 23:59:59.999999+00"),
    ("timestamp with time zone", -62135596800000000, "0001-01-01 00:00:00+00"),
    ("timestamp with time zone", -62135596800000001, "0001-12-31 23:59:59.999999+00 BC"),
    ("timestamp with time zone", TIMESTAMP_INFINITY, "infinity"),
    ("timestamp without time zone", TIMESTAMP_MINUS_INFINITY, "-infinity"),
    ("timestamp without time zone", -210866803200000000, "4714-11-24 00:00:00 BC"),
    ("timestamp without time zone", 946684800000000, "2000-01-01 00:00:00"),
    ("date", -1, "1969-12-31"),
    ("date", -141438, "1582-10-04"),
    ("date", -2440588, "4714-11-24 BC"),
    ("date", DATE_INFINITY, "infinity"),
    ("time without time zone", 1, "00:00:00.000001"),
    ("time without time zone", 86_400_000_000, "24:00:00"),
    ("bigint", 9007199254740993, "9007199254740993"),
    ("real", 2.0**-149, "1e-45"),
    ("double precision", -0.0, "-0"),
    ("bytea", b"\xde\xad\x00", "\\\\xdead00"),
    ("boolean", True, "t"),
    ("timestamp with time zone[]", (-1, None), '{"1969-12-31 23:59:59.999999+00",NULL}'),
    ("date[]", (-141438, -2440588), '{1582-10-04,"4714-11-24 BC"}'),
    ("time without time zone[]", (1,), "{00:00:00.000001}"),
    ("bytea[]", (b"\xde",), '{"\\\\\\\\xde"}'),
    ("text[]", ("", None, "NULL"), '{"",NULL,"NULL"}'),
    ("integer[]", Literal("[2:3]={1,2}"), "[2:3]={1,2}"),
]
# (type, sent, stored)
CORRECTED: list[tuple[str, Cell, Cell]] = [
    ("numeric(12,2)", "24680", "24680.00"),
    ("numeric(5,-2)", "12345", "12300"),
    ("numeric(12,2)", "1.005", "1.01"),
    ("character(5)", "ab", "ab   "),
    ("character varying(3)", "ab  ", "ab "),
    ("timestamp(3) with time zone", 1_234_567, 1_235_000),
    ("time(0) without time zone", 1_500_000, 2_000_000),
    ("interval day to second(0)", "1 mon 2.5 seconds", "1 mon 00:00:03"),
    ("uuid", "6B3B2C1E-7F6C-4A4E-9A1C-0F5D2C1B3A4D", "6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d"),
    ("jsonb", '{"b":1,"a":2}', '{"a": 2, "b": 1}'),
    ("real", 0.1, struct.unpack("f", struct.pack("f", 0.1))[0]),
]
# (type, sent, SQLSTATE)
REFUSED: list[tuple[str, Cell, str]] = [
    ("smallint", 2**15, "22003"),
    ("integer", -(2**31) - 1, "22003"),
    ("real", 1e300, "22003"),
    ("numeric(5,2)", "1000", "22003"),
    ("numeric", "one", "22P02"),
    ("character varying(3)", "abcd", "22001"),
    ("character(3)", "abcd", "22001"),
    ("character varying(3)[]", ("abcd",), "22001"),
    ("bit(3)", "10", "22026"),
    ("bit varying(2)", "101", "22001"),
    ("app.short", "abcd", "22001"),
    ("app.whole", 0, "23514"),
    ("app.whole", 2**31, "22003"),
    ("app.mood", "glad", "22P02"),
    ("timestamp with time zone", TIMESTAMP_MINUS_INFINITY + 1, "22008"),
    ("timestamp without time zone", -211_000_000_000_000_000, "22008"),
    ("date", DATE_MINUS_INFINITY + 1, "22008"),
    ("time without time zone", 86_400_000_001, "22008"),
    ("time without time zone", -1, "22008"),
    ("uuid", "no", "22P02"),
    ("json", "{", "22P02"),
    ("jsonb", '"\\u0000"', "22P05"),
    ("integer[]", ((1,), (1, 2)), "22P02"),
    ("interval", "soon", "22007"),
]
TYPES = """
create type app.mood as enum ('sad', 'it''s "ok"', 'back\\slash', 'ünïcode 😀');
create domain app.short as character varying(3);
create domain app.padded as character(3);
create domain app.price as numeric(5,2);
create domain app.whole as integer check (value > 0);
create domain app.moment as timestamp with time zone;
create domain app.host as inet;
create domain app.tags as text[];
create type app.pair as (a integer, b text);
"""


@pytest.fixture(scope="module")
def tables(conn: Session, register: Register) -> Callable[[str], Table]:
    """The table with a key "id" and a value "v" of a given type."""
    conn.execute("set lc_monetary = 'C'")
    conn.execute(TYPES.encode())
    made: dict[str, Table] = {}

    def table(type_name: str) -> Table:
        if type_name == "numeric(5,-2)" and conn.info.server_version < 150000:
            pytest.skip("the server has no negative scales: they came with Postgres 15")
        if type_name not in made:
            name = f"t{len(made)}"
            # A space after the minus would not be what format_type prints.
            made[type_name] = register(name, f"create table app.{name} (id integer primary key, v {type_name})")
        return made[type_name]

    return table


def bits(cell: object) -> object:
    """Equal only for what is the same in Postgres: floats by their bits, all NaN as one."""
    if isinstance(cell, float):
        return "NaN" if cell != cell else struct.pack(">d", cell)
    if isinstance(cell, tuple):
        return tuple(bits(c) for c in cell)
    return type(cell), cell


@pytest.mark.parametrize(("type_name", "sent"), EXACT, ids=[t for t, _ in EXACT])
def test_a_value_comes_back_as_it_was_sent(
    conn: Session, tables: Callable[[str], Table], type_name: str, sent: list[Cell]
) -> None:
    table = tables(type_name)
    sql = TableSql("app", table)
    rows: list[list[Cell]] = [[i, cell] for i, cell in enumerate([*sent, None])]
    expected = {str(i): bits(cell) for i, cell in rows}
    conn.execute(f"truncate app.{table.name}".encode())
    inserted = sql.insert(conn, ("id", "v"), rows)()
    assert {key: bits(row[1]) for key, row in inserted.items()} == expected
    keys: list[tuple[Cell, ...]] = [(row[0],) for row in rows]
    nothing: list[tuple[Cell, ...]] = [(None,) for _ in rows]
    assert all(row[1] is None for row in sql.update(conn, ["v"], keys, nothing)().values())
    updated = sql.update(conn, ["v"], keys, [(cell,) for _, cell in rows])()
    assert {key: bits(row[1]) for key, row in updated.items()} == expected
    assert {key: bits(row[1]) for key, row in sql.read(conn, keys)().items()} == expected
    assert {key: bits(row[1]) for key, row in sql.lock(conn, keys)().rows.items()} == expected


@pytest.mark.parametrize("type_name", PRINTED)
def test_what_is_read_is_what_psql_prints(conn: Session, tables: Callable[[str], Table], type_name: str) -> None:
    table = tables(type_name)
    sent = dict(EXACT)[type_name]
    conn.execute(f"truncate app.{table.name}".encode())
    rows: list[list[Cell]] = [[i, c] for i, c in enumerate(sent)]
    stored = TableSql("app", table).insert(conn, ("id", "v"), rows)()
    # COPY prints by the type's output function; the column alone can't hold a tab or a newline here.
    with conn.cursor().copy(f"copy (select v from app.{table.name} order by id) to stdout".encode()) as copy:
        printed = [bytes(line).decode().removesuffix("\n") for line in copy]
    assert printed == [str(row[1]).replace("\\", "\\\\") for row in stored.values()]


@pytest.mark.parametrize(("type_name", "sent", "text"), MEANINGS)
def test_a_cell_means_what_psql_prints(
    conn: Session, tables: Callable[[str], Table], type_name: str, sent: Cell, text: str
) -> None:
    table = tables(type_name)
    conn.execute(f"truncate app.{table.name}".encode())
    TableSql("app", table).insert(conn, ("id", "v"), [[1, sent]])()
    with conn.cursor().copy(f"copy (select v from app.{table.name}) to stdout".encode()) as copy:
        assert b"".join(map(bytes, copy)).decode() == text + "\n"


def test_xml_comes_back_as_it_was_sent(conn: Session, tables: Callable[[str], Table]) -> None:
    sql = TableSql("app", tables("xml"))
    try:
        conn.execute("select '<a/>'::xml")
    except errors.FeatureNotSupported as error:
        pytest.skip(f"this Postgres has no xml: {error.diag.message_primary}")
    sent: list[list[Cell]] = [[1, "<a>1</a>"], [2, "text"]]
    assert list(sql.insert(conn, ("id", "v"), sent)().values()) == sent


@pytest.mark.parametrize(("type_name", "sent", "stored"), CORRECTED)
def test_what_postgres_makes_of_a_value_is_what_comes_back(
    conn: Session, tables: Callable[[str], Table], type_name: str, sent: Cell, stored: Cell
) -> None:
    table = tables(type_name)
    conn.execute(f"truncate app.{table.name}".encode())
    (row,) = TableSql("app", table).insert(conn, ("id", "v"), [[1, sent]])().values()
    assert bits(row[1]) == bits(stored)


@pytest.mark.parametrize(("type_name", "sent", "sqlstate"), REFUSED)
def test_postgres_itself_refuses_what_does_not_fit(
    conn: Session, tables: Callable[[str], Table], type_name: str, sent: Cell, sqlstate: str
) -> None:
    sql = TableSql("app", tables(type_name))
    with pytest.raises(errors.Error) as refused:
        sql.insert(conn, ("id", "v"), [[99, sent]])()
    assert refused.value.sqlstate == sqlstate


@pytest.mark.parametrize("type_name", ["timestamp with time zone", "timestamp without time zone"])
def test_a_timestamp_beyond_64_bits_is_a_literal(conn: Session, tables: Callable[[str], Table], type_name: str) -> None:
    table = tables(type_name)
    sql = TableSql("app", table)
    conn.execute(f"truncate app.{table.name}".encode())
    text = Literal("294276-12-31 23:59:59.999999" + ("+00" if "with time" in type_name else ""))
    first = Literal("294247-01-10 04:00:54.775807" + ("+00" if "with time" in type_name else ""))
    rows: list[list[Cell]] = [[1, text], [2, -1], [3, None], [4, first], [5, TIMESTAMP_INFINITY - 1]]
    inserted = sql.insert(conn, ("id", "v"), rows)()
    assert [bits(row[1]) for row in inserted.values()] == [bits(row[1]) for row in rows]
    # One row's literal changes how the column is sent: both ways must stay apart.
    assert sql.update(conn, ["v"], [(1,)], [(7,)])()["1"][1] == 7
    assert sql.update(conn, ["v"], [(1,)], [(text,)])()["1"][1] == text
    printed = conn.execute(f"select v::text from app.{table.name} where id = 1".encode()).fetchone()
    assert printed == (text,)


@pytest.mark.parametrize("type_name", ["text", "app.mood", "numeric", "json", "interval", "text[]"])
def test_nul_in_text_is_refused_by_name_before_anything_is_sent(
    conn: Session, tables: Callable[[str], Table], type_name: str
) -> None:
    sql = TableSql("app", tables(type_name))
    cell: Cell = ("a\0b",) if type_name == "text[]" else "a\0b"
    with conn.transaction():
        first: list[Cell] = [1, None]
        second: list[Cell] = [2, cell]
        for rows in ([second], [first, second]):
            with pytest.raises(NulInTextError, match='column "v"') as refused:
                sql.insert(conn, ("id", "v"), rows)()
            assert refused.value.column == "v"
            assert isinstance(refused.value, ValueError)
        # Had a statement been sent and failed, the transaction would be dead.
        assert conn.execute("select 1").fetchone() == (1,)


KINDS = {
    "b": "boolean",
    "i": "bigint",
    "d": "double precision",
    "s": "text",
    "y": "bytea",
    "n": "numeric",
    "z": "timestamp with time zone",
    "t": "timestamp without time zone",
    "a": "date",
    "m": "time without time zone",
    "j": "json",
    "u": "uuid",
    "ab": "boolean[]",
    "ai": "bigint[]",
    "ad": "double precision[]",
    "as": "text[]",
    "ay": "bytea[]",
    "an": "numeric[]",
    "az": "timestamp with time zone[]",
    "aa": "date[]",
    "am": "time without time zone[]",
    "aj": "json[]",
    "au": "uuid[]",
}


@pytest.fixture(scope="module")
def wide(register: Register) -> Table:
    columns = ", ".join(f'"{name}" {type_name}' for name, type_name in KINDS.items())
    return register("wide", f"create table app.wide (id integer primary key, {columns})")


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_rows_of_every_kind_come_back_bit_for_bit(conn: Session, wide: Table, data: st.DataObject) -> None:
    row = st.tuples(*(cells(c.kind, c.element_kind) for c in wide.columns[1:]))
    rows: list[list[Cell]] = [[i, *drawn] for i, drawn in enumerate(data.draw(st.lists(row, min_size=1, max_size=6)))]
    conn.execute("truncate app.wide")
    inserted = TableSql("app", wide).insert(conn, wide.column_names, rows)()
    assert [bits(tuple(row)) for row in inserted.values()] == [bits(tuple(row)) for row in rows]
