from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from anabranch.store import migrate
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.databases import TestDatabases

# Where the extension is not installed a type of its name stands in, which can have a unique index just as well.
CITEXT = """
create type public.citext;
create function public.citextin(cstring) returns public.citext language internal immutable strict as 'textin';
create function public.citextout(public.citext) returns cstring language internal immutable strict as 'textout';
create type public.citext (
    input = public.citextin, output = public.citextout, internallength = variable, storage = extended, category = 'S',
    collatable = true
);
create function public.citext_lt(public.citext, public.citext) returns bool language internal immutable as 'text_lt';
create function public.citext_eq(public.citext, public.citext) returns bool language internal immutable as 'texteq';
create function public.citext_gt(public.citext, public.citext) returns bool language internal immutable as 'text_gt';
create function public.citext_le(public.citext, public.citext) returns bool language internal immutable as 'text_le';
create function public.citext_ge(public.citext, public.citext) returns bool language internal immutable as 'text_ge';
create function public.citext_cmp(public.citext, public.citext) returns int language internal immutable as 'bttextcmp';
create operator public.< (leftarg = public.citext, rightarg = public.citext, function = public.citext_lt);
create operator public.= (leftarg = public.citext, rightarg = public.citext, function = public.citext_eq);
create operator public.> (leftarg = public.citext, rightarg = public.citext, function = public.citext_gt);
create operator public.<= (leftarg = public.citext, rightarg = public.citext, function = public.citext_le);
create operator public.>= (leftarg = public.citext, rightarg = public.citext, function = public.citext_ge);
create operator class public.citext_ops default for type public.citext using btree as
    operator 1 public.<, operator 2 public.<=, operator 3 public.=, operator 4 public.>=, operator 5 public.>,
    function 1 public.citext_cmp(public.citext, public.citext);
"""


def _migrate(url: str) -> None:
    assert migrate.upgrade(url)


@pytest.fixture
def migrated_url(databases: TestDatabases) -> Iterator[str]:
    """URL of a database with schema anabranch, an empty schema "app" and citext in public."""
    url = databases.prepared("catalog", _prepare)
    yield url
    databases.release(url)


def _prepare(url: str) -> None:
    _migrate(url)
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("create schema app")
        available = conn.execute("select 1 from pg_available_extensions where name = 'citext'").fetchone()
        conn.execute("create extension citext with schema public" if available else CITEXT)


@pytest.fixture
def conn(migrated_url: str) -> Iterator[Session]:
    with connect(migrated_url, application_name="test", autocommit=True) as session:
        yield session


@pytest.fixture(scope="session")
def shared_url(databases: TestDatabases) -> Iterator[str]:
    """URL of such a database that no test may change for good."""
    url = databases.prepared("catalog", _prepare)
    yield url
    databases.release(url)


@pytest.fixture
def undone(shared_url: str) -> Iterator[Session]:
    """A session in a transaction whose changes nobody else sees and that is rolled back: cheaper than a database."""
    with connect(shared_url, application_name="test") as session, session.transaction(force_rollback=True):
        yield session
