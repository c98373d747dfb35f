"""Casts that a type's owner has made never run where the services read rows: not for sums, not for pulls."""

from __future__ import annotations

import itertools
from typing import Any

import psycopg
import pytest

from anabranch.store.catalog import databases, registration
from anabranch.store.catalog.sums import scan_sum
from anabranch.store.cells.binary_cells import read_expression
from anabranch.store.log.pull_columns import pull_expression

Connection = psycopg.Connection[Any]

TABLES = """
create schema if not exists app;
create type app.mood as enum ('sad', 'ok');
create domain app.word as varchar(9);
create domain app.price as float8;
create domain app.day as date;
create domain app.words as text[];
create table app.todo (
    id text primary key, mood app.mood, moods app.mood[], words app.word[], prices app.price[], days app.day[],
    domain app.words
);
insert into app.todo values
    ('1', 'sad', '{sad,NULL}', '{"a b",NULL,"c\\"d"}', '{0.1,NaN,1e300}', '{2026-11-29}', '{x}'),
    ('2', null, null, null, null, null, null),
    ('3', 'ok', '[2:3]={sad,ok}', '{{a,b},{c,d}}', '{}', '[0:1]={2026-11-29,NULL}', '{}');
create table app.loot (what text);
"""
CAST = """
create function app.evil_{number}(value app.{name}) returns {target} language plpgsql as $f$ begin
    insert into app.loot values ('{name} as {target}'); return null; end $f$;
create cast (app.{name} as {target}) with function app.evil_{number}(app.{name}) as implicit;
"""
SOURCES = ["mood", "mood[]", "word[]", "price[]", "day[]"]
TARGETS = ["text", "text[]", "float8[]", "json", "jsonb"]


@pytest.fixture
def conn(migrated_url: str) -> Any:
    with psycopg.connect(migrated_url, autocommit=True) as made:
        made.execute(TABLES.encode())
        registration.create_database(made, "app", "app")
        registration.add_table(made, "app", "todo")
        yield made


def _read(conn: Connection) -> dict[str, Any]:
    """The table as the services read it, by each of their ways."""
    table = databases.load_database(conn, "app").tables["todo"]
    found: dict[str, Any] = {}
    conn.execute("set search_path to pg_catalog, pg_temp")
    for column in table.columns:
        for way in (pull_expression, read_expression):
            statement = f"select pg_catalog.concat({way(column, 't')}) from app.todo t order by id"
            found[f"{way.__name__} {column.name}"] = conn.execute(statement.encode()).fetchall()
    with conn.transaction():
        found["sum"] = scan_sum(conn, "app", table)
    return found


def test_casts_of_a_types_owner_run_in_no_session_of_the_services(conn: Connection) -> None:
    before = _read(conn)
    assert before["pull_expression moods"][0] == ('["sad",null]',)
    assert before["pull_expression words"][0] == ('["a b",null,"c\\"d"]',)
    for number, (name, target) in enumerate(itertools.product(SOURCES, TARGETS)):
        conn.execute(CAST.format(name=name, target=target, number=number).encode())
    after = _read(conn)
    assert conn.execute("select distinct what from app.loot").fetchall() == []
    assert after == before
