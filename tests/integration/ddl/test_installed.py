"""Event triggers are made where the role may make them, and by no superuser whose sessions others could reach."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest
from alembic import command
from sqlalchemy import text

from anabranch.store import migrate
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.drift import drift
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.ddl.changes import changes_of
from anabranch.store.ddl.enter import enter
from anabranch.store.ddl.install import install, installed
from anabranch.store.ddl.markers import waiting
from anabranch.store.ddl.notice import notice
from anabranch.store.session.engine import connect

OWNER = "ddl_owner"


@pytest.fixture
def owned_url(database_url: str) -> Iterator[str]:
    """URL of an empty database, as its owner, who is no superuser."""
    name = urlsplit(database_url).path[1:]
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(f"create role {OWNER} login password 'owner'".encode())
        conn.execute(f'alter database "{name}" owner to {OWNER}'.encode())
    parts = urlsplit(database_url)
    yield parts._replace(netloc=f"{OWNER}:owner@{parts.netloc.rsplit('@', 1)[-1]}").geturl()
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute(f'alter database "{name}" owner to current_user'.encode())
        conn.execute(f"drop owned by {OWNER} cascade; drop role {OWNER}".encode())


def test_a_superusers_upgrade_makes_them_and_a_later_one_mends_them(database_url: str) -> None:
    assert migrate.upgrade(database_url)
    with connect(database_url, application_name="test", autocommit=True) as conn:
        assert installed(conn)
        conn.execute("drop event trigger anabranch_rewrite")
        assert not installed(conn)
        assert not migrate.upgrade(database_url)
        assert installed(conn)
        conn.execute("alter event trigger anabranch_ddl disable")
        assert not installed(conn)


def test_an_owner_who_may_not_make_them_goes_on_without(owned_url: str) -> None:
    assert migrate.upgrade(owned_url)
    with connect(owned_url, application_name="test", autocommit=True) as conn:
        assert not installed(conn)
        assert not install(conn)
        conn.execute("create schema app; create table app.job (id text primary key)")
        create_database(conn, "ours", "app")
        add_table(conn, "ours", "job")
        conn.execute("alter table app.job add column x int")
        assert conn.execute("select count(*) from anabranch.captured").fetchone() == (0,)


def test_a_superuser_makes_none_of_functions_that_another_role_could_replace(owned_url: str, database_url: str) -> None:
    migrate.upgrade(owned_url)
    assert not migrate.upgrade(database_url)
    with connect(database_url, application_name="test", autocommit=True) as conn:
        assert not install(conn)
        assert conn.execute("select count(*) from pg_event_trigger").fetchone() == (0,)


def test_what_fails_is_told_in_the_servers_log_alone(database_url: str) -> None:
    migrate.upgrade(database_url)
    with connect(database_url, application_name="test", autocommit=True) as conn:
        told: list[str] = []
        conn.add_notice_handler(lambda diagnostic: told.append(diagnostic.message_primary or ""))
        [(source, settings)] = conn.execute(
            "select prosrc, proconfig from pg_proc where oid = 'anabranch.notice_ddl()'::regprocedure"
        ).fetchall()
        assert "raise warning" in source
        assert "client_min_messages=error" in settings
        conn.execute("create schema app; create table app.job (id text primary key)")
        create_database(conn, "ours", "app")
        add_table(conn, "ours", "job")
        conn.execute("alter function anabranch.shape_of(oid) rename to shape_elsewhere")
        conn.execute("alter table app.job add column x int; drop table app.job")
        assert told == []


def test_a_database_of_the_release_before_goes_on_and_what_was_added_behind_its_back_is_sent(
    database_url: str,
) -> None:
    """Columns that were added before anything noticed it were never synced: their rows' values are sent, once."""
    config = migrate._config()
    with migrate._transaction(database_url) as connection:
        connection.execute(text("create schema anabranch"))
        config.attributes["connection"] = connection
        command.upgrade(config, "0022")
    with connect(database_url, application_name="test", autocommit=True) as conn:
        conn.execute(OLD_DATABASE)
    assert migrate.upgrade(database_url)
    with connect(database_url, application_name="test", autocommit=True) as conn:
        assert installed(conn)
        database = load_database(conn, "ours")
        assert database.tables["job"].by_name["title"].number == 2
        assert notice(conn, database)
        assert not notice(conn, database)
        with conn.transaction():
            [change] = changes_of(conn, database, waiting(conn, database.id), position=1_000)
            assert enter(conn, database, [change], position=1_000, now_ms=1) is not None
        assert [(column.name, column.initial) for column in change.added] == [("late", (None,))]
        assert change.rewritten == {"late"}
        after = load_database(conn, "ours")
        assert not any(one.stops for one in drift(conn, after))
        conn.execute("alter table app.job add column soon int not null default 4")
        with conn.transaction():
            [change] = changes_of(conn, after, waiting(conn, after.id), position=2_000)
        assert [(column.name, column.initial) for column in change.added] == [("soon", (4,))]
        assert change.rewritten == frozenset()


OLD_DATABASE = """
create schema app;
create table app.job (id text primary key, title text);
insert into anabranch.databases (name, schema_name, epoch, seal_key, created_ms) values ('ours', 'app', 'e', '', 1);
insert into anabranch.synced_tables (database_id, name, columns, key_columns, registered_ms, first_position)
select id, 'job', '[
    {"name": "id", "kind": 4, "element_kind": null, "postgres_type": "text", "not_null": true, "generated": false,
     "has_default": false},
    {"name": "title", "kind": 4, "element_kind": null, "postgres_type": "text", "not_null": false, "generated": false,
     "has_default": false}]', '{id}', 1, 0 from anabranch.databases;
insert into anabranch.table_sums select id, 0, 0, decode(repeat('00', 16), 'hex') from anabranch.synced_tables;
create trigger "~anabranch_truncate" before truncate on app.job
    for each statement execute function anabranch.capture_truncate('1', '1');
alter table app.job add column late integer default 7;
"""
"""A table that was registered by a release that knew nothing of DDL, and was altered since; of its triggers one."""
