"""A key that somebody writes: as Postgres prints it, or as the number that stands in the log."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from anabranch.store.cells.cells_of_texts import key_of_text
from anabranch.store.session.engine import Session, connect
from anabranch.values import Cell, Column, Kind, Table
from anabranch.values.cells import Literal

KEYS: list[tuple[Kind, str, str, Cell]] = [
    (Kind.TIMESTAMP, "timestamp with time zone", "1000000", 1_000_000),
    (Kind.TIMESTAMP, "timestamp with time zone", "-63517824000000000", -63_517_824_000_000_000),
    (Kind.TIMESTAMP, "timestamp with time zone", str(2**63 - 1), 2**63 - 1),
    (Kind.TIMESTAMP, "timestamp with time zone", str(-(2**63)), -(2**63)),
    (Kind.TIMESTAMP, "timestamp with time zone", "9223798000000000000", Literal("294260-07-10 07:06:40+00")),
    (Kind.TIMESTAMP, "timestamp without time zone", "9223798000000000000", Literal("294260-07-10 07:06:40")),
    (Kind.TIMESTAMP, "timestamp with time zone", "294260-07-10 07:06:40+00", Literal("294260-07-10 07:06:40+00")),
    (Kind.DATE, "date", "10", 10),
    (Kind.DATE, "date", str(2**31 - 1), 2**31 - 1),
    (Kind.DATE, "date", "-735160", -735_160),
    (Kind.TIME, "time without time zone", "86400000000", 86_400_000_000),
    (Kind.BYTES, "bytea", "00ff", b"\x00\xff"),
    (Kind.INT64, "bigint", "-5", -5),
]
NONE = [
    (Kind.TIMESTAMP, "timestamp with time zone", str(2**64)),
    (Kind.DATE, "date", str(2**40)),
    (Kind.TIME, "time without time zone", "86400000001"),
    (Kind.TIME, "time without time zone", "-1"),
    (Kind.INT64, "bigint", str(2**64)),
]


@pytest.fixture
def conn(database_url: str) -> Iterator[Session]:
    with connect(database_url, application_name="test", autocommit=True) as one:
        yield one


def table(kind: Kind, postgres_type: str, *, several: bool = False) -> Table:
    columns = (Column("k", kind, postgres_type), Column("p", Kind.STRING, "text"))
    return Table("t", columns, ("p", "k") if several else ("k",))


def test_a_key_is_known_by_its_text_and_by_its_number(conn: Session) -> None:
    for kind, postgres_type, text, cell in KEYS:
        assert key_of_text(conn, table(kind, postgres_type), text) == (cell,), (postgres_type, text)
        of_two = key_of_text(conn, table(kind, postgres_type, several=True), json.dumps(["a", text]))
        assert of_two == ("a", cell), (postgres_type, text)
        assert type(of_two[1]) is type(cell)


@pytest.mark.parametrize(("kind", "postgres_type", "text"), NONE)
def test_a_number_that_stands_for_no_value_is_no_key(conn: Session, kind: Kind, postgres_type: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"out of range|invalid input"):
        key_of_text(conn, table(kind, postgres_type), text)
