"""A migration that says that older releases work with what it makes only adds to what is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from alembic import command

from anabranch.store import migrate, revisions

COLUMNS = """
select c.relname || '.' || a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
       a.attnotnull, a.atthasdef or a.attidentity <> '' or a.attgenerated <> ''
from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.relnamespace = 'anabranch'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
"""
RULES = """
select conrelid::regclass::text, 'constraint ' || conname || ' ' || pg_get_constraintdef(oid)
from pg_constraint
where connamespace = 'anabranch'::regnamespace and conrelid <> 0 and contype in ('p', 'u', 'f', 'c', 'x')
union all
select i.indrelid::regclass::text, 'unique index ' || c.relname
from pg_index i join pg_class c on c.oid = i.indexrelid
where c.relnamespace = 'anabranch'::regnamespace and i.indisunique
union all
select t.tgrelid::regclass::text, 'trigger ' || t.tgname
from pg_trigger t join pg_class c on c.oid = t.tgrelid
where c.relnamespace = 'anabranch'::regnamespace and not t.tgisinternal
"""
FUNCTIONS = """
select p.oid::regprocedure::text || ' returns ' || pg_get_function_result(p.oid)
from pg_proc p where p.pronamespace = 'anabranch'::regnamespace
"""


@dataclass(frozen=True)
class Shape:
    """The parts of a schema that other releases may rely on. ``columns``: name to (type, not null, has a default);
    ``rules``: (table, text of the rule)."""

    columns: dict[str, tuple[str, bool, bool]]
    rules: set[tuple[str, str]]
    functions: set[str]

    @property
    def tables(self) -> set[str]:
        return {name.partition(".")[0] for name in self.columns}


def shape(conn: psycopg.Connection[Any]) -> Shape:
    conn.execute("set search_path to anabranch, pg_catalog")
    columns = {name: (kind, strict, given) for name, kind, strict, given in conn.execute(COLUMNS).fetchall()}
    rules = {(str(table), str(rule)) for table, rule in conn.execute(RULES).fetchall()}
    return Shape(columns, rules, {name for (name,) in conn.execute(FUNCTIONS).fetchall()})


def breaches(before: Shape, after: Shape) -> list[str]:
    """Everything in ``after`` that a release made for ``before`` may stumble over."""
    found = []
    for name, (kind, strict, given) in before.columns.items():
        now = after.columns.get(name)
        if now is None:
            found.append(f"{name} is gone")
        elif now[0] != kind or (now[1] and not strict) or (given and not now[2]):
            found.append(f"{name} was {kind}, {strict=}, {given=}; it is {now}")
    for name, (_, strict, given) in after.columns.items():
        if name not in before.columns and name.partition(".")[0] in before.tables and strict and not given:
            found.append(f"{name} has to be given")
    found += [f"{table}: {rule} is gone" for table, rule in before.rules - after.rules]
    found += [f"{table}: {rule} is new" for table, rule in after.rules - before.rules if table in before.tables]
    found += [f"{name} is gone" for name in before.functions - after.functions]
    return found


@pytest.mark.slow
def test_migrations_that_older_releases_work_with_only_add(database_url: str) -> None:
    """Every migration is run, one by one."""
    scripts = list(reversed(list(migrate._scripts().walk_revisions())))
    looked_at = 0
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("create schema anabranch")
        for script in scripts:
            before = shape(conn)
            with migrate._transaction(database_url) as connection:
                config = migrate._config()
                config.attributes["connection"] = connection
                command.upgrade(config, script.revision)
            looked_at += 1
            if getattr(script.module, "works_from", script.revision) != script.revision:
                assert breaches(before, shape(conn)) == [], script.revision
    assert looked_at == len(revisions.revisions())


def test_migrations_say_who_works_with_what_they_make() -> None:
    known = revisions.revisions()
    for script in migrate._scripts().walk_revisions():
        if script.revision >= "0008":
            assert hasattr(script.module, "works_from"), f"{script.revision} doesn't say works_from"
            assert script.module.works_from in known[known.index(script.revision) :]


@pytest.mark.parametrize(
    "statement",
    [
        "alter table anabranch.nodes drop column name",
        "alter table anabranch.nodes rename column name to title",
        "alter table anabranch.nodes alter column acknowledged type numeric",
        "alter table anabranch.databases alter column system_identifier drop default",
        "alter table anabranch.synced_tables alter column torn_ms set not null",
        "alter table anabranch.nodes add column given text not null",
        "alter table anabranch.nodes add constraint named check (name <> '')",
        "alter table anabranch.nodes drop constraint nodes_pkey cascade",
        "create unique index on anabranch.nodes (name)",
        "drop table anabranch.epochs",
        "drop function anabranch.capture_row() cascade",
        "create function anabranch.f() returns trigger language plpgsql as 'begin return new; end' "
        "; create trigger t before insert on anabranch.nodes for each row execute function anabranch.f()",
    ],
)
def test_what_does_not_only_add_is_found(migrated_url: str, statement: str) -> None:
    with psycopg.connect(migrated_url) as conn:
        before = shape(conn)
        conn.execute(statement.encode())
        assert breaches(before, shape(conn))
        conn.rollback()


@pytest.mark.parametrize(
    "statement",
    [
        "alter table anabranch.log add column more text",
        "alter table anabranch.nodes add column more text not null default ''",
        "create table anabranch.more (id int primary key, name text unique)",
        "create index on anabranch.nodes (name)",
        "create function anabranch.more() returns int language sql as 'select 1'",
        "alter table anabranch.nodes alter column name drop not null",
    ],
)
def test_what_adds_is_no_breach(migrated_url: str, statement: str) -> None:
    with psycopg.connect(migrated_url) as conn:
        before = shape(conn)
        conn.execute(statement.encode())
        after = shape(conn)
        assert before != after or "index" in statement
        assert breaches(before, after) == []
        conn.rollback()


def test_the_names_of_migrations_are_their_revisions_in_order() -> None:
    assert list(revisions.revisions()) == [script.revision for script in migrate._scripts().walk_revisions()]
    assert revisions.head() == revisions.revisions()[0]
