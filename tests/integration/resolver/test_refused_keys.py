"""A key that Postgres can't take: its batch alone is refused, by name and in its first group, like one with such a
value; whoever stands beside it goes on in the same group."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import value_pb2

TYPES = """
create type colour as enum ('red', 'it''s', '');
create domain shade as colour;
create domain dark as shade check (value::text <> 'red');
create domain day as date;
create domain code as text constraint code_is_short check (length(value) < 5);
create domain token as uuid;
create domain small as smallint constraint small_is_even check (value % 2 = 0);
create function odd(n integer) returns boolean language plpgsql as
    $$ begin if n = 7 then raise exception 'no' using errcode = 'P0001'; end if; return true; end $$;
create domain asked as integer constraint asks check (odd(value));
"""


class Key(NamedTuple):
    """A type of a key, a value that it takes, and one that it can't take. ``looked_up``: the value fails where it is
    looked up, and not only where a row of it is to be stored."""

    type: str
    good: Any
    bad: Any
    sqlstate: str
    looked_up: bool = True
    outcome: str = "CONSTRAINT"


KEYS = [
    Key("colour", "red", "purple", "22P02"),
    Key("colour", "", 'pur"ple\\', "22P02"),
    Key("shade", "it's", "purple", "22P02"),
    Key("dark", "it's", "purple", "22P02"),
    Key("dark", "it's", "red", "23514", looked_up=False),
    Key("date", 1, 2**31 - 2, "22008"),
    Key("date", 1, -(2**31) + 1, "22008"),
    Key("day", 1, 2**31 - 2, "22008"),
    Key("time", 1, -1, "22008"),
    Key("time", 1, 86_400_000_001, "22008"),
    Key("timestamp", 1, -(2**63) + 1, "22008"),
    Key("timestamptz", 1, -(2**63) + 1, "22008"),
    Key("smallint", 1, 2**15, "22003", looked_up=False),
    Key("integer", 1, -(2**31) - 1, "22003", looked_up=False),
    Key("small", 2, 3, "23514", looked_up=False),
    Key("asked", 2, 7, "P0001", looked_up=False),
    Key("varchar(3)", "a", "long", "22001", looked_up=False),
    Key("code", "a", "longer", "23514", looked_up=False),
    Key("uuid", "0" * 8 + "-0000-0000-0000-" + "0" * 12, "no uuid", "", outcome="INVALID_VALUE"),
    Key("token", "0" * 8 + "-0000-0000-0000-" + "0" * 12, "0" * 32, "", outcome="INVALID_VALUE"),
]


def refused(rig: ResolverRig, batch_id: str, key: Key) -> None:
    verdict = rig.verdict(batch_id)
    assert verdict is not None
    assert (rig.outcome(batch_id), verdict.sqlstate) == (key.outcome, key.sqlstate)
    assert not key.looked_up or '"k"' in verdict.message, verdict.message
    assert key.outcome != "CONSTRAINT" or '"t"' in verdict.message, verdict.message
    assert key.sqlstate in verdict.message
    if key.looked_up and key.outcome == "CONSTRAINT":
        assert list(verdict.mutations[0].columns) == ["k"]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.type}: {key.bad}")
def test_a_key_that_postgres_can_not_take_is_refused_alone_and_at_once(make_rig: Any, key: Key) -> None:
    rig: ResolverRig = make_rig(
        f"{TYPES} create table t (k {key.type} primary key, a text); create table other (id text primary key)",
        {"t": None, "other": None},
    )
    nodes = [rig.node(f"{i}") for i in range(4)]
    bad = [nodes[0].insert("t", {"k": key.bad, "a": "x"})]
    good = [nodes[1].insert("t", {"k": key.good, "a": "x"}), nodes[2].insert("other", {"id": "1"})]
    bad.append(nodes[3].write(("insert", "other", [{"id": "2"}]), ("insert", "t", [{"k": key.bad}])))
    named = [nodes[0].update("t", {"k": key.bad, "a": "y"}), nodes[0].delete("t", {"k": key.bad})]
    good.append(nodes[3].insert("other", {"id": "3"}))
    rig.group()
    for one in [*bad, *(named if key.looked_up else ())]:
        refused(rig, one, key)
    if not key.looked_up:
        assert [rig.outcome(one) for one in named] == ["ROW_NOT_FOUND"] * 2
    assert [rig.outcome(one) for one in good] == [["APPLIED"]] * 3
    assert rig.rows("other", "id") == [("1",), ("3",)]
    assert len(rig.rows("t")) == 1


def test_a_key_of_several_columns_names_the_one_that_is_wrong(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        f"{TYPES} create table t (k colour, n int, day date, a text, primary key (n, day, k))", {"t": None}
    )
    a, b = rig.node("a"), rig.node("b")
    rows = [{"k": "red", "n": i, "day": i if i != 5 else 2**31 - 2} for i in range(9)]
    sick = a.insert("t", *rows)
    purple = a.delete("t", {"k": "purple", "n": 1, "day": 1})
    good = b.insert("t", {"k": "red", "n": 100, "day": 1})
    rig.group()
    verdicts = [rig.verdict(one) for one in (sick, purple)]
    assert [list(v.mutations[0].columns) for v in verdicts if v is not None] == [["day"], ["k"]]
    assert verdicts[0] is not None
    assert [v.WhichOneof("kind") for v in verdicts[0].mutations[0].key] == ["int64_value", "date_days", "string_value"]
    assert rig.outcome(good) == ["APPLIED"]


def test_a_foreign_key_to_such_a_key_is_a_value_like_any_other(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        f"{TYPES} create table p (k colour primary key);"
        " create table t (id text primary key, k colour references p (k))",
        {"p": None, "t": None},
    )
    a, b = rig.node("a"), rig.node("b")
    sent = [a.insert("p", {"k": "red"}), a.insert("t", {"id": "1", "k": "purple"}), b.insert("t", {"id": "2"})]
    rig.group()
    assert [rig.outcome(one) for one in sent] == [["APPLIED"], "CONSTRAINT", ["APPLIED"]]


def test_many_bad_keys_are_all_found_in_one_group(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(f"{TYPES} create table t (k colour primary key, a text)", {"t": None})
    nodes = [rig.node(f"{i}") for i in range(4)]
    bad = [nodes[i % 4].insert("t", *({"k": f"no {i} {j}"} for j in range(20))) for i in range(300)]
    good = nodes[0].insert("t", {"k": "red"})
    rig.group()
    assert {rig.outcome(one) for one in bad} == {"CONSTRAINT"}
    assert rig.outcome(good) == ["APPLIED"]


def test_a_moment_that_is_no_value_names_its_column_too(make_rig: Any) -> None:
    rig: ResolverRig = make_rig("create table t (id text primary key, day date, at time)", {"t": None})
    node = rig.node("a")
    bad = [
        node.insert("t", {"id": "1", "day": value_pb2.Value(date_days=2**31 - 2)}),
        node.insert("t", {"id": "2", "at": value_pb2.Value(time_us=-1)}),
    ]
    rig.group()
    verdicts = [rig.verdict(one) for one in bad]
    assert [(v.sqlstate, list(v.mutations[0].columns)) for v in verdicts if v is not None] == [
        ("22008", ["day"]),
        ("22008", ["at"]),
    ]
