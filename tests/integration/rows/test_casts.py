"""Values of retyped columns are cast as an INSERT into the new column would cast them, each by itself."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.store.group.casts import CastCell, cast_cells
from anabranch.store.session.engine import Session
from anabranch.values import Cell, Column, Kind


def column(kind: Kind, postgres_type: str, **more: Any) -> Column:
    return Column("c", kind, postgres_type, **more)


INTEGER = column(Kind.INT64, "integer")
TEXT = column(Kind.STRING, "text")
CASTS: dict[str, tuple[Column, Column, list[Cell], list[Cell | CastCell]]] = {
    "a number gets the scale of its new type": (
        INTEGER,
        column(Kind.DECIMAL, "numeric(6,2)"),
        [45, None, 99_999],
        ["45.00", None, CastCell(None, "22003")],
    ),
    "a text without a cast for assignments goes by its text": (
        TEXT,
        INTEGER,
        ["42", "-1", "forty", ""],
        [42, -1, CastCell(None, "22P02"), CastCell(None, "22P02")],
    ),
    "what is too long is not cut": (
        INTEGER,
        column(Kind.STRING, "character varying(3)"),
        [123, 1234],
        ["123", CastCell(None, "22001")],
    ),
    "a moment becomes a day": (
        column(Kind.TIMESTAMP, "timestamp with time zone"),
        column(Kind.DATE, "date"),
        [1_767_323_045_000_000],
        [20_455],
    ),
    "a text becomes an array": (
        TEXT,
        column(Kind.ARRAY, "integer[]", element_kind=Kind.INT64),
        ["{1,NULL,3}", "1"],
        [(1, None, 3), CastCell(None, "22P02")],
    ),
    "an array becomes another one": (
        column(Kind.ARRAY, "integer[]", element_kind=Kind.INT64),
        column(Kind.ARRAY, "text[]", element_kind=Kind.STRING),
        [(1, None, 3), ()],
        [("1", None, "3"), ()],
    ),
    "a document becomes a number": (column(Kind.JSON, "jsonb"), INTEGER, ["5", "[5]"], [5, CastCell(None, "22P02")]),
    "a value of a type that is gone is its text": (column(Kind.STRING, "app.dropped"), TEXT, ["open"], ["open"]),
    "a label is looked for": (
        TEXT,
        column(Kind.STRING, "castable"),
        ["open", "shut"],
        ["open", CastCell(None, "22P02")],
    ),
}


@pytest.mark.parametrize(("former", "now", "given", "expected"), CASTS.values(), ids=CASTS.keys())
def test_values_are_cast_each_by_itself(
    conn: Session, former: Column, now: Column, given: list[Cell], expected: list[Cell | CastCell]
) -> None:
    with conn.transaction(force_rollback=True):
        conn.execute("create type castable as enum ('open')")
        made = cast_cells(conn, former, now, given)
        again = cast_cells(conn, former, now, given)
    assert made == again == [one if isinstance(one, CastCell) else CastCell(one) for one in expected]


def test_the_checks_of_a_domain_are_left_to_the_write(conn: Session) -> None:
    with conn.transaction(force_rollback=True):
        conn.execute("create domain positive as integer not null check (value > 0)")
        made = cast_cells(conn, TEXT, column(Kind.INT64, "positive", base_type="integer"), ["-5", None])
    assert made == [CastCell(-5), CastCell(None)]
