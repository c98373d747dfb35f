"""Find where a synced table is no longer as it was registered.

Differences are of two kinds. Some stop the table's sync until it is registered anew: the writes of devices can't be
carried out, or the writes of others can't be read. The rest are worth knowing: a new column that the log does not
carry, a default, a type that is carried as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg

from anabranch.store.capture.triggers import TriggerFault, trigger_faults
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.identities import matched
from anabranch.store.catalog.refusals import TableRefusal, why_not
from anabranch.store.catalog.relation import Relation, relations_of
from anabranch.store.session.steps import Steps, arun, run
from anabranch.values import Column, Table
from anabranch.values.postgres_types import Types

# Integers and texts whose values stay the same when one type becomes the other.
_ALIKE = (
    re.compile(r"smallint|integer|bigint"),
    re.compile(r"text|character varying(\(\d+\))?"),
)


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference between a synced table as registered and as it is. ``stops``: it stops the table's sync.
    ``table`` is its identity, ``called`` its name in SQL. ``refusal``: why the table could not be added as it is."""

    table: str
    text: str
    stops: bool = True
    called: str = field(default="", compare=False)
    refusal: TableRefusal | None = field(default=None, compare=False)


def drift(conn: psycopg.Connection[Any], database: Database) -> list[Drift]:
    """Every difference, by table; empty when the database is as it was registered."""
    return run(conn, _differences(database))


async def adrift(conn: psycopg.AsyncConnection[Any], database: Database) -> list[Drift]:
    """``drift`` for asyncio."""
    return await arun(conn, _differences(database))


def stopped_tables(differences: Iterable[Drift]) -> dict[str, str]:
    """The tables that can't be synced as they are, each with the first reason and its remedy."""
    stopped: dict[str, str] = {}
    for difference in differences:
        if difference.stops:
            text = (
                f'table "{difference.called}" is no longer what was registered ({difference.text}): '
                "it is not synced until it is removed and added anew"
            )
            stopped.setdefault(difference.table, text)
    return stopped


FINGERPRINT = """
select coalesce(pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws(' ', s.name, c.oid,
    c.relrowsecurity, c.relforcerowsecurity,
    (select pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod,
                                                       a.attnotnull, a.attgenerated, a.attidentity,
        case when a.atttypid >= 16384 then pg_catalog.format_type(a.atttypid, a.atttypmod) end,
        case when a.atttypid >= 16384 then anabranch.deep_of(a.atttypid) end), ',' order by a.attnum)
     from pg_catalog.pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
    (select pg_catalog.string_agg(pg_catalog.concat_ws(' ', t.tgname, t.tgenabled), ',' order by t.tgname)
     from pg_catalog.pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal),
    (select i.indkey::text from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisprimary),
    (select pg_catalog.string_agg(e.oid::text, ',' order by e.oid) from pg_catalog.pg_attrdef e
     where e.adrelid = c.oid),
    (select pg_catalog.string_agg(k.oid::text, ',' order by k.oid) from pg_catalog.pg_constraint k
     where k.conrelid = c.oid and k.contype in ('c', 'x'))
), ';' order by s.id)), '')
from anabranch.synced_tables s
join anabranch.databases d on d.id = s.database_id
left join pg_catalog.pg_namespace n on n.nspname = d.schema_name
left join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = coalesce(s.sql_name, s.name)
where d.name = %s
"""
"""A hash that changes whenever a synced table of a database changes in a way that may be drift, or that may bring code
that runs within the resolver's statements."""


def fingerprint(conn: psycopg.Connection[Any], database: str) -> str:
    """``FINGERPRINT`` of a database: one statement, cheap enough to be asked every few seconds."""
    row = conn.execute(FINGERPRINT, (database,)).fetchone()
    return str(row[0]) if row else ""


