"""Arrays in Postgres's binary format, read back by a decoder written here; texts of dates and arrays."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.store.cells.binary_cells import bare_type
from anabranch.testkit.cell_strategies import arrays, scalars, texts
from anabranch.values import Kind, postgres_binary
from anabranch.values.calendar import (
    FIRST_DAY,
    LAST_DAY,
    cell_timestamp_text,
    date_of,
    date_text,
    days_of,
    parse_date,
    parse_timestamp,
)
from anabranch.values.cells import DATE_INFINITY, DATE_MINUS_INFINITY, TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY
from anabranch.values.postgres_binary import NulInTextError, Parameter
from anabranch.values.postgres_text import (
    array_parser,
    array_printer,
)


def elements(parameter: Parameter) -> tuple[int, int, list[bytes | None]]:
    """Oid of the elements, the flag for NULLs, and the elements' bytes."""
    data = parameter.data
    dimensions, has_null, element = struct.unpack_from(">iiI", data)
    assert parameter.binary
    if dimensions == 0:
        assert len(data) == 12
        return element, has_null, []
    count, lower = struct.unpack_from(">ii", data, 12)
    assert (dimensions, lower) == (1, 1)
    found: list[bytes | None] = []
    at = 20
    for _ in range(count):
        (size,) = struct.unpack_from(">i", data, at)
        at += 4
        if size < 0:
            assert size == -1
            found.append(None)
        else:
            found.append(data[at : at + size])
            at += size
    assert at == len(data)
    return element, has_null, found


def raw(code: str) -> Callable[[Any], bytes]:
    return lambda cell: struct.pack(f">{code}", cell)


