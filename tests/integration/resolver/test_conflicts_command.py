"""``anabranch conflicts list`` against a database with conflicts."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect
from anabranch.testkit.resolver_rig import ResolverRig

TABLES = """
create table todo (id text primary key, n bigint, data bytea);
create table pair (a int, b text, t text, primary key (a, b));
"""
LOSING: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("todo", {"id": "x"}, {"n": 2**60}, {"n": 2}),
    ("todo", {"id": "x"}, {"data": b"\xff"}, {"data": b"w"}),
    ("pair", {"a": 7, "b": "q"}, {"t": None}, {"t": "won"}),
]
"""Table, key, what loses, what wins."""


@pytest.fixture
def told(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> ResolverRig:
    monkeypatch.setenv("COLUMNS", "240")
    rig: ResolverRig = make_rig(TABLES, {"todo": None, "pair": None})
    a, b = rig.node("gate-1"), rig.node("[gate-2]")
    a.insert("todo", {"id": "x", "n": 1, "data": b"\x01"})
    a.insert("pair", {"a": 7, "b": "q", "t": "one"})
    rig.drain()
    for table, key, loses, wins in LOSING:
        a.see()
        b.see()
        a.update(table, {**key, **loses})
        rig.drain()
        b.update(table, {**key, **wins})
        rig.drain()
    return rig


def listed(rig: ResolverRig, *options: str) -> Any:
    return CliRunner().invoke(app, ["conflicts", "list", "app", "--postgres-url", rig.url, *options])


def lines(rig: ResolverRig, *options: str) -> list[dict[str, Any]]:
    result = listed(rig, "--json", *options)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_it_lists_with_every_filter(told: ResolverRig) -> None:
    rows = lines(told)
    assert [(r["table"], r["key"], r["column"], r["losing_value"]) for r in rows] == [
        ("pair", [7, "q"], "t", None),
        ("todo", ["x"], "data", "ff"),
        ("todo", ["x"], "n", 2**60),
    ]
    assert (rows[0]["losing_node"]["name"], rows[0]["winning_node"]["name"]) == ("gate-1", "[gate-2]")
    assert lines(told, "--most", "2") == rows[:2]
    assert lines(told, "--table", "todo") == rows[1:]
    assert lines(told, "--table", "pair", "--key", '[7,"q"]') == rows[:1]
    assert lines(told, "--table", "pair", "--key", '[7, "q"]') == rows[:1]
    assert lines(told, "--table", "todo", "--key", "y") == []
    assert lines(told, "--node", rows[0]["losing_node"]["id"]) == rows
    assert lines(told, "--node", "nobody") == []
    later = datetime.fromtimestamp(rows[0]["position"] / 1000 + 1, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    assert lines(told, "--since", later) == []
    assert lines(told, "--until", later, "--since", "2020-01-01") == rows
    table = listed(told).stdout
    assert "1152921504606846976" in table
    assert "[gate-2]" in table


def test_a_value_whose_column_was_dropped_says_so(told: ResolverRig) -> None:
    with connect(told.url, application_name="test", autocommit=True) as conn:
        conn.execute("update anabranch.conflicts set cause = 1 where column_name = 'data'")
    assert [row["cause"] for row in lines(told)] == ["", "COLUMN_DROPPED", ""]
    assert listed(told).stdout.count("a drop of the column") == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--key", "x"], "--key needs --table"),
        (["--table", "nowhere"], "no synced table"),
        (["--table", "pair", "--key", "x"], "a JSON array of its 2 values"),
    ],
)
def test_a_wrong_question_is_refused_in_a_line(told: ResolverRig, options: list[str], why: str) -> None:
    result = listed(told, *options)
    assert result.exit_code == 2
    assert why in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_conflicts_of_a_table_that_was_registered_anew_or_removed_are_still_listed(told: ResolverRig) -> None:
    before = lines(told)
    of_row = lines(told, "--table", "todo", "--key", "x")
    with connect(told.url, application_name="test", autocommit=True) as conn:
        registration.remove_table(conn, "app", "todo")
        conn.execute("alter table app.todo add column extra text")
        registration.add_table(conn, "app", "todo")
        registration.remove_table(conn, "app", "pair")
    assert lines(told) == before
    assert lines(told, "--table", "pair") == before[:1]
    assert lines(told, "--table", "todo") == before[1:]
    assert lines(told, "--table", "todo", "--key", "x") == of_row == before[1:]
    assert lines(told, "--table", "pair", "--key", '[7,"q"]') == before[:1]
