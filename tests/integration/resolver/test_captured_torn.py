"""Captured changes that nobody can read: the log lacks them, so the table is not synced until it is registered anew,
whoever resolves; no other table waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.drift import drift, stopped_tables
from anabranch.store.catalog.gather import restart_captures
from anabranch.testkit.resolver_rig import ResolverRig

TABLES = """
create type mood as enum ('glad', 'sad');
create domain small as int check (value > -10);
create table t (id text primary key, m mood, n small);
create table u (id text primary key, n int);
insert into t values ('1', 'glad', -5);
"""
RENAMED = "begin; update app.t set m = 'sad'; alter type app.mood rename value 'sad' to 'blue'; commit"
STRICTER = "begin; update app.t set n = 5; alter domain app.small add check (value >= 0); commit"
AWAY = ("update app.t set n = 5; alter table app.t rename to v", "alter table app.v rename to t")


@pytest.mark.slow
@pytest.mark.parametrize("changes", [(RENAMED,), AWAY], ids=["a label renamed", "a table that was away"])
def test_changes_that_the_shape_of_their_time_reads_stop_nothing(make_rig: Any, changes: Sequence[str]) -> None:
    rig: ResolverRig = make_rig(TABLES, {"t": None, "u": None})
    a = rig.node("a")
    for change in changes:
        rig.sql(change)
        groups(rig)
    rig.sql("update app.t set n = n + 1")
    applied = a.insert("t", {"id": "2"})
    groups(rig)
    rig.check()
    assert rig.outcome(applied) == ["APPLIED"]
    assert rig.sql("select count(*) from anabranch.captured") == [(0,)]
    assert stopped_tables(drift(rig.conn, load_database(rig.conn, rig.name))) == {}


@pytest.mark.slow
def test_a_table_whose_changes_cannot_be_read_stops_until_it_is_registered_anew(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(TABLES, {"t": None, "u": None})
    a = rig.node("a")
    rig.sql(STRICTER)
    groups(rig)
    rig.sql("update app.t set n = n + 1; insert into app.u values ('by sql', 1)")
    refused, other = a.insert("t", {"id": "2"}), a.insert("u", {"id": "1", "n": 1})
    groups(rig)
    assert rig.outcome(other) == ["APPLIED"]
    assert rig.outcome(refused) == "TABLE_CHANGED"
    assert rig.sql("select key from anabranch.log order by key") == [("1",), ("by sql",)]
    assert rig.sql("select count(*) from anabranch.captured") == [(0,)]
    told = stopped_tables(drift(rig.conn, load_database(rig.conn, rig.name)))
    assert list(told) == ["t"], "every other resolver knows it, too, and the next one that starts"
    assert "the log lacks them" in told["t"]
    restart_captures(rig.conn, rig.name, ["t"], now_ms=rig.time_ms)
    applied = a.insert("t", {"id": "3"})
    rig.sql("update app.t set n = n + 1")
    rig.drain()
    assert rig.outcome(applied) == ["APPLIED"]
    assert stopped_tables(drift(rig.conn, rig.database)) == {}


@pytest.mark.parametrize("change", [RENAMED, STRICTER], ids=["a label renamed", "a stricter domain"])
def test_verify_says_what_it_cannot_tell(make_rig: Any, migrated_url: str, change: str) -> None:
    """Before any resolver has come to them."""
    rig: ResolverRig = make_rig(TABLES, {"t": None, "u": None})
    rig.sql(change)
    done = CliRunner().invoke(app, ["verify", "--db", rig.name, "--table", "t", "--postgres-url", migrated_url])
    assert done.exit_code == 2
    assert "(TABLE_CHANGED)" in done.output
    assert 'rows captured of table "t" can\'t be read' in done.output
    assert "Traceback" not in done.output


def groups(rig: ResolverRig) -> None:
    """Groups until nothing is left to do, without the rig's look at sums that can't be right now."""
    assert rig.commit is not None
    for _ in range(20):
        if not rig.commit(rig.database.id, 1_000, 0):
            return
    raise AssertionError("the resolver goes round and round")
