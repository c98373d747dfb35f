"""A write that the server would surely refuse is refused where it is made; one that it takes, or may take, is not."""

from __future__ import annotations

import math
import queue
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from anabranch import limits
from anabranch.client import State, SyncedDb
from anabranch.client.writes.sure import SurelyRefusedError, sure_of
from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect
from anabranch.testkit.waiting import until
from anabranch.v1 import snapshot_pb2
from anabranch.values import Column, Kind
from anabranch.values.python import converter

S, N, L, A = Kind.STRING, Kind.DECIMAL, Kind.LITERAL, Kind.ARRAY
VALUES: list[tuple[str, Kind, Kind | None, list[Any]]] = [
    (
        "character varying(3)",
        S,
        None,
        ["", "abc", "abcd", "abc  ", "ab   d", "äöü", "äöüß", "😀😀😀", "😀😀😀😀"],
    ),
    ("character(3)", S, None, ["", "a", "abc", "abcd", "abc   ", "😀😀😀😀", "a   b"]),
    ("bit(3)", L, None, ["101", "10", "1011", "", "b101"]),
    ("bit varying(3)", L, None, ["101", "10", "1011", ""]),
    (
        "numeric(5,2)",
        N,
        None,
        [
            "0",
            "999.99",
            "-999.99",
            "999.994",
            "999.995",
            "-999.995",
            "1000",
            "NaN",
            "Infinity",
            "-Infinity",
            "9" * 20,
            "999." + "9" * 300,
        ],
    ),
    ("numeric(30,10)", N, None, ["9" * 20 + "." + "9" * 10, "9" * 20 + "." + "9" * 11, "-" + "9" * 20, "1" + "0" * 20]),
    ("numeric(3,0)", N, None, ["999", "999.4", "999.5", "-999.5", "1000"]),
    ("numeric", N, None, ["NaN", "Infinity", "1" + "0" * 5000]),
    ("real", Kind.DOUBLE, None, [1e38, 3.4028234e38, 3.4028236e38, 1e39, -1e300, math.inf, math.nan, 1e-60]),
    ("date", Kind.DATE, None, [0, -2440588, -2440589, 2145042905, 2145042906, "infinity", "-infinity"]),
    ("timestamp without time zone", Kind.TIMESTAMP, None, [0, -210866803200000000, -210866803300000000, "infinity"]),
    ("mood", S, None, ["sad", "Very Happy", "glad", "SAD", "", "sad "]),
    ("character varying(3)[]", A, S, [["abc", None], ["abc", "abcd"], [], [["abc"], ["abcd"]]]),
    ("numeric(5,2)[]", A, N, [[Decimal("1.5")], [Decimal(1), Decimal(1000)]]),
    ("mood[]", A, S, [["sad", None], ["sad", "glad"], []]),
    (
        "json",
        Kind.JSON,
        None,
        ['{"a": NaN}', '"\\u0000"', '"\\ud800"', '"\\\\u0000"', "[1, Infinity]", "{"],
    ),
    (
        "jsonb",
        Kind.JSON,
        None,
        ['{"a": NaN}', '"\\u0000"', '{"\\u0000": 1}', '"\\ud800"', '"\\\\u0000"', '"\\ud83d\\ude00"'],
    ),
    ("smallint", Kind.INT64, None, [32767, 32768, -32769]),
    ("integer[]", A, Kind.INT64, [[[[[[[1]]]]]], [[[[[[[1]]]]]]]]),
]
LABELS = ("sad", "ok", "Very Happy")


def refused_here(column: Column, labels: tuple[str, ...], value: Any) -> bool:
    told = snapshot_pb2.Table(name="t", columns=[snapshot_pb2.Column(name="c", enum_labels=labels)])
    try:
        cell = converter(column)(value)
        sure = sure_of(told, (column,)).get("c")
        if sure is not None and sure.judge is not None:
            sure.judge(cell)
    except ValueError:
        return True
    return False


_AS_TEXT = {Kind.DATE: "date '1970-01-01' + %s::int", Kind.TIMESTAMP: "timestamp '1970-01-01' + %s * interval '1 us'"}


@pytest.mark.parametrize(("postgres_type", "kind", "element", "values"), VALUES, ids=[v[0] for v in VALUES])
def test_what_is_refused_here_is_what_assignment_refuses(
    database_url: str, postgres_type: str, kind: Kind, element: Kind | None, values: list[Any]
) -> None:
    column = Column("c", kind, postgres_type, element_kind=element)
    labels = LABELS if postgres_type.startswith("mood") else ()
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("create type mood as enum ('sad', 'ok', 'Very Happy')")
        conn.execute(f"create table t (c {postgres_type})".encode())
        for value in values:
            how = _AS_TEXT[kind] if kind in _AS_TEXT and isinstance(value, int) else "%s"
            try:
                conn.execute(f"insert into t values ({how})".encode(), (value,))
                there = False
            except psycopg.Error:
                there = True
            assert refused_here(column, labels, value) is there, value


