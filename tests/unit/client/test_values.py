"""Cells through a real SQLite table, and what an app may write."""

from __future__ import annotations

import math
import sqlite3
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.client import add_decimals
from anabranch.client.file.device_table import DeviceTable
from anabranch.testkit.cell_strategies import cells
from anabranch.values import Column, Kind, Table
from anabranch.values.calendar import OutOfRangeError, parse_date, parse_timestamp
from anabranch.values.canonical import RowEncoder
from anabranch.values.cells import Literal
from anabranch.values.postgres_text import element_parser
from anabranch.values.python import converter

ELEMENTS = [k for k in Kind if k is not Kind.ARRAY]
COLUMNS = [Column(f"c{k}", k, k.name.lower()) for k in ELEMENTS]
COLUMNS += [Column(f"a{k}", Kind.ARRAY, f"{k.name.lower()}[]", element_kind=k) for k in ELEMENTS]
TABLE = DeviceTable(Table("t", (Column("id", Kind.INT64, "bigint"), *COLUMNS), ("id",)))
ROWS = st.tuples(st.just(1), *(cells(c.kind, c.element_kind) for c in COLUMNS))


@pytest.mark.slow
@given(ROWS)
def test_every_cell_comes_back_from_sqlite_as_it_was(row: tuple[Any, ...]) -> None:
    with sqlite3.connect(":memory:") as conn:
        add_decimals(conn)
        conn.execute(TABLE.create_sql())
        conn.execute(TABLE.insert_sql, TABLE.codec.store(row))
        (stored,) = conn.execute(f"SELECT {TABLE.columns_sql} FROM t").fetchall()
    encoder = RowEncoder(TABLE.table)
    assert encoder.encode(TABLE.codec.load(stored)) == encoder.encode(row)
    assert TABLE.codec.same(stored, TABLE.codec.store(row))


@pytest.mark.slow
@given(ROWS)
def test_every_base_image_comes_back_as_it_was(row: tuple[Any, ...]) -> None:
    encoder = RowEncoder(TABLE.table)
    assert encoder.encode(TABLE.from_bytes(TABLE.to_bytes(row))) == encoder.encode(row)


@pytest.mark.slow
@given(ROWS)
def test_what_a_read_gives_a_write_takes(row: tuple[Any, ...]) -> None:
    for column, cell, stored in zip(COLUMNS, row[1:], TABLE.codec.store(row)[1:], strict=True):
        if stored is None or column.kind is Kind.LITERAL:
            continue
        again = converter(column)(stored)
        if column.kind in (Kind.DECIMAL, Kind.UUID):
            assert again == cell
        assert (
            TABLE.storers[TABLE.table.index[column.name]] is None
            or not isinstance(again, float | bool)
            or (again == cell or math.isnan(float(again)))
        )


def test_literals_come_back_as_literals() -> None:
    table = DeviceTable(
        Table(
            "t",
            (
                Column("id", Kind.STRING, "text"),
                Column("ts", Kind.TIMESTAMP, "timestamp without time zone"),
                Column("a", Kind.ARRAY, "integer[]", element_kind=Kind.INT64),
                Column("b", Kind.ARRAY, "timestamp[]", element_kind=Kind.TIMESTAMP),
            ),
            ("id",),
        )
    )
    late = Literal("294276-12-31 00:00:00")
    row = ("x", late, Literal("[0:1]={1,2}"), (late, 5, None))
    with sqlite3.connect(":memory:") as conn:
        conn.execute(table.create_sql())
        conn.execute(table.insert_sql, table.codec.store(row))
        (stored,) = conn.execute("SELECT * FROM t").fetchall()
    back = table.codec.load(stored)
    assert back == row
    assert [type(c) for c in back] == [str, Literal, Literal, tuple]
    again = converter(table.table.by_name["ts"])(stored[1])
    assert again == late
    assert type(again) is Literal


def column(kind: Kind, postgres_type: str, element: Kind | None = None) -> Column:
    return Column("c", kind, postgres_type, element_kind=element)


TIMESTAMPTZ = column(Kind.TIMESTAMP, "timestamp with time zone")
TIMESTAMP = column(Kind.TIMESTAMP, "timestamp without time zone")