EPOCH = 946_684_800_000_000
BUILDERS: list[tuple[str, Any, int, st.SearchStrategy[Any], Callable[[Any], bytes]]] = [
    ("int8", postgres_binary.int8_array, 20, scalars(Kind.INT64), raw("q")),
    ("float8", postgres_binary.float8_array, 701, scalars(Kind.DOUBLE), raw("d")),
    ("bool", postgres_binary.bool_array, 16, st.booleans(), raw("?")),
    ("bytea", postgres_binary.bytea_array, 17, st.binary() | st.binary(min_size=1020, max_size=1030), bytes),
    (
        "text",
        lambda cells: postgres_binary.text_array(cells, "c"),
        25,
        texts | st.text("ab", min_size=1020, max_size=1030) | st.text("a\u00e9", max_size=5),
        str.encode,
    ),
    ("time", postgres_binary.time_array, 1083, scalars(Kind.TIME), raw("q")),
    (
        "timestamptz",
        lambda cells: postgres_binary.timestamp_array(cells, zone=True),
        1184,
        st.integers(-(2**62), 2**63 - 2),
        lambda cell: struct.pack(">q", cell - EPOCH),
    ),
    (
        "timestamp",
        lambda cells: postgres_binary.timestamp_array(cells, zone=False),
        1114,
        st.integers(-(2**62), 2**63 - 2),
        lambda cell: struct.pack(">q", cell - EPOCH),
    ),
    (
        "date",
        postgres_binary.date_array,
        1082,
        st.integers(FIRST_DAY, LAST_DAY),
        lambda cell: struct.pack(">i", cell - 10_957),
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("build", "oid", "cells", "expected"), [b[1:] for b in BUILDERS], ids=[b[0] for b in BUILDERS])
@given(data=st.data())
def test_an_array_holds_its_elements(
    build: Any, oid: int, cells: st.SearchStrategy[Any], expected: Callable[[Any], bytes], data: st.DataObject
) -> None:
    column = data.draw(st.lists(cells) | st.lists(cells | st.none()))
    for drawn in (column, tuple(column)):
        element, has_null, found = elements(build(drawn))
        assert element == oid
        assert found == [None if cell is None else expected(cell) for cell in column]
        assert has_null == (None in column)


@pytest.mark.parametrize(
    ("build", "cells", "expected"), [(b[1], b[3], b[4]) for b in BUILDERS], ids=[b[0] for b in BUILDERS]
)
@given(data=st.data())
def test_an_array_of_one_value_holds_it_as_often_as_given(
    build: Any, cells: st.SearchStrategy[Any], expected: Callable[[Any], bytes], data: st.DataObject
) -> None:
    cell, count = data.draw(cells | st.none()), data.draw(st.integers(1, 5))
    other = data.draw(cells)
    _, has_null, found = elements(build([cell] * count))
    assert found == [None if cell is None else expected(cell)] * count
    assert has_null == (cell is None)
    # Equal ends do not make it constant.
    _, _, found = elements(build([cell, other, cell]))
    assert found == [None if c is None else expected(c) for c in (cell, other, cell)]


def test_zeros_keep_their_signs_among_equals() -> None:
    zero = 0.0
    _, _, found = elements(postgres_binary.float8_array([zero, -0.0, zero]))
    assert found == [struct.pack(">d", number) for number in (0.0, -0.0, 0.0)]


def test_infinities_stay_and_no_other_value_becomes_one() -> None:
    _, _, moved = elements(
        postgres_binary.timestamp_array(
            [TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, TIMESTAMP_MINUS_INFINITY + 1, TIMESTAMP_INFINITY - 1],
            zone=True,
        )
    )
    numbers = [struct.unpack(">q", cell)[0] for cell in moved if cell is not None]
    assert numbers == [2**63 - 1, -(2**63), -(2**63) + 1, 2**63 - 2 - EPOCH]
    _, _, days = elements(postgres_binary.date_array([DATE_INFINITY, DATE_MINUS_INFINITY, DATE_MINUS_INFINITY + 1]))
    assert [struct.unpack(">i", day)[0] for day in days if day is not None] == [2**31 - 1, -(2**31), -(2**31) + 1]


@pytest.mark.parametrize("cells", [["a\0"], ["ok", None, "\0"], ["x" * 2_000 + "\0"], ["é\0"]])
def test_nul_is_refused_by_the_columns_name(cells: list[str | None]) -> None:
    for build in (postgres_binary.text_array, postgres_binary.typed_text_array):
        with pytest.raises(NulInTextError, match='column "note"'):
            build(cells, "note")


@given(st.dates())
def test_dates_print_as_the_calendar_has_them(day: dt.date) -> None:
    days = day.toordinal() - dt.date(1970, 1, 1).toordinal()
    assert date_text(days) == day.isoformat()
    assert date_of(days) == (day.year, day.month, day.day)
    assert days_of(day.year, day.month, day.day) == days


@given(st.integers(FIRST_DAY - 1_000_000, LAST_DAY + 1_000_000))
def test_dates_follow_one_another(days: int) -> None:
    year, month, day = date_of(days)
    assert days_of(year, month, day) == days
    tomorrow = date_of(days + 1)
    assert tomorrow in {
        (year, month, day + 1),
        (year, month + 1, 1),
        (year + 1, 1, 1),
    }
    assert tomorrow > (year, month, day)


@given(st.datetimes())
def test_timestamps_print_as_the_calendar_has_them(moment: dt.datetime) -> None:
    us = (moment - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)  # noqa: DTZ001 - a wall clock's own zero
    text = cell_timestamp_text(us, zone=False)
    assert dt.datetime.fromisoformat(text.ljust(26, "0") if "." in text else text) == moment
    assert not (("." in text) and text.endswith("0"))
    assert cell_timestamp_text(us, zone=True) == text + "+00"


@given(scalars(Kind.TIMESTAMP), scalars(Kind.DATE), st.booleans())
def test_texts_read_back(us: int, days: int, zone: bool) -> None:
    assert parse_timestamp(cell_timestamp_text(us, zone=zone)) == us
    assert parse_date(date_text(days)) == days


@pytest.mark.parametrize("text", ["", "yesterday", "2020-01-01x", "01-02-2020", "2020-01-01 00:00:00+1", "10:00:00"])
def test_a_text_that_postgres_would_not_print_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a date or time"):
        parse_timestamp(text)


@given(arrays(Kind.STRING))
def test_an_arrays_text_reads_back(cell: tuple[Any, ...]) -> None:
    assert array_parser(Kind.STRING)(array_printer(Kind.STRING)(cell)) == cell


@pytest.mark.parametrize(
    ("postgres_type", "bare"),
    [
        ("numeric(5,2)", "numeric"),
        ("numeric(5,-2)[]", "numeric[]"),
        ("character varying(10)", "character varying"),
        ("character(3)[]", "bpchar[]"),
        ("bit(3)", '"bit"'),
        ("bit varying(3)", "bit varying"),
        ("interval day to second(3)", "interval day to second"),
        ("time(3) with time zone", "time with time zone"),
        ("timestamp(0) without time zone[]", "timestamp without time zone[]"),
        ('app."we(ird) ""x"" (1)"', 'app."we(ird) ""x"" (1)"'),
        ('public."geo.m"(Point,4326)', 'public."geo.m"'),
        ("jsonb", "jsonb"),
    ],
)
def test_a_type_without_its_modifier(postgres_type: str, bare: str) -> None:
    assert bare_type(postgres_type) == bare
