"""Event triggers are there and miss a change: nothing tells of it, and the resolver finds it before it takes the first
row of the new shape for one of the old."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.resolver.altering import JOB_ROWS, JOBS, alter, change, markers, settle, versions

from anabranch.store.ddl.readable import UNREADABLE
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.captured import steps
from anabranch_conflict_resolver.group import cache


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(JOBS, {"job": None, "other": None})
    made.sql(JOB_ROWS)
    settle(made)
    return made


def missed(rig: ResolverRig, *statements: str) -> None:
    """Run statements as a migration does, of which our event triggers see nothing."""
    off = [f"alter event trigger anabranch_{name} disable" for name in ("ddl", "drop", "rewrite")]
    on = [f"alter event trigger anabranch_{name} enable always" for name in ("ddl", "drop", "rewrite")]
    before = markers(rig)
    alter(rig, *off, *statements, *on)
    assert markers(rig) == before


CHANGES = {
    "added": ("alter table job add column note text", "update job set note = 'x'"),
    "added with a default": ("alter table job add column note text default 'd'", "update job set title = 't'"),
    "added and another dropped": (
        "alter table job add column done boolean, drop column colour",
        "update job set done = true, n = 7",
    ),
    "dropped": ("alter table job drop column colour", "update job set n = 7"),
    "dropped and made anew": (
        "alter table job drop column colour",
        "alter table job add column colour text",
        "update job set colour = 'green' where id = '1'",
    ),
    "renamed": ("alter table job rename column colour to shade", "update job set shade = 'green'"),
    "wider": ("alter table job alter column n type bigint", "update job set n = 3000000000"),
    "another type": ("alter table job alter column n type text", "update job set n = 'many'"),
    "another type that reads alike": (
        "alter table job alter column colour type json using to_json(colour)",
        "update job set colour = '{\"a\": 1}'",
    ),
    "the table renamed": ("alter table job rename to task", "update task set n = 7"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_no_write_behind_it_is_lost(rig: ResolverRig, name: str) -> None:
    missed(rig, *CHANGES[name])
    settle(rig)
    assert len(versions(rig)) == 1
    # Nothing tells on which side of it an image stands whose columns look the same.
    assert list(change(rig).pulled) == (["job"] if name == "dropped and made anew" else [])
    assert rig.sql("select count(*) from anabranch.synced_tables where torn_ms is not null") == [(0,)]


def test_what_a_device_writes_meanwhile_is_kept(rig: ResolverRig) -> None:
    a = rig.node("a")
    a.see()
    batch = a.update("job", {"id": "1", "title": "offline"})
    missed(rig, *CHANGES["added"])
    settle(rig)
    assert rig.outcome(batch) == ["MERGED"]
    assert rig.rows("job") == [("1", "offline", 1, "red", "x"), ("2", "two", 2, "blue", "x")]


@pytest.mark.slow
def test_a_large_transaction_behind_it_is_read_by_its_own_columns(rig: ResolverRig) -> None:
    missed(
        rig,
        "alter table job add column note text",
        "insert into job select n::text, 't', n, 'c', 'x' from generate_series(10, 6000) n",
    )
    settle(rig)
    assert len(versions(rig)) == 1


def test_columns_of_a_type_that_a_table_is_of(make_rig: Any) -> None:
    rig = make_rig(
        "create type person as (id text, n int); create table p of app.person (primary key (id))", {"p": None}
    )
    rig.sql("insert into app.p values ('1', 1)")
    settle(rig)
    alter(rig, "alter type person add attribute note text cascade")
    assert markers(rig) == 1
    rig.sql("update app.p set note = 'x'")
    settle(rig)
    assert [column.name for column in change(rig).tables[0].columns] == ["id", "n", "note"]


@pytest.mark.parametrize("is_missed", [False, True])
def test_columns_of_a_table_whose_rows_are_values(make_rig: Any, monkeypatch: Any, is_missed: bool) -> None:
    rig = make_rig("create table city (x int); create table p (id text primary key, c app.city)", {"p": None})
    rig.sql("insert into app.p values ('1', row(1))")
    settle(rig)
    (missed if is_missed else alter)(rig, "alter table app.city add column y int")
    # The time of the next look has come.
    monkeypatch.setattr(cache, "_LOOK_S", 0)
    settle(rig)
    assert len(versions(rig)) == 1
    number = rig.database.tables["p"].id
    assert rig.sql(UNREADABLE.decode().replace("$1", f"'{{{number}}}'")) == []


@pytest.mark.parametrize(
    "setting",
    ["standard_conforming_strings = off", "quote_all_identifiers = on", "array_nulls = off", "bytea_output = 'escape'"],
)
def test_a_setting_of_the_session_that_alters_hides_nothing(rig: ResolverRig, setting: str) -> None:
    alter(rig, f"set {setting}", "alter table job add column note text", "update job set note = 'x'")
    assert markers(rig) == 1
    settle(rig)
    alter(rig, f"set {setting}", "drop table job")
    assert markers(rig) == 1
    settle(rig)


def test_a_transaction_that_reads_one_moment_alters_what_it_does_not_see(rig: ResolverRig) -> None:
    with rig.session() as slow:
        slow.execute("set transaction isolation level repeatable read")
        slow.execute("select 1 from anabranch.groups limit 1")
        alter(rig, "alter table job add column x int")
        settle(rig)
        slow.execute("alter table app.job drop column x")
        slow.commit()
    settle(rig)
    assert len(versions(rig)) == 2
    assert rig.database.tables["job"].column_names == ("id", "title", "n", "colour")


def test_another_change_that_waits_behind_it_does_not_hide_it(rig: ResolverRig) -> None:
    missed(rig, *CHANGES["added"])
    alter(rig, "update other set title = 'x'", "alter table other drop column title")
    settle(rig)
    assert {table.name for table in change(rig).tables} <= {"job", "other"}
    assert rig.database.tables["job"].column_names == ("id", "title", "n", "colour", "note")


def test_nothing_is_looked_at_where_nothing_was_altered(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of any type, in images of every group, are told from altered ones without a statement."""
    rig: ResolverRig = make_rig(
        "create type mood as enum ('glad', 'sad'); create domain small as int check (value > 0);"
        "create type place as (city text, moods mood[]); create domain home as place;"
        "create table mixed (id varchar(9) primary key, m mood, s small, p place, h home, ms mood[], a text[],"
        " n numeric(8, 2), t timestamptz(3), j json, b bit varying(7), d double precision, i interval day, x xml)",
        {"mixed": None},
    )
    settle(rig)
    looks: list[int] = []
    monkeypatch.setattr(steps, "notice", lambda *_: looks.append(1))
    rig.sql("insert into app.mixed (id, m, s, p) values ('1', 'glad', 1, row('Rome', array['sad']::app.mood[]))")
    rig.sql("update app.mixed set n = 1, ms = array['sad']::app.mood[]; delete from app.mixed")
    settle(rig)
    assert looks == []
    assert rig.sql("select count(*) from anabranch.captured") == [(0,)]
