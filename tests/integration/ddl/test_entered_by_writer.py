"""A role with few rights enters schema changes, and can do no more by it than that."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import psycopg
import pytest

from anabranch.store.catalog.databases import Database, load_without_key
from anabranch.store.catalog.drift import drift
from anabranch.store.ddl.changes import changes_of
from anabranch.store.ddl.enter import Entered, enter
from anabranch.store.ddl.markers import waiting
from anabranch.store.ddl.notice import notice
from anabranch.store.session.engine import Session, connect
from anabranch.store.writers import our_rights, writer

from .conftest import NAME, NOW_MS, World

ROLE = "ddl_writer"


@pytest.fixture
def few(world: World) -> Iterator[Session]:
    """A session of a role that may do what a group does and nothing more."""
    world.sql("create table app.job (id text primary key, title text, team text)")
    world.sql("create table app.stock (id text primary key, n integer)")
    world.add("job", audience="'team:' || team")
    world.add("stock")
    world.sql(f"create role {ROLE} login bypassrls password 'few'")
    try:
        assert writer.make(world.conn, ROLE) == []
        assert writer.is_complete(world.conn, ROLE)
        parts = urlsplit(world.url)
        url = parts._replace(netloc=f"{ROLE}:few@{parts.netloc.rsplit('@', 1)[-1]}").geturl()
        with connect(url, application_name="resolver", autocommit=True) as conn:
            yield conn
    finally:
        world.sql(f"drop owned by {ROLE}; drop role {ROLE}")


def database(conn: Session) -> Database:
    return load_without_key(conn, NAME, lambda number: b"")


def follow(conn: Session, position: int = 5_000) -> Entered | None:
    with conn.transaction():
        found = database(conn)
        changes = changes_of(conn, found, waiting(conn, found.id), position=position)
        return enter(conn, found, changes, position=position, now_ms=NOW_MS)


def test_it_enters_whatever_happens(world: World, few: Session) -> None:
    world.sql('update anabranch.databases set policy = \'{"new_tables": "all"}\'')
    statements = (
        "alter table app.job add column x int not null default 4",
        "alter table app.job rename column team to crew",
        "alter table app.job drop column title",
        "alter table app.stock alter column n type text",
        "alter table app.stock drop constraint stock_pkey, add primary key (n)",
        "create table app.visit (id serial primary key, body text)",
        "alter table app.visit rename to call",
        "drop table app.call",
        "alter schema app rename to application",
    )
    for position, statement in enumerate(statements, 5_000):
        world.sql(statement)
        before = database(few).schema_version
        entered = follow(few, position)
        assert database(few).schema_version > before
        assert (entered is not None) == ("schema" not in statement)
        assert waiting(few, database(few).id) == []
    after = world.database
    assert drift(world.conn, after) == []
    assert after.restricted["job"].columns == ("crew",)
    assert after.schema_name == "application"
    assert after.tables.keys() == {"job", "stock"}


def test_it_writes_to_a_table_that_came_by_itself(world: World, few: Session) -> None:
    world.sql('update anabranch.databases set policy = \'{"new_tables": "all"}\'')
    world.sql("create table app.visit (id serial primary key, body text)")
    assert follow(few) is not None
    few.execute("insert into app.visit (body) values ('x')")
    assert few.execute("select count(*) from app.visit").fetchone() == (1,)


def test_it_sets_a_table_aside(world: World, few: Session) -> None:
    world.sql("alter table app.stock drop constraint stock_pkey")
    assert follow(few) is None
    assert world.database.torn == {"stock"}
    assert not notice(few, database(few))


def test_it_notices(world: World, few: Session) -> None:
    world.sql("alter event trigger anabranch_ddl disable; alter table app.stock add column x int")
    assert notice(few, database(few))
    assert follow(few) is not None


HOSTILE = {
    "the types that others read by": """select anabranch.follow_table(s.id,
        jsonb_set(jsonb_set(s.columns, '{0,number}', '1'), '{0,postgres_type}', '"text); drop table x; --"'),
        '[]', s.key_columns, s.name, s.shape, '{}', 1) from anabranch.synced_tables s""",
    "a number of no column": """select anabranch.follow_table(s.id, jsonb_set(s.columns, '{0,number}', '9'),
        '[]', s.key_columns, s.name, s.shape, '{}', 1) from anabranch.synced_tables s""",
    "the types of former columns": """select anabranch.follow_table(s.id,
        (select jsonb_agg(c || jsonb_build_object('number', place)) from jsonb_array_elements(s.columns)
         with ordinality k (c, place)),
        jsonb_build_array(jsonb_build_object('column', jsonb_build_object('name', 'x', 'postgres_type', 'x()'))),
        s.key_columns, s.name, s.shape, '{}', 1) from anabranch.synced_tables s""",
    "another table's name": """select anabranch.follow_table(s.id, '[]', '[]', s.key_columns, 'other', s.shape, '{}', 1)
        from anabranch.synced_tables s""",
    "a table that nobody wants synced": """select anabranch.begin_table(1, 77, 'other',
        '[{"name": "id", "number": 1, "postgres_type": "text"}]', '{id}', '{}', 1)""",
    "the triggers of a table that is synced": "select anabranch.leave_table(1, s.id) from anabranch.synced_tables s",
    "a registration that goes on": "select anabranch.end_table(s.id) from anabranch.synced_tables s",
    "a registration of no table": "select anabranch.renew_table(77, 1)",
    "who sees which rows": "update anabranch.synced_tables set audience = null",
    "the columns": "update anabranch.synced_tables set columns = '[]'",
    "the schema": "update anabranch.databases set schema_name = 'public'",
    "a policy": "update anabranch.databases set policy = '{}'",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_it_cannot_change(world: World, few: Session, what: str) -> None:
    world.sql("create table app.other (id text primary key)")
    before = world.rows("select * from anabranch.synced_tables order by id")
    refused = (
        psycopg.errors.InsufficientPrivilege
        | psycopg.errors.InvalidParameterValue
        | psycopg.errors.ObjectNotInPrerequisiteState
    )
    with pytest.raises(psycopg.Error) as raised:
        few.execute(HOSTILE[what].encode())
    assert isinstance(raised.value, refused), raised.value
    assert world.rows("select * from anabranch.synced_tables order by id") == before


def test_no_other_role_may_call_them(world: World, few: Session) -> None:
    for name in our_rights._CALLED:
        query = "select has_function_privilege('public', %s, 'execute')"
        assert world.rows(query, (f"anabranch.{name}",)) == [(False,)]
