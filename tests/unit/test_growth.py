"""By how much values grow where they are printed, known from their text and without printing them."""

from __future__ import annotations

import time

import pytest

from anabranch.values import Cell, Column, Kind
from anabranch.values.cells import Literal
from anabranch.values.growth import MAY_GROW, growth_of


def grown(column: Column, cell: Cell) -> int:
    growth = growth_of(column)
    return 0 if growth is None else growth.measure(cell)


NUMERIC = Column("n", Kind.DECIMAL, "numeric")
JSONB = Column("j", Kind.JSON, "jsonb")
RANGE = Column("r", Kind.LITERAL, "numrange")
OWN = Column("o", Kind.LITERAL, "app.pair")
NUMERICS = Column("a", Kind.ARRAY, "numeric[]", element_kind=Kind.DECIMAL)


@pytest.mark.parametrize(
    ("column", "cell", "expected"),
    [
        (NUMERIC, "1e131071", 131_071),
        (NUMERIC, "-1.5E+131070", 131_070),
        (NUMERIC, "1e1_31071", 131_071),
        (NUMERIC, "1e-16383", 16_383),
        (NUMERIC, "1e000000000000131071", 131_071),
        (NUMERIC, "1e" + "9" * 5_000, 131_072),
        (NUMERIC, "1e99", 0),
        (NUMERIC, "12345678901234567890.5", 0),
        (NUMERIC, "NaN", 0),
        (Column("n", Kind.DECIMAL, "app.money", base_type="numeric"), "1e1000", 1_000),
        (Column("n", Kind.DECIMAL, "numeric(12,2)"), "1e131071", 0),
        (Column("n", Kind.DECIMAL, "numeric(1000,900)"), "1", 899),
        (Column("n", Kind.DECIMAL, "numeric(1000,0)"), "1e900", 900),
        (JSONB, '[1e131071, {"a": -2.5E+1000}]', 132_071),
        (JSONB, '{"e": "1e131071", "\\"1e5000": "\\\\", "b": 1e2000}', 2_000),
        (JSONB, '"deadbeef1e131071"', 0),
        (Column("j", Kind.JSON, "json"), "[1e131071]", 0),
        (RANGE, "[1e131071,2e131071)", 262_142),
        (OWN, '(1e131071,"x 1e1000 y",fe80e1234,ab1e99999)', 132_071),
        (Column("o", Kind.LITERAL, "macaddr"), "08002b1e1234", 0),
        (NUMERICS, ("1e1000", None, ("1e1000", "1")), 2_000),
        (NUMERICS, Literal("[2:3]={1e1000,1e1000}"), 2_000),
        (Column("c", Kind.STRING, "character(1000)"), "x", 999),
        (Column("c", Kind.STRING, "character varying(1000)"), "x", 0),
        (Column("s", Kind.STRING, "text"), "1e131071", 0),
    ],
)
def test_growth_is_read_from_the_text(column: Column, cell: Cell, expected: int) -> None:
    assert grown(column, cell) == expected


def test_who_grows_is_known_from_a_payloads_bytes() -> None:
    assert MAY_GROW(b"\x0a\x081e131071")
    assert MAY_GROW(b"[1.E-0999]")
    assert not MAY_GROW(b"01HZY0000000000000000000AA 1e99 eeee e1234")


LONG = {
    "digits": "1" * 4_000_000 + "e100",
    "numbers": "1e100 " * 700_000,
    "small numbers": "1e0000 " * 700_000,
    "quotes": '"\\"' * 1_400_000,
    "backslashes": '"' + "\\" * 4_000_000 + "1e100",
    "exponent": "1e1" + "0" * 4_000_000 + "x",
    "underscores": "_" * 4_000_000,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_no_text_takes_longer_than_others_of_its_length(name: str) -> None:
    for column in (NUMERIC, JSONB, OWN):
        began = time.process_time()
        grown(column, LONG[name])
        assert time.process_time() - began < 3.0