def _differences(database: Database) -> Steps[list[Drift]]:
    called = database.by_sql_name
    found, known = yield from relations_of(database.schema_name, called)
    numbers = {name: table.id for name, table in called.items()}
    resting = {name for name, table in called.items() if table.name in database.uncaptured}
    faults = yield from trigger_faults(database.schema_name, database.id, numbers, resting)
    differences: list[Drift] = []
    for table in sorted(database.tables.values(), key=lambda table: table.sql_name):
        relation, fault = found.get(table.sql_name), faults.get(table.sql_name)
        differences += [
            replace(one, called=table.sql_name) for one in _of_table(database, table, relation, known, fault)
        ]
    return differences


def _of_table(
    database: Database, table: Table, relation: Relation | None, known: Types, fault: TriggerFault | None
) -> Iterator[Drift]:
    name = table.name
    if name in database.torn:
        text = database.refused.get(name, "direct writes of it could not be read, and the log lacks them")
        yield Drift(name, text)
    if relation is None:
        yield Drift(name, "the table is gone")
        return
    if not {column.name for column in relation.columns}.issuperset(relation.key_columns):
        # Columns and keys are read one after the other.
        yield Drift(name, "it was altered while it was read", stops=False)
        return
    now = Table(relation.name, relation.snapshot(known), relation.key_columns, table.id)
    yield from _changes(table, now, by_number=relation.oid == database.relations.get(name))
    if fault is not None:
        # Without any trigger it may be another table that has taken the name.
        yield Drift(name, fault.text, stops=fault.all_gone)
    others = database.by_sql_name.keys() - {table.sql_name}
    policy = database.table_policies[name].in_sql(table)
    for refused in why_not(relation, known, policy, others, restricted=name in database.restricted):
        yield Drift(name, str(refused), stops=False, refusal=refused.reason)


def _changes(before: Table, now: Table, *, by_number: bool) -> Iterator[Drift]:
    """``now``: the table as SQL has it, with names in SQL. ``by_number``: its columns have the numbers that they had
    when it was registered."""
    name = before.name
    there = matched(before, now, by_number=by_number)
    if [there[key].name if key in there else None for key in before.key_columns] != list(now.key_columns):
        was, are = ", ".join(before.in_sql(before.key_columns)), ", ".join(now.key_columns) or "none"
        yield Drift(name, f"the key was {was} and is {are}")
    gone = [column.sql_name for column in before.columns if column.name not in there]
    for column_name in gone:
        anew = column_name in now.by_name
        yield Drift(name, "a column was dropped and made anew" if anew else f'column "{column_name}" is gone')
    own = [column.name for column in now.columns][: len(before.columns)]
    if not gone and [there[column.name].name for column in before.columns] != own:
        yield Drift(name, "a column was dropped and made anew")
    for column in before.columns:
        if column.name in there:
            yield from _column_changes(name, column, there[column.name])
    former = {column.name for column in there.values()}
    for column in now.columns:
        if column.name not in former and column.name not in gone:
            yield Drift(name, f'column "{column.name}" is new', stops=False)


def _column_changes(table: str, before: Column, now: Column) -> Iterator[Drift]:
    name = before.sql_name
    if name != now.name:
        yield Drift(table, f'column "{name}" is called "{now.name}" now')
    if before.postgres_type != now.postgres_type:
        text = f'column "{name}" was {before.postgres_type} and is {now.postgres_type}'
        yield Drift(table, text, stops=not _alike(before, now))
    elif (before.kind, before.element_kind) != (now.kind, now.element_kind):
        text = f'column "{name}" is carried in another way: its type {now.postgres_type} is another one'
        yield Drift(table, text)
    if before.not_null != now.not_null:
        yield Drift(
            table, f'column "{name}" {"takes NULL no longer" if now.not_null else "takes NULL now"}', stops=False
        )
    if before.generated != now.generated:
        text = f'column "{name}" is {"now" if now.generated else "no longer"} generated'
        yield Drift(table, text, stops=now.generated)
    if before.has_default != now.has_default:
        yield Drift(table, f'column "{name}" has {"a" if now.has_default else "no"} default now', stops=False)


def _alike(before: Column, now: Column) -> bool:
    return any(one.fullmatch(before.postgres_type) and one.fullmatch(now.postgres_type) for one in _ALIKE)
