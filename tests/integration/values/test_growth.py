"""Values grow in a real Postgres by no more than was read from their texts, and by hardly less."""

from __future__ import annotations

import pytest

from anabranch.store.session.engine import Session
from anabranch.values import Column, Kind
from anabranch.values.growth import growth_of, numeric_growth

NUMBERS = [
    "1e131071",
    "-1.5E+131070",
    "1e-16383",
    "123.456e1000",
    "1e-1000",
    "0.0001e200",
    "5e100",
    "99",
    "1e99",
    "NaN",
]
CASES: list[tuple[Column, str]] = [
    *((Column("n", Kind.DECIMAL, "numeric"), number) for number in NUMBERS),
    *((Column("n", Kind.DECIMAL, "numeric(1000,900)"), number) for number in ("1", "0.5", "1e99")),
    *((Column("j", Kind.JSON, "jsonb"), f'{{"1e9999": [{n}, "{n}"]}}') for n in NUMBERS if n != "NaN"),
    *((Column("j", Kind.JSON, "json"), f"[{n}]") for n in NUMBERS if n != "NaN"),
    *((Column("r", Kind.LITERAL, "numrange"), f"[{n},]") for n in NUMBERS),
    *((Column("r", Kind.LITERAL, "nummultirange"), f"{{[{n},]}}") for n in NUMBERS),
    (Column("p", Kind.LITERAL, "jsonpath"), "$.a ? (@ > 1e131071)"),
    (Column("c", Kind.STRING, "character(5000)"), "x"),
]


@pytest.mark.parametrize(("column", "text"), CASES, ids=lambda value: str(value)[:40])
def test_a_value_grows_as_far_as_its_text_says(session: Session, column: Column, text: str) -> None:
    with session.transaction():
        session.execute(f"create temporary table t (v {column.postgres_type}) on commit drop".encode())
        session.execute(f"insert into t values (%s::text::{column.postgres_type})".encode(), [text])
        [(printed,)] = session.execute("select octet_length(concat(v)) from t")
    growth = growth_of(column)
    measured = 0 if growth is None else growth.measure(text)
    # Exponents of less than three digits are not looked at.
    assert printed <= len(text) + measured + 220
    assert measured <= max(0, printed - len(text)) + 20


@pytest.mark.parametrize("number", NUMBERS)
def test_a_numeric_as_it_is_sent_says_it_too(session: Session, number: str) -> None:
    [(image, printed)] = session.execute(
        "select numeric_send(n), octet_length(n::text) from (select %s::text::numeric) t (n)", [number]
    )
    growth = numeric_growth(image)
    assert growth >= printed - len(image) - 6
    assert growth <= max(0, printed - len(image)) + 8
