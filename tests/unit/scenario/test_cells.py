"""Values of a story as an app would hand them over."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, cast

import pytest

from anabranch.scenario.cells import to_write
from anabranch.scenario.values import Json
from anabranch.store.session.engine import Session
from anabranch.values import Column, Kind

# None of these columns asks Postgres what a value is.
NOBODY = cast(Session, None)


@pytest.mark.parametrize(
    ("kind", "postgres_type", "value", "written"),
    [
        (Kind.LITERAL, "interval[]", ["1 mon", None, "30 days"], '{"1 mon",NULL,"30 days"}'),
        (Kind.LITERAL, "inet[]", [], "{}"),
        (Kind.LITERAL, "oid", 42, "42"),
        (Kind.LITERAL, "interval", "1 mon", "1 mon"),
        (Kind.JSON, "jsonb", {"a": [1, None]}, '{"a": [1, null]}'),
        (Kind.JSON, "jsonb", Json(None), "null"),
        (Kind.JSON, "jsonb", b"\x00", b"\x00"),
        (Kind.DECIMAL, "numeric", 0.1, Decimal("0.1")),
        (Kind.BOOL, "boolean", "yes", True),
        (Kind.STRING, "text", None, None),
    ],
)
def test_what_a_column_is_given(kind: Kind, postgres_type: str, value: Any, written: Any) -> None:
    given = to_write(NOBODY, Column("c", kind, postgres_type), value)
    assert given == written
    assert type(given) is type(written)
