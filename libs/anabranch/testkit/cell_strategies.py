"""Hypothesis strategies for cells: every kind, out to the limits of what Postgres stores."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from anabranch.values import Kind
from anabranch.values.calendar import DAY_US, FIRST_DAY, LAST_DAY
from anabranch.values.cells import DATE_INFINITY, DATE_MINUS_INFINITY, TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
_odd_texts = st.sampled_from(["", "NULL", "null", '"', "\\", "{}", ",", " a ", "a\nb", "e\u0301", "😀", "'"])
_json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
_digits = st.text("0123456789", min_size=1, max_size=30)
_numbers = st.builds(
    lambda sign, whole, fraction: (
        f"{sign}{int(whole)}{'.' + fraction if fraction else ''}"
        if int(whole + fraction)
        else "0" + ("." + fraction if fraction else "")
    ),
    st.sampled_from(["", "-"]),
    _digits,
    st.just("") | _digits,
)

_SCALARS: dict[Kind, st.SearchStrategy[Any]] = {
    Kind.BOOL: st.booleans(),
    Kind.INT64: st.integers(-(2**63), 2**63 - 1) | st.integers(-300, 300),
    Kind.DOUBLE: st.floats() | st.sampled_from([-0.0, 5e-324, float("nan")]),
    Kind.STRING: texts | _odd_texts,
    Kind.BYTES: st.binary(max_size=20),
    Kind.DECIMAL: _numbers | st.just("NaN"),
    Kind.TIMESTAMP: st.sampled_from([TIMESTAMP_INFINITY, TIMESTAMP_MINUS_INFINITY, -1, 0])
    | st.integers(FIRST_DAY * DAY_US, TIMESTAMP_INFINITY - 1)
    | st.integers(-(2**55), 2**55),
    Kind.DATE: st.sampled_from([DATE_INFINITY, DATE_MINUS_INFINITY, -1, 0]) | st.integers(FIRST_DAY, LAST_DAY),
    Kind.TIME: st.integers(0, DAY_US),
    Kind.JSON: st.builds(json.dumps, _json_values),
    Kind.UUID: st.builds(str, st.uuids()),
    Kind.LITERAL: texts,
}


def scalars(kind: Kind) -> st.SearchStrategy[Any]:
    """Cells of a kind that is no array; never NULL."""
    return _SCALARS[kind]


def arrays(element: Kind) -> st.SearchStrategy[Any]:
    """Cells of arrays of one and two dimensions, with NULLs among the elements; never NULL itself."""
    cell = st.none() | scalars(element)
    flat = st.lists(cell, max_size=4).map(tuple)

    def rectangle(width: int) -> st.SearchStrategy[Any]:
        row = st.lists(cell, min_size=width, max_size=width).map(tuple)
        return st.lists(row, min_size=1, max_size=3).map(tuple)

    return flat | st.integers(1, 3).flatmap(rectangle)


def cells(kind: Kind, element: Kind | None = None) -> st.SearchStrategy[Any]:
    """Cells of any kind, NULL included."""
    return st.none() | (arrays(element or Kind.STRING) if kind is Kind.ARRAY else scalars(kind))
