"""Devices of a database whose tables are altered by plain SQL, on real services."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from tests.integration.client.test_agreement import run_verify

from anabranch.client import AppOutdated, CallFailed, Schema, State, SyncedDb
from anabranch.testkit.waiting import until

MARK = "mark"
"""A table that is altered last."""
JOB = {
    "job": "id text primary key, title text, n integer",
    "note": "id text primary key, body text",
    MARK: "id text primary key, c integer",
}
_numbers = itertools.count(1)
FILL = (
    "insert into job select 'k' || i, 'title ' || i, i from generate_series(1, 200) i",
    "insert into note values ('a', 'one')",
)

pytestmark = pytest.mark.slow


@pytest.fixture
def here(place: Any) -> Any:
    return place(JOB, setup=FILL, policy={"new_tables": "all"})


def has_read(here: Any, device: SyncedDb) -> None:
    """Let a device that does not follow the log read it until it has what was altered before this call."""
    here.sql(f"alter table {MARK} add column c{next(_numbers)} integer")
    there = here.sql(f"select attname from pg_attribute where attrelid = '{MARK}'::regclass and attnum > 0")

    def reads() -> bool:
        try:
            device.read()
        except CallFailed as error:
            # A pull that comes while tables change is to be called again, as an app's background does.
            if not error.again:
                raise
            return False
        found = {name for (name,) in device.execute("SELECT name FROM pragma_table_info(?)", (MARK,))}
        return {name.removeprefix("_DB_new_") for name in found} == {name for (name,) in there}

    until(reads, 30, lambda: str(device.status()))


def agrees(here: Any, device: SyncedDb, pulls: int = 1) -> None:
    """The device has the rows that Postgres has, by a comparison of all rows and by the sums."""
    assert device.sync()
    status = device.status()
    assert (status.queued, status.disagreeing, status.pulls) == (0, (), pulls)
    assert device.verify() == ()
    (file,) = {Path(row[2]) for row in device.execute("PRAGMA database_list")}
    code, told = run_verify(here, "--device", str(file))
    assert code == 0, told


def test_a_device_that_follows_the_log_follows_its_tables(here: Any) -> None:
    device = here.device("a")
    told: list[Schema] = []
    states: list[State] = []
    device.on_schema(told.append)
    device.on_state(states.append)
    device.start()
    device.table("job").update({"id": "k1", "title": "mine"})
    here.sql(
        "begin; alter table job add column priority integer not null default 3;"
        " alter table job rename column title to subject; alter table note rename to remark;"
        " update job set priority = 5 where id = 'k2'; create table visit (id text primary key, job_id text);"
        " insert into visit values ('v', 'k1'); alter table job drop column n; commit"
    )
    until(lambda: device.status().schema_version == 2, 30, lambda: str(states))
    rows = device.execute("SELECT id, subject, priority FROM job WHERE id IN ('k1', 'k2') ORDER BY id").fetchall()
    assert rows == [("k1", "mine", 3), ("k2", "title 2", 5)]
    assert device.execute("SELECT * FROM visit").fetchall() == [("v", "k1")]
    assert [event.phase for event in told] == ["before", "after"]
    assert set(told[1].tables) == {"job", "remark", "visit"}
    device.table("visit").insert({"id": "w", "job_id": "k2"})
    device.table("remark").update({"id": "a", "body": "mine"})
    device.table("job").update({"id": "k3", "priority": 1})
    agrees(here, device)
    assert here.sql("select body from remark") == [("mine",)]
    assert here.sql("select count(*) from visit") == [(2,)]


VALUES = {
    "b": ("boolean", "true"),
    "i": ("integer", "-7"),
    "l": ("bigint", "9223372036854775807"),
    "f": ("double precision", "0"),
    "z": ("double precision", "'-0'"),
    "x": ("double precision", "0.1"),
    "q": ("real", "1.5"),
    "nan": ("double precision", "'NaN'"),
    "d": ("numeric", "1.10"),
    "e": ("numeric(10,2)", "12345.6"),
    "t": ("text", "'it''s \"quoted\"'"),
    "c": ("char(5)", "'ab'"),
    "v": ("varchar(20)", "''"),
    "y": ("bytea", "'\\x00ff27'"),
    "day": ("date", "'2026-01-02'"),
    "at": ("timestamptz", "'2026-01-02T03:04:05.123456Z'"),
    "ever": ("timestamp", "'infinity'"),
    "clock": ("time", "'03:04:05'"),
    "u": ("uuid", "'0e37df36-f698-11e6-8dd4-cb9ced3df976'"),
    "j": ("jsonb", """'{"a": [1, null]}'"""),
    "a": ("integer[]", "'{1,NULL,3}'"),
    "s": ("text[]", "'{a,\"b c\"}'"),
    "span": ("interval", "'1 day 02:00'"),
    "net": ("inet", "'10.0.0.1'"),
    "mood": ("mood", "'so so'"),
}


def test_constants_of_every_type_are_what_postgres_has(here: Any) -> None:
    device = here.device("a")
    device.start(background=False)
    here.sql("create type mood as enum ('good', 'so so')")
    for name, (postgres_type, value) in VALUES.items():
        here.sql(f'alter table job add column "{name}" {postgres_type} not null default {value}')
    here.sql("insert into job (id) values ('new')")
    has_read(here, device)
    agrees(here, device)
    names = ", ".join(f'"{name}"' for name in VALUES)
    (old,) = device.execute(f"SELECT {names} FROM job WHERE id = 'k1'").fetchall()
    (new,) = device.execute(f"SELECT {names} FROM job WHERE id = 'new'").fetchall()
    assert repr(old) == repr(new)
    # Dropped again, nothing of them is left in any sum; written ones are.
    device.table("job").update({"id": "k1", "i": 8})
    assert device.sync()
    here.sql("alter table job " + ", ".join(f'drop column "{name}"' for name in VALUES))
    has_read(here, device)
    agrees(here, device)


def test_an_app_of_before_goes_on_until_it_can_not(here: Any) -> None:
    old = here.device("old", schema_version=1)
    new = here.device("new")
    old.start(background=False)
    new.start(background=False)
    here.sql(
        "alter table job rename column title to subject; alter table job add column extra text default 'x';"
        " alter table note rename to remark; create table visit (id text primary key)"
    )
    here.sql("alter table job drop column n")
    has_read(here, old)
    has_read(here, new)
    old.table("job").update({"id": "k1", "title": "by the old one", "n": 9})
    old.table("note").insert({"id": "b", "body": "by the old one"})
    new.table("job").update({"id": "k2", "subject": "by the new one", "extra": "y"})
    for device in (old, new, old):
        assert device.sync()
    assert old.execute("SELECT id, title, n FROM job WHERE id IN ('k1', 'k2') ORDER BY id").fetchall() == [
        ("k1", "by the old one", None),
        ("k2", "by the new one", None),
    ]
    assert here.sql("select subject, extra from job where id = 'k1'") == [("by the old one", "x")]
    assert here.sql("select body from remark where id = 'b'") == [("by the old one",)]
    (lost,) = [c for c in old.conflicts() if c.column == "n"]
    assert (lost.table, lost.key, lost.losing_value) == ("job", ("k1",), 9)
    agrees(here, old)
    agrees(here, new)
    old.table("job").update({"id": "k3", "title": "queued"})
    here.sql("alter table job alter column subject type bigint using length(subject)")
    with pytest.raises(AppOutdated) as raised:
        has_read(here, old)
    versions = here.sql(f"select ddl_version from anabranch.databases where name = '{here.name}'")
    assert [(raised.value.version,)] == versions
    assert old.status().queued == 1
    assert old.execute("SELECT title FROM job WHERE id = 'k3'").fetchall() == [("queued",)]
    old.close()
    updated = here.device("old")
    updated.start(background=False)
    has_read(here, updated)
    # A text that is no number: that batch is one dead letter, and the rest goes on.
    assert updated.sync()
    assert [letter.reason for letter in updated.dead_letters()] == ["VALUE_NOT_CAST"]
    # The table that came later is pulled.
    agrees(here, updated, pulls=2)


def test_a_restricted_table_goes_on_for_each_audience(place: Any) -> None:
    here = place(
        {
            "member": "id text primary key, user_id text not null, room text not null",
            "message": "id text primary key, room text not null, body text, n integer",
            MARK: "id text primary key, c integer",
        },
        setup=[
            "insert into member values ('a', 'alice', 'r1')",
            "insert into message select 'm' || i, 'r' || i % 3, 'body ' || i, i from generate_series(1, 300) i",
        ],
        audiences={"message": "'room:' || room"},
        rules={"memberships": ["select 'room:' || room from member where user_id = :principal"]},
    )
    device = here.device("a", subject="alice")
    device.start(background=False)
    device.table("message").update({"id": "m1", "body": "mine", "n": 5})
    here.sql("alter table message drop column n, add column size integer")
    here.sql("alter table message rename column body to words")
    here.sql("update message set size = length(words)")
    has_read(here, device)
    assert device.status().audiences == ("room:r1",)
    agrees(here, device)
    assert device.execute("SELECT count(*) FROM message").fetchone() == (100,)


def test_a_first_pull_meets_a_change_of_the_table(here: Any) -> None:
    """It is described, altered, and then pulled."""
    device = here.device("a")
    remote = device._remote
    pull, altered = remote.pull, list[int]()

    def altering(request: Any) -> Any:
        if not altered:
            altered.append(1)
            here.sql("alter table job drop column n, add column c text default 'x'; alter table note rename to remark")
            until(
                lambda: here.sql(f"select ddl_version from anabranch.databases where name = '{here.name}'") > [(1,)], 30
            )
        return pull(request)

    remote.pull = altering
    device.start(background=False)
    has_read(here, device)
    agrees(here, device)
    assert device.execute("SELECT c FROM job WHERE id = 'k1'").fetchall() == [("x",)]
    assert device.execute("SELECT body FROM remark").fetchall() == [("one",)]
