"""Rows of many megabytes that SQL has written: they enter the log while the resolver holds no more than four times as
much, or their table is set aside by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anabranch.store.capture import large, large_images
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.drift import drift, stopped_tables
from anabranch.testkit.oracle import read_server, replay
from anabranch.testkit.resolver_rig import ResolverRig

TABLES = """
create table doc (id text primary key, body text, raw bytea, data jsonb, plain json, n int);
create table todo (id text primary key, title text);
"""
MB = 2**20
VALUES = {
    "body": "repeat('xé€😀', {0} / 10)",
    "raw": "decode(repeat('00ff', {0} / 2), 'hex')",
    "data": "to_jsonb(repeat('x', {0}))",
    "plain": "to_json(repeat('x', {0}))",
}


def peak_of(drain: Any) -> int:
    """By how much the memory of this process grows at most."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    drain()
    return _peak() - before


def _peak() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def drain(rig: ResolverRig) -> None:
    assert rig.commit is not None
    for _ in range(20):
        if not rig.commit(rig.database.id, 1_000, 0):
            return
    raise AssertionError("the resolver goes round and round")


def check(rig: ResolverRig) -> None:
    """Sums are those of the rows, and the log leads to them."""
    rig.check()
    server = read_server(rig.conn, rig.database)
    logged = replay(server, {})
    for row in logged.values():
        # As the driver reads JSON.
        row.update({name: json.loads(str(row[name])) for name in ("data", "plain") if row.get(name) is not None})
    assert logged == server.rows
    assert rig.sql("select count(*) from anabranch.captured") == [(0,)]
    assert stopped_tables(drift(rig.conn, rig.database)) == {}


@pytest.mark.parametrize(("column", "size"), [*((column, 40 * MB) for column in VALUES)])
def test_a_large_row_takes_four_times_its_size_at_most(make_rig: Any, column: str, size: int) -> None:
    _take(make_rig, column, size)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("column", ["body", "data"])
def test_a_row_of_200_mb_takes_four_times_its_size_at_most(make_rig: Any, column: str) -> None:
    _take(make_rig, column, 200 * MB)


def _take(make_rig: Any, column: str, size: int) -> None:
    rig: ResolverRig = make_rig(TABLES, {"doc": None, "todo": None})
    rig.sql("insert into app.todo values ('0', 'warm')")
    drain(rig)
    rig.sql(f"insert into app.doc (id, {column}, n) values ('large', {VALUES[column].format(size)}, 0)")
    rig.sql("insert into app.todo values ('1', 'behind')")
    grown = peak_of(lambda: drain(rig))
    assert grown < 4 * size, f"{grown / size:.1f} times"
    rig.sql("update app.doc set n = 1")
    grown = peak_of(lambda: drain(rig))
    assert grown < 2 * 4 * size, f"of two images {grown / size:.1f} times"
    rig.check()
    assert rig.sql("select key, type from anabranch.log order by position, ordinal") == [
        ("0", 1),
        ("large", 1),
        ("1", 1),
        ("large", 2),
    ]


def test_what_a_large_row_becomes_is_what_any_row_becomes(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of change, with values of each kind beside one another, in transactions of many changes."""
    monkeypatch.setattr(large_images, "_LONG_BYTES", 1_000)
    rig: ResolverRig = make_rig(TABLES, {"doc": None, "todo": None})
    values = ", ".join(value.format(5 * MB) for value in VALUES.values())
    rig.sql(f"insert into app.doc select g, {values}, g from generate_series(1, 2) g")
    drain(rig)
    check(rig)
    rig.sql("update app.doc set n = n + 1, data = null where id = '1'")
    rig.sql("update app.doc set body = body || 'x', raw = raw || 'x' where id = '2'; insert into app.todo values ('1')")
    drain(rig)
    check(rig)
    rig.sql(
        "begin; update app.doc set n = 7; update app.doc set id = '3' where id = '2'; update app.doc set n = 8; commit"
    )
    rig.sql("alter table app.doc add column later int")
    rig.sql("update app.doc set n = 9")
    drain(rig)
    check(rig)
    rig.sql("delete from app.doc")
    drain(rig)
    check(rig)


def test_a_row_that_is_too_large_sets_its_table_aside(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "CARRIED_BYTES", 20 * MB)
    rig: ResolverRig = make_rig(TABLES, {"doc": None, "todo": None})
    a = rig.node("a")
    rig.sql("insert into app.doc (id, body) values ('large', repeat('x', 21 * 1024 * 1024))")
    rig.sql("insert into app.todo values ('1', 'behind')")
    made = a.insert("todo", {"id": "2"})
    grown = peak_of(lambda: drain(rig))
    assert grown < 20 * MB, "it is not read"
    assert rig.outcome(made) == ["APPLIED"]
    assert rig.sql("select key from anabranch.log order by key") == [("1",), ("2",)]
    assert list(stopped_tables(drift(rig.conn, load_database(rig.conn, rig.name)))) == ["doc"]