TABLES = {
    "t": "id text primary key, needed text not null, filled text not null default 'x', label varchar(6), "
    "price numeric(5,2), mood mood, moods mood[], flags flags, no bigint generated always as identity, nr serial",
    "watched": "id text primary key, needed text not null, label varchar(3)",
    "judged": "id text primary key, label varchar(3)",
}
SETUP = [
    "create function fill() returns trigger language plpgsql as "
    "$f$ begin new.needed := coalesce(new.needed, 'filled'); return new; end $f$",
    "create trigger fill before insert or update on watched for each row execute function fill()",
]


@pytest.fixture
def here(place: Any) -> Any:
    made = place({"other": "id text primary key"})
    made.sql("create type mood as enum ('sad', 'ok')")
    made.sql("create domain flags as varchar(2)")
    for name, columns in TABLES.items():
        made.sql(f"create table {name} ({columns})")
    for statement in SETUP:
        made.sql(statement)
    return made


@pytest.fixture
def a(here: Any) -> SyncedDb:
    with connect(here.stack.database_url, application_name="test", autocommit=True) as conn:
        for name in TABLES:
            policy = {"columns": {"label": "reject"}} if name == "judged" else None
            registration.add_table(conn, here.name, name, policy)
    device: SyncedDb = here.device("a")
    device.start(background=False)
    return device


REFUSED = [
    ({"id": "1"}, "t.needed: the row gives no value"),
    ({"id": "1", "needed": None}, "t.needed: takes no NULL"),
    ({"id": "1", "needed": "x", "filled": None}, "t.filled: takes no NULL"),
    ({"id": "1", "needed": "x", "nr": None}, "t.nr: takes no NULL"),
    ({"id": "1", "needed": "x", "label": "too long"}, r"t.label: is character varying\(6\): takes at most 6 .* not 8"),
    ({"id": "1", "needed": "x", "price": Decimal("1000")}, "t.price: is numeric.5,2.: takes at most 3 digits"),
    ({"id": "1", "needed": "x", "mood": "glad"}, "t.mood: takes one of 'sad', 'ok'"),
    ({"id": "1", "needed": "x", "moods": ["sad", "glad"]}, "t.moods: takes one of 'sad', 'ok'"),
    ({"id": "1", "needed": "x", "no": 1}, "t.no: the server computes it"),
    ({"id": "1", "needed": "x", "nothing": 1}, "t has no column 'nothing'"),
    (
        {"id": "x" * (limits.MAX_KEY_BYTES + 1), "needed": "x"},
        f"t: a key's text has at most {limits.MAX_KEY_BYTES} bytes",
    ),
    (
        {"id": "1", "needed": "x" * (limits.MAX_VALUE_BYTES + 1)},
        "t.needed: a value has at most 16777216",
    ),
]


@pytest.mark.parametrize(("row", "said"), REFUSED, ids=[said[:30] for _, said in REFUSED])
def test_nothing_is_queued_of_what_is_sure_to_be_refused(a: SyncedDb, row: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        a.table("t").insert(row)
    assert (a.status().unsent, a.execute("SELECT count(*) FROM t").fetchone()) == (0, (0,))
    a.table("t").insert({"id": "1", "needed": "x"})
    if row["id"] != "1":
        return
    with pytest.raises(ValueError, match=said.replace("the row gives no value", "takes no NULL")):
        a.table("t").update({**({"needed": None} if row == {"id": "1"} else row), "id": row["id"]})
    assert a.status().unsent == 1


def test_what_may_pass_is_sent(a: SyncedDb, here: Any) -> None:
    """A domain, a column whose policy computes it, a trigger that fills, values that are rounded, padded or cut."""
    a.table("t").insert({"id": "1", "needed": "x", "label": "six" + " " * 9, "price": Decimal("999.994")})
    a.table("watched").insert({"id": "1"})
    a.table("judged").insert({"id": "1", "label": "abc"})
    assert a.sync()
    assert a.dead_letters() == []
    assert here.sql("select needed from watched") == [("filled",)]
    assert here.sql("select label, price, filled from t") == [("six   ", Decimal("999.99"), "x")]
    a.table("t").insert({"id": "2", "needed": "x", "flags": "far too long"})
    a.table("judged").update({"id": "1", "label": "abcd"})
    assert a.sync()
    assert [letter.reason for letter in a.dead_letters()] == ["CONSTRAINT", "CONSTRAINT"]
    # A length is judged before any trigger of the table runs.
    with pytest.raises(ValueError, match=r"watched\.label"):
        a.table("watched").insert({"id": "2", "label": "long"})


def test_a_device_that_is_online_asks_before_it_refuses(here: Any, a: SyncedDb) -> None:
    a.close()
    told: queue.Queue[State] = queue.Queue()
    b = here.device("b")
    b.on_state(told.put)
    b.start()
    while told.get(timeout=30).kind != "online":
        pass
    here.sql("alter type mood add value 'glad'")
    with b.batch():
        b.table("t").insert({"id": "1", "needed": "x", "mood": "glad"})
        with pytest.raises(SurelyRefusedError, match="takes one of 'sad', 'ok', 'glad'"):
            b.table("t").update({"id": "1", "mood": "bad"})
    until(lambda: here.sql("select mood::text from t") == [("glad",)])
    # It is known from now on, also without the server.
    b.stop()
    b.table("t").update({"id": "1", "mood": "glad"})
    with pytest.raises(SurelyRefusedError):
        b.table("t").update({"id": "1", "mood": "bad"})
    assert b.status().unsent == 1
