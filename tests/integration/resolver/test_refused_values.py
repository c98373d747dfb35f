"""Values that no column can take: refused by name, for their batch alone, and never a fault of the resolver."""

from __future__ import annotations

import random
from typing import Any

import pytest

from anabranch import limits
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import value_pb2

TABLE = "create table t (id text primary key, at timestamptz, many integer[], words text[])"
MOMENTS = "create table t (at timestamptz primary key, a text)"


def message(rig: ResolverRig, batch_id: str) -> str:
    verdict = rig.verdict(batch_id)
    assert verdict is not None
    return verdict.message


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("at", value_pb2.Value(text_literal="2020-01-01\0")),
        ("many", value_pb2.Value(text_literal="{1}\0")),
        (
            "words",
            value_pb2.Value(array_value=value_pb2.ArrayValue(elements=[value_pb2.Value(string_value="a\0b")])),
        ),
    ],
)
def test_nul_in_any_form_of_text_is_refused_by_name(make_rig: Any, column: str, value: value_pb2.Value) -> None:
    rig: ResolverRig = make_rig(TABLE, {"t": None})
    a, b = rig.node("a"), rig.node("b")
    bad = a.insert("t", {"id": "bad", column: value})
    good = b.insert("t", {"id": "good"})
    rig.group()
    assert rig.outcome(bad) == "NUL_IN_TEXT"
    assert column in message(rig, bad)
    assert rig.outcome(good) == ["APPLIED"]


def test_a_key_is_never_a_moment_in_words(make_rig: Any) -> None:
    """Its text would not be the one that Postgres prints, and words have no order among numbers."""
    rig: ResolverRig = make_rig(MOMENTS, {"t": None})
    a, b = rig.node("a"), rig.node("b")
    words = value_pb2.Value(text_literal="294277-01-01 00:00:00+00")
    bad = [a.insert("t", {"at": words, "a": "x"}), a.delete("t", {"at": words})]
    bad.append(a.insert("t", {"at": words}, {"at": 7}))
    good = b.insert("t", {"at": -1, "a": "y"})
    rig.group()
    assert [rig.outcome(one) for one in bad] == ["INVALID_VALUE"] * 3
    assert all('"at"' in message(rig, one) for one in bad)
    assert rig.outcome(good) == ["APPLIED"]


def test_an_element_without_a_value_does_not_make_its_column_one_that_is_not_given(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(TABLE, {"t": None})
    a = rig.node("a")
    hole = value_pb2.Value(
        array_value=value_pb2.ArrayValue(elements=[value_pb2.Value(int64_value=1), value_pb2.Value()])
    )
    bad = a.insert("t", {"id": "bad", "many": hole})
    rig.group()
    assert rig.outcome(bad) == "INVALID_VALUE"
    assert '"many"' in message(rig, bad)


@pytest.mark.parametrize("kind", ["bytea", "text"])
def test_a_key_that_no_index_takes_is_refused_before_it_is_run_into(make_rig: Any, kind: str) -> None:
    """Postgres takes 2,000 bytes as a key, but not the text by which the row would be known."""
    rig: ResolverRig = make_rig(f"create table t (id {kind} primary key, a text)", {"t": None})
    a, b = rig.node("a"), rig.node("b")
    long, short = (random.Random(1).randbytes(2_000), b"x") if kind == "bytea" else ("\U0001f600" * 651, "x")
    bad = [a.insert("t", {"id": long, "a": "x"}), a.delete("t", {"id": long})]
    good = b.insert("t", {"id": short})
    rig.group()
    assert [rig.outcome(one) for one in bad] == ["LIMIT_EXCEEDED", "ROW_NOT_FOUND"]
    assert f"{4_000 if kind == 'bytea' else 2_604} bytes" in message(rig, bad[0])
    assert rig.outcome(good) == ["APPLIED"]


def test_the_longest_key_is_taken(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table t (id bytea primary key, a text)", {"t": None})
    a = rig.node("a")
    longest = random.Random(1).randbytes(limits.MAX_KEY_BYTES // 2)
    sent = [a.update("t", {"id": longest, "a": "x"}), a.insert("t", {"id": longest, "a": "y"})]
    rig.group()
    assert [rig.outcome(one) for one in sent] == ["ROW_NOT_FOUND", ["APPLIED"]]