@pytest.mark.parametrize(
    ("of", "value", "cell"),
    [
        (column(Kind.DECIMAL, "numeric"), Decimal("1E+50"), "1" + "0" * 50),
        (column(Kind.DECIMAL, "numeric"), Decimal("1.10"), "1.10"),
        (column(Kind.DECIMAL, "numeric"), "-0.00", "0.00"),
        (column(Kind.DECIMAL, "numeric"), 7, "7"),
        (column(Kind.DECIMAL, "numeric"), Decimal("NaN"), "NaN"),
        (TIMESTAMPTZ, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), -1),
        (TIMESTAMPTZ, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), -62135614800000000),
        (TIMESTAMPTZ, "infinity", 2**63 - 1),
        (TIMESTAMP, datetime(1970, 1, 1, 0, 0, 1), 1_000_000),  # noqa: DTZ001
        (column(Kind.DATE, "date"), date(1582, 10, 4), -141438),
        (column(Kind.TIME, "time"), time(0, 0, 1, 5), 1_000_005),
        (column(Kind.TIME, "time"), 86_400_000_000, 86_400_000_000),
        (column(Kind.JSON, "jsonb"), {"a": None}, '{"a": null}'),
        (column(Kind.JSON, "jsonb"), "null", "null"),
        (column(Kind.UUID, "uuid"), UUID(int=1), str(UUID(int=1))),
        (column(Kind.UUID, "uuid"), str(UUID(int=255)).upper(), str(UUID(int=255))),
        (column(Kind.BOOL, "boolean"), 1, True),
        (column(Kind.DOUBLE, "double precision"), 2**53, float(2**53)),
        (column(Kind.ARRAY, "text[]", Kind.STRING), ["", None, "NULL"], ("", None, "NULL")),
        (column(Kind.ARRAY, "text[]", Kind.STRING), [], ()),
        (column(Kind.ARRAY, "bigint[]", Kind.INT64), [[1, 2], [3, None]], ((1, 2), (3, None))),
        (column(Kind.ARRAY, "bigint[]", Kind.INT64), "[1,null]", (1, None)),
        (column(Kind.BYTES, "bytea"), memoryview(b"\0"), b"\0"),
    ],
)
def test_what_is_taken(of: Column, value: Any, cell: Any) -> None:
    taken = converter(of)(value)
    assert (type(taken), taken) == (type(cell), cell)


@pytest.mark.parametrize(
    ("of", "value", "why"),
    [
        (column(Kind.STRING, "text"), "a\0b", "NUL"),
        (column(Kind.STRING, "text"), "\ud83d", "lone surrogate"),
        (column(Kind.STRING, "text"), 5, "takes str, not int"),
        (column(Kind.INT64, "bigint"), 2**63, "outside"),
        (column(Kind.INT64, "smallint"), 32_768, "outside"),
        (column(Kind.INT64, "bigint"), True, "takes int, not bool"),
        (column(Kind.INT64, "bigint"), 1.0, "takes int, not float"),
        (column(Kind.DECIMAL, "numeric"), 1.5, "takes Decimal"),
        (column(Kind.DECIMAL, "numeric"), "1.2.3", "is no number"),
        (column(Kind.DECIMAL, "numeric"), Decimal("1E+200000"), "more digits"),
        (column(Kind.DOUBLE, "double precision"), 2**53 + 1, "no float holds"),
        (column(Kind.BOOL, "boolean"), 2, "takes bool"),
        (TIMESTAMPTZ, datetime(2024, 1, 1), "with a time zone"),  # noqa: DTZ001
        (TIMESTAMP, datetime(2024, 1, 1, tzinfo=UTC), "without a time zone"),
        (column(Kind.DATE, "date"), datetime(2024, 1, 1, tzinfo=UTC), "takes date"),
        (column(Kind.TIME, "time"), time(1, tzinfo=UTC), "without a time zone"),
        (column(Kind.JSON, "json"), "{", "no JSON"),
        (column(Kind.JSON, "json"), {"a": math.nan}, "not JSON compliant"),
        (column(Kind.JSON, "json"), object(), "no JSON form"),
        (column(Kind.UUID, "uuid"), "nope", "no UUID"),
        (column(Kind.ARRAY, "bigint[]", Kind.INT64), [[1], [2, 3]], "differ in length"),
        (column(Kind.ARRAY, "bigint[]", Kind.INT64), [[]], "empty arrays"),
        (column(Kind.ARRAY, "bigint[]", Kind.INT64), ["x"], "takes int"),
        (column(Kind.BYTES, "bytea"), "text", "takes bytes"),
    ],
)
def test_what_is_refused_and_why(of: Column, value: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        converter(of)(value)


@given(st.dates(), st.times())
def test_dates_and_timestamps_are_read_as_python_does(day: date, clock: time) -> None:
    days = day.toordinal() - date(1970, 1, 1).toordinal()
    assert parse_date(day.isoformat()) == days
    us = ((clock.hour * 60 + clock.minute) * 60 + clock.second) * 1_000_000 + clock.microsecond
    assert parse_timestamp(f"{day.isoformat()} {clock.isoformat()}+00") == days * 86_400_000_000 + us


def test_texts_beyond_python() -> None:
    assert parse_date("4714-11-24 BC") == -2_440_588
    assert parse_date("5874897-12-31") == 2_145_042_905
    assert parse_timestamp("infinity") == 2**63 - 1
    assert isinstance(parse_timestamp("294276-12-31 00:00:00"), Literal)
    with pytest.raises(OutOfRangeError):
        parse_timestamp("294277-01-10 00:00:00")
    assert element_parser(Kind.BYTES)("\\xdead") == b"\xde\xad"
    with pytest.raises(ValueError, match="not a date"):
        parse_date("yesterday")


def test_a_moment_beyond_64_bits_is_taken_as_postgres_prints_it() -> None:
    zoned, wall = (
        Column("c", Kind.TIMESTAMP, f"timestamp {with_}") for with_ in ("with time zone", "without time zone")
    )
    for text in ("294270-01-01", "294270-01-01T00:00", "294270-01-01 01:00:00+01"):
        assert converter(zoned)(text) == Literal("294270-01-01 00:00:00+00")
    assert converter(wall)("294270-01-01 01:00:00+01") == Literal("294270-01-01 01:00:00")
    for near in ("2024-01-01 00:00:00", "294277-01-01", "now"):
        with pytest.raises(ValueError, match="takes datetime"):
            converter(zoned)(near)
