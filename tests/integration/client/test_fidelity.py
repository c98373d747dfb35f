"""Every value that Postgres stores comes back bit for bit on another device: by the log and by a pull."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from anabranch.client import SyncedDb

VALUES = {
    "v": """id text primary key, big bigint, small smallint, num numeric(38,10), free numeric, f double precision,
            r real, t text, b bytea, j jsonb, js json, ts timestamptz, tn timestamp, d date, ti time, u uuid,
            arr text[], ints bigint[], floats double precision[], times timestamptz[], bools boolean[], blobs bytea[],
            ok boolean, span interval, net inet"""
}
FULL: dict[str, Any] = {
    "id": "full",
    "big": 9007199254740993,
    "small": -32768,
    "num": Decimal("1234567890123456789012345678.0123456789"),
    "free": Decimal("1.10"),
    "f": 5e-324,
    "r": 0.5,
    "t": "naïve 😀 e\u0301",
    "b": bytes(range(256)),
    "j": {"a": None, "n": 12345678901234567890},
    "js": '{"b":1,  "a":2}',
    "ts": datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    "tn": datetime(1, 1, 1),  # noqa: DTZ001
    "d": date(1582, 10, 4),
    "ti": 86_399_999_999,
    "u": "6B3B2C1E-7F6C-4A4E-9A1C-0F5D2C1B3A4D",
    "arr": ["", None, "NULL", "a,b", '"q"', "{", "\\"],
    "ints": [[1, None], [-(2**63), 2**63 - 1]],
    "floats": [float("nan"), float("inf"), -0.0, 1e22],
    "times": [datetime(2024, 1, 1, tzinfo=UTC), "infinity", None],
    "bools": [True, None, False],
    "blobs": [b"\0\xff", b""],
    "ok": True,
    "span": "1 mon",
    "net": "10.0.0.1/8",
}
ODD: dict[str, Any] = {
    "id": "odd",
    "big": -(2**63),
    "free": "1" + "0" * 50,
    "f": -0.0,
    "t": "",
    "b": b"",
    "j": "null",
    "ts": "infinity",
    "tn": "-infinity",
    "d": "infinity",
    "arr": [],
    "ok": False,
    "span": "30 days",
    "num": "NaN",
}
BARE = {"id": "bare"}


def stored(device: SyncedDb, table: str = "v") -> list[tuple[Any, ...]]:
    return device.execute(f'SELECT *, typeof(f), hex(b) FROM "{table}" ORDER BY id').fetchall()


def test_values_of_every_kind_by_log_and_by_pull(place: Any) -> None:
    here = place(VALUES)
    a, b = here.device("a"), here.device("b")
    for device in (a, b):
        device.start(background=False)
    written = [FULL, ODD, BARE, {"id": "nan", "f": float("nan"), "r": float("-inf")}]
    for row in written:
        a.table("v").insert(row)
    before = repr(stored(a))
    assert a.sync()
    assert a.dead_letters() == []
    b.read()
    c = here.device("c")
    c.start(background=False)
    c.read()
    for device in (a, b, c):
        assert device.status().disagreeing == ()
    assert repr(stored(a)) == repr(stored(b)) == repr(stored(c))
    assert a.table_sums() == b.table_sums() == c.table_sums()
    # Only what Postgres itself writes otherwise has changed: jsonb's spaces are as json prints them here.
    assert repr(stored(a)) == before
    row = b.execute("SELECT big, free, ts, d, arr, u FROM v WHERE id = 'full'").fetchone()
    assert row == (
        9007199254740993,
        "1.10",
        -1,
        -141438,
        '["",null,"NULL","a,b","\\"q\\"","{","\\\\"]',
        "6b3b2c1e-7f6c-4a4e-9a1c-0f5d2c1b3a4d",
    )
    assert b.execute("SELECT f FROM v WHERE id = 'nan'").fetchone() == ("NaN",)
    assert here.sql("select j = 'null'::jsonb, js is null, arr = '{}' from v where id = 'odd'") == [(True, True, True)]
    # Written back as read, nothing changes on the server.
    names = [c.split()[0] for c in VALUES["v"].split(",") if c.strip() != "10)"]
    rows = b.execute(f"SELECT {', '.join(names)} FROM v").fetchall()
    b.table("v").update([dict(zip(names, row, strict=True)) for row in rows])
    assert b.sync()
    assert b.dead_letters() == []
    a.read()
    assert repr(stored(a)) == before


def test_a_value_that_postgres_can_not_hold_is_refused_for_that_write_alone(place: Any) -> None:
    here = place(VALUES)
    a = here.device("a")
    a.start(background=False)
    for value, why in (("a\0b", "v.t: has a NUL"), ("\ud83d", "v.t: is no text")):
        with pytest.raises(ValueError, match=why):
            a.table("v").insert({"id": "x", "t": value})
    a.table("v").insert({"id": "x", "t": "😀"})
    assert a.sync()
    assert here.sql("select t from v") == [("😀",)]


def test_odd_names_and_keys_of_several_columns(place: Any) -> None:
    here = place(
        {
            "Order": """"select" text, "7.5" bigint, "q""q" text, "Mixed Case" boolean,
                        primary key ("Mixed Case", "7.5", "select")"""
        }
    )
    a, b = here.device("a"), here.device("b")
    for device in (a, b):
        device.start(background=False)
    table = a.table("Order")
    table.insert(
        [
            {"select": "007", "7.5": 1, "Mixed Case": True, 'q"q': "'; drop table x; --"},
            {"select": "7", "7.5": 1, "Mixed Case": True, 'q"q': "two"},
            {"select": "7", "7.5": 1, "Mixed Case": False, 'q"q': "three"},
        ]
    )
    assert a.sync()
    b.read()
    b.table("Order").update({"select": "7", "7.5": 1, "Mixed Case": 1, 'q"q': "changed"})
    b.table("Order").delete((False, 1, "7"))
    assert b.sync()
    a.read()
    expected = [("007", 1, "'; drop table x; --", 1), ("7", 1, "changed", 1)]
    for device in (a, b):
        assert device.execute('SELECT * FROM "Order" ORDER BY 1').fetchall() == expected
        assert device.status().disagreeing == ()
        assert device.dead_letters() == []
