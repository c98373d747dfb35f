"""A key's text and its cells are two forms of one thing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.values import Cell, Column, Kind, Table, key_cells, key_text
from anabranch.values.cells import DATE_INFINITY, TIMESTAMP_MINUS_INFINITY, Literal

CELLS: dict[Kind, st.SearchStrategy[Cell]] = {
    Kind.BOOL: st.booleans(),
    Kind.INT64: st.integers(-(2**63), 2**63 - 1),
    Kind.STRING: st.text() | st.sampled_from(["t", "null", '["a"]', "", "1"]),
    Kind.BYTES: st.binary(),
    Kind.TIMESTAMP: st.integers(-(2**63), 2**63 - 1) | st.just(Literal("294270-01-01 00:00:00+00")),
    Kind.DATE: st.integers(-(2**31), 2**31 - 1),
    Kind.TIME: st.integers(0, 86_400_000_000),
    Kind.UUID: st.uuids().map(str),
}


def table(kinds: list[Kind]) -> Table:
    columns = tuple(Column(f"k{i}", kind, "any") for i, kind in enumerate(kinds))
    return Table("t", (*columns, Column("v", Kind.STRING, "text")), tuple(column.name for column in columns))


@given(
    st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=4).flatmap(
        lambda kinds: st.tuples(st.just(kinds), st.tuples(*(CELLS[kind] for kind in kinds)))
    )
)
def test_the_cells_come_back_from_the_text(case: tuple[list[Kind], tuple[Cell, ...]]) -> None:
    kinds, key = case
    found = key_cells(table(kinds), key_text(key))
    assert found == key
    assert list(map(type, found)) == list(map(type, key))


def test_what_they_are() -> None:
    assert key_cells(table([Kind.DATE, Kind.TIMESTAMP]), f'["{DATE_INFINITY}","{TIMESTAMP_MINUS_INFINITY}"]') == (
        DATE_INFINITY,
        TIMESTAMP_MINUS_INFINITY,
    )


@pytest.mark.parametrize(
    ("text", "why"), [("[]", "shorter"), ('["a","b","c"]', "longer"), ("a", "Expecting value"), ("", "Expecting value")]
)
def test_a_text_that_is_no_key_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        key_cells(table([Kind.STRING, Kind.STRING]), text)
