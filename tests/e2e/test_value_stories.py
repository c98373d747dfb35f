"""A value that is written on one device is on the other, exactly: types, names, keys, sizes."""

from __future__ import annotations

import json
import math
import struct
from datetime import date
from decimal import Decimal

import pytest

from anabranch.testkit.story import Teller, new_id

COMMON = (
    "id text primary key, big bigint, num numeric(38,10), free numeric, f double precision, t text, b bytea, j jsonb,"
    " ts timestamptz, d date, u uuid, arr text[], ok boolean"
)


@pytest.mark.slow
def test_values_of_every_common_type_come_back_exactly_on_another_node(story: Teller) -> None:
    told = story({"v": COMMON})
    a = told.node("a")
    first = {
        "id": "1",
        "big": 9007199254740993,
        "num": Decimal("1234567890123456789012345678.0123456789"),
        "free": Decimal("1.10"),
        "f": 5.0e-324,
        "t": "naïve 😀 e\u0301",
        "b": b"\xde\xad\xbe\xef\x00",
        "j": {"a": None, "n": 12345678901234567890},
        "ts": -1,
        "d": date(1582, 10, 4),
        "u": "6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d",
        "arr": ["", None, "NULL", "a,b", '"q"'],
        "ok": True,
    }
    second = {
        "id": "2",
        "big": -(2**63),
        "num": None,
        "free": Decimal("1E+50"),
        "f": -0.0,
        "t": "",
        "b": b"",
        "j": "null",
        "ts": None,
        "d": None,
        "u": None,
        "arr": [],
        "ok": False,
    }
    third = {"id": "3", "f": math.nan, "free": "NaN", "d": "infinity", "j": None, "arr": None}
    a.insert("v", first, second, third)
    a.sync()
    b = told.node("b")
    for node in (a, b):
        columns = ("id", "big", "num", "free", "f", "t", "b", "j", "ts", "d", "u", "arr", "ok")
        one, two, three = (row[1:] for row in node.rows("v", *columns))
        assert one[:6] == (
            9007199254740993,
            "1234567890123456789012345678.0123456789",
            "1.10",
            5.0e-324,
            "naïve 😀 e\u0301",
            b"\xde\xad\xbe\xef\x00",
        )
        assert json.loads(one[6]) == {"a": None, "n": 12345678901234567890}
        assert one[7] == -1
        assert json.loads(one[10]) == ["", None, "NULL", "a,b", '"q"']
        assert (two[0], two[2], struct.pack(">d", two[3]), two[6], two[10]) == (
            -(2**63),
            "1" + "0" * 50,
            struct.pack(">d", -0.0),
            "null",
            "[]",
        )
        assert (three[2], three[3], three[6], three[10]) == ("NaN", "NaN", None, None)
    assert told.server("v", "id", "ts")[0][1].isoformat() == "1969-12-31T23:59:59.999999+00:00"
    assert a.outcomes == [["APPLIED"]]


@pytest.mark.slow
def test_reserved_words_mixed_case_spaces_and_quotes_work_as_names(story: Teller) -> None:
    told = story({"Order": 'id text primary key, "select" text, "7.5" bigint, "q""q" text, "Mixed Case" text'})
    a, b, x = told.node("a"), told.node("b"), new_id()
    injected = "'; drop table x; --"
    a.insert("Order", {"id": x, "select": "s", "7.5": 7, 'q"q': injected, "Mixed Case": "m"})
    told.sync()
    b.update("Order", {"id": x, "7.5": 8})
    told.sync()
    assert told.server("Order") == a.rows("Order") == b.rows("Order") == [(x, "s", 8, injected, "m")]


@pytest.mark.slow
def test_a_composite_key_syncs_and_similar_keys_stay_apart(story: Teller) -> None:
    told = story({"m": "room text, member text, role text, primary key (room, member)"})
    a, b = told.node("a"), told.node("b")
    a.insert(
        "m",
        {"room": "1", "member": "07", "role": "x"},
        {"room": "1", "member": "7", "role": "y"},
        {"room": "10", "member": "7", "role": "z"},
    )
    told.sync()
    b.update("m", {"room": "1", "member": "7", "role": "w"})
    b.delete("m", ("10", "7"))
    told.sync()
    assert sorted(told.server("m")) == [("1", "07", "x"), ("1", "7", "w")]


@pytest.mark.slow
def test_a_batch_of_twelve_megabytes_and_a_row_of_six_travel_in_parts(story: Teller) -> None:
    told = story({"blob": "id text primary key, body text, raw bytea"})
    a, b = told.node("a"), told.node("b")
    many = [{"id": f"{n:02}", "body": f"{n % 10}" * 1_000_000} for n in range(12)]
    a.insert("blob", *many)
    assert len(a.made[0].payload) > 12_000_000
    huge = new_id()
    a.insert("blob", {"id": huge, "body": "x", "raw": bytes(range(256)) * 4096 * 6})
    told.sync()
    assert told.sql(f"select count(*), sum(length(body)), sum(length(raw)) from {told.name}.blob") == [
        (13, 12_000_001, 6 * 2**20)
    ]
    assert b.db.execute("SELECT count(*), sum(length(body)), sum(length(raw)) FROM blob").fetchone() == (
        13,
        12_000_001,
        6 * 2**20,
    )
    late = told.node("late")
    assert late.db.execute("SELECT length(raw) FROM blob WHERE id = ?", (huge,)).fetchone() == (6 * 2**20,)
    b.update("blob", {"id": huge, "body": "changed"})
    b.delete("blob", *[row["id"] for row in many])
    told.sync()
    assert told.server("blob", "id", "body") == [(huge, "changed")]
    assert a.outcomes == [["APPLIED"], ["APPLIED"]]


@pytest.mark.slow
def test_defaults_and_generated_columns_come_from_the_server(story: Teller) -> None:
    told = story(
        {
            "item": "id text primary key, price numeric(8,2) not null default 9.9, qty integer not null,"
            " total numeric generated always as (price * qty) stored, made timestamptz default '2020-01-01T00:00:00Z'"
        }
    )
    a, b, x = told.node("a"), told.node("b"), new_id()
    a.insert("item", {"id": x, "qty": 3})
    told.sync()
    assert a.rows("item") == b.rows("item") == [(x, "9.90", 3, "29.70", 1577836800_000_000)]
    b.update("item", {"id": x, "qty": 4})
    told.sync()
    assert a.rows("item", "total") == [("39.60",)]
