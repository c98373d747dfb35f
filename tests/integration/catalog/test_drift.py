from __future__ import annotations

import asyncio

import pytest

from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.catalog.drift import Drift, adrift, drift
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.session.engine import Session, aconnect

SETUP = """
create table app.t (id text primary key, n int, m int not null default 1, g int generated always as (1) stored);
create table app.u (id text primary key);
"""


@pytest.fixture
def database(conn: Session) -> Database:
    create_database(conn, "d", "app")
    conn.execute(SETUP)
    add_table(conn, "d", "t")
    add_table(conn, "d", "u")
    return load_database(conn, "d")


def test_a_table_as_it_was_added_has_not_drifted(conn: Session, database: Database) -> None:
    conn.execute("insert into app.t values ('a', 1)")
    conn.execute("create index on app.t (n)")
    assert drift(conn, database) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("drop table app.t", "the table is gone"),
        ("alter table app.t rename to elsewhere", "the table is gone"),
        ("alter table app.t drop column n", 'column "n" is gone'),
        ("alter table app.t add column x int", 'column "x" is new'),
        ("alter table app.t alter column n type bigint", 'column "n" was integer and is bigint'),
        ("alter table app.t alter column n set not null", 'column "n" takes NULL no longer'),
        ("alter table app.t alter column m drop not null", 'column "m" takes NULL now'),
        ("alter table app.t alter column m drop default", 'column "m" has no default now'),
        ("alter table app.t alter column n set default 5", 'column "n" has a default now'),
        ("alter table app.t alter column g drop expression", 'column "g" is no longer generated'),
        ("alter table app.t drop constraint t_pkey, add primary key (m)", "the key was id and is m"),
        (
            "alter table app.t disable trigger anabranch_update",
            "direct writes are not captured: trigger anabranch_update is disabled",
        ),
        (
            "drop trigger anabranch_row_delete on app.t",
            "direct writes are not captured: trigger anabranch_row_delete is gone",
        ),
        (
            "create rule skip as on delete to app.t do instead nothing",
            "the table has rewrite rules (skip) (RULES)",
        ),
        ("alter table app.t set unlogged", "the table is unlogged"),
    ],
)
def test_a_change_behind_our_back_is_told(conn: Session, database: Database, change: str, told: str) -> None:
    conn.execute(change.encode())
    found = drift(conn, database)
    assert {d.table for d in found} == {"t"}
    assert any(d.text.startswith(told) for d in found), found


def test_a_table_made_anew_under_the_name_is_compared(conn: Session, database: Database) -> None:
    conn.execute("drop table app.t; create table app.t (id text primary key, n text)")
    texts = {d.text for d in drift(conn, database)}
    assert texts == {
        'column "n" was integer and is text',
        'column "m" is gone',
        'column "g" is gone',
        "direct writes are not captured: trigger anabranch_insert is gone",
    }


def test_asyncio_tells_the_same(conn: Session, database: Database, migrated_url: str) -> None:
    conn.execute("drop table app.u")

    async def told() -> list[Drift]:
        async with await aconnect(migrated_url, application_name="test") as session:
            return await adrift(session, database)

    assert asyncio.run(told()) == drift(conn, database) == [Drift("u", "the table is gone")]
