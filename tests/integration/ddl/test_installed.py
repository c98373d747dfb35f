"""Event triggers are made where the role may make them, and by no superuser whose sessions others could reach."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from anabranch.store import migrate
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.ddl.install import install, installed
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
