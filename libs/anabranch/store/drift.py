"""Where a synced table is no longer what it was when it was registered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from anabranch.schema import Column, Table
from anabranch.store.catalog import Database
from anabranch.store.refusals import why_not
from anabranch.store.relation import relations_of
from anabranch.store.steps import Steps, arun, run


@dataclass(frozen=True, slots=True)
class Drift:
    """One difference between a synced table as registered and as it is."""

    table: str
    text: str


def drift(conn: psycopg.Connection[Any], database: Database) -> list[Drift]:
    """Every difference, by table; empty when the database is as it was registered."""
    return run(conn, _differences(database))


async def adrift(conn: psycopg.AsyncConnection[Any], database: Database) -> list[Drift]:
    """``drift`` for asyncio."""
    return await arun(conn, _differences(database))


def _differences(database: Database) -> Steps[list[Drift]]:
    found, known = yield from relations_of(database.schema_name, database.tables)
    differences = []
    for name, table in sorted(database.tables.items()):
        if name not in found:
            differences.append(Drift(name, "the table is gone"))
            continue
        now = Table(name, found[name].snapshot(known), found[name].key_columns, table.id)
        differences += [Drift(name, text) for text in _changes(table, now)]
        others = database.tables.keys() - {name}
        refusals = why_not(found[name], known, database.table_policies[name], others)
        differences += [Drift(name, str(refused)) for refused in refusals]
    return differences


def _changes(before: Table, now: Table) -> Iterator[str]:
    if before.key_columns != now.key_columns:
        was, are = ", ".join(before.key_columns), ", ".join(now.key_columns) or "none"
        yield f"the key was {was} and is {are}"
    for name in before.column_names:
        if name not in now.by_name:
            yield f'column "{name}" is gone'
        else:
            yield from _column_changes(before.by_name[name], now.by_name[name])
    for name in now.column_names:
        if name not in before.by_name:
            yield f'column "{name}" is new'


def _column_changes(before: Column, now: Column) -> Iterator[str]:
    if before.postgres_type != now.postgres_type:
        yield f'column "{before.name}" was {before.postgres_type} and is {now.postgres_type}'
    elif (before.kind, before.element_kind) != (now.kind, now.element_kind):
        yield f'column "{before.name}" is carried in another way: its type {now.postgres_type} is another one'
    if before.not_null != now.not_null:
        yield f'column "{before.name}" {"takes NULL no longer" if now.not_null else "takes NULL now"}'
    if before.generated != now.generated:
        yield f'column "{before.name}" is {"now" if now.generated else "no longer"} generated'
    if before.has_default != now.has_default:
        yield f'column "{before.name}" has {"a" if now.has_default else "no"} default now'
