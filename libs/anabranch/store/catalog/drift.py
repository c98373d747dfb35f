"""Find where a synced table is no longer as it was registered.

Differences are of two kinds. Some stop the table's sync until it is registered anew: the writes of devices can't be
carried out, or the writes of others can't be read. The rest are worth knowing: a new column that the log does not
carry, a default, a type that is carried as before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from anabranch.store.capture.triggers import trigger_faults
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.refusals import why_not
from anabranch.store.catalog.relation import relations_of
from anabranch.store.session.steps import Steps, arun, run
from anabranch.values import Column, Table

# Integers and texts whose values stay the same when one type becomes the other.
_ALIKE = (
    re.compile(r"smallint|integer|bigint"),
    re.compile(r"text|character varying(\(\d+\))?"),
)


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference between a synced table as registered and as it is. ``stops``: it stops the table's sync."""

    table: str
    text: str
    stops: bool = True


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
                f'table "{difference.table}" is no longer what was registered ({difference.text}): '
                "it is not synced until it is removed and added anew"
            )
            stopped.setdefault(difference.table, text)
    return stopped


FINGERPRINT = """
select coalesce(pg_catalog.md5(pg_catalog.string_agg(pg_catalog.concat_ws(' ', s.name, c.oid,
    c.relrowsecurity, c.relforcerowsecurity,
    (select pg_catalog.string_agg(pg_catalog.concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod,
                                                       a.attnotnull, a.attgenerated), ',' order by a.attnum)
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
left join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = s.name
where d.name = %s
"""
"""A hash that changes whenever a synced table of a database changes in a way that may be drift, or that may bring code
that runs within the resolver's statements."""


def fingerprint(conn: psycopg.Connection[Any], database: str) -> str:
    """``FINGERPRINT`` of a database: one statement, cheap enough to be asked every few seconds."""
    row = conn.execute(FINGERPRINT, (database,)).fetchone()
    return str(row[0]) if row else ""


def _differences(database: Database) -> Steps[list[Drift]]:
    found, known = yield from relations_of(database.schema_name, database.tables)
    numbers = {name: table.id for name, table in database.tables.items()}
    faults = yield from trigger_faults(database.schema_name, database.id, numbers, database.uncaptured)
    differences = []
    for name, table in sorted(database.tables.items()):
        if name in database.torn:
            differences.append(Drift(name, "direct writes of it could not be read, and the log lacks them"))
        if name not in found:
            differences.append(Drift(name, "the table is gone"))
            continue
        now = Table(name, found[name].snapshot(known), found[name].key_columns, table.id)
        differences += _changes(table, now)
        if name in faults:
            # Without any trigger it may be another table that has taken the name.
            differences.append(Drift(name, faults[name].text, stops=faults[name].all_gone))
        others = database.tables.keys() - {name}
        restricted = name in database.restricted
        refusals = why_not(found[name], known, database.table_policies[name], others, restricted=restricted)
        differences += [Drift(name, str(refused), stops=False) for refused in refusals]
    return differences


def _changes(before: Table, now: Table) -> Iterator[Drift]:
    name = before.name
    if before.key_columns != now.key_columns:
        was, are = ", ".join(before.key_columns), ", ".join(now.key_columns) or "none"
        yield Drift(name, f"the key was {was} and is {are}")
    gone = [column for column in before.column_names if column not in now.by_name]
    yield from (Drift(name, f'column "{column}" is gone') for column in gone)
    if not gone and now.column_names[: len(before.columns)] != before.column_names:
        yield Drift(name, "a column was dropped and made anew")
    for column in before.column_names:
        if column in now.by_name:
            yield from _column_changes(name, before.by_name[column], now.by_name[column])
    for column in now.column_names:
        if column not in before.by_name:
            yield Drift(name, f'column "{column}" is new', stops=False)


def _column_changes(table: str, before: Column, now: Column) -> Iterator[Drift]:
    name = before.name
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
