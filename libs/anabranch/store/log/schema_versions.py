"""The schema versions of a database: what each changed, when, and because of whom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, LiteralString

from anabranch.store.catalog.databases import (
    columns_from_json,
    columns_to_json,
    former_columns_from_json,
    former_columns_to_json,
)
from anabranch.store.session.steps import Statement, Steps
from anabranch.v1 import snapshot_pb2
from anabranch.values import Table

_CHANGES: LiteralString = """
select version, position, noticed_ms, role, application, command, change, tables
from anabranch.schema_changes
where database_id = %(database)s and version > %(after)s and version <= %(up_to)s
order by version
"""


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A schema change, which began a version. ``tables``: by number each table that was changed, came or went, as it
    was before and is after; ``pulled``: identities of those whose rows had to be pulled anew; ``texts``: what changed,
    for people. ``role``, ``application`` and ``command`` are "" where they are not known."""

    version: int
    position: int
    noticed_ms: int
    role: str
    application: str
    command: str
    tables: Mapping[int, tuple[Table | None, Table | None]]
    pulled: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def schema_versions(database_id: int, after: int, up_to: int) -> Steps[list[SchemaVersion]]:
    """The versions behind ``after``, up to ``up_to``, in order."""
    rows = yield Statement(_CHANGES, {"database": database_id, "after": after, "up_to": up_to})
    return [_version(*row) for row in rows]


def _version(
    version: int,
    position: int,
    noticed_ms: int,
    role: str,
    application: str,
    command: str,
    change: bytes,
    tables: Mapping[str, Mapping[str, Any]],
) -> SchemaVersion:
    pulled = snapshot_pb2.SchemaChange.FromString(change).pulled
    changed = {
        int(number): (table_from_json(int(number), one["before"]), table_from_json(int(number), one["after"]))
        for number, one in tables.items()
    }
    texts = tuple(text for number in sorted(changed) for text in _texts(changed[number], tables[str(number)]))
    return SchemaVersion(version, position, noticed_ms, role, application, command, changed, tuple(pulled), texts)


def _texts(changed: tuple[Table | None, Table | None], kept: Mapping[str, Any]) -> list[str]:
    """The changes of a table, with its columns said to be of it."""
    known = next((table for table in reversed(changed) if table is not None), None)
    of = "" if known is None else f' of table "{known.sql_name}"'
    return [text if text.startswith("table ") else f"{text}{of}" for text in kept.get("texts", ())]


def table_to_json(table: Table | None) -> dict[str, Any] | None:
    """A table before a change, or after it, as ``anabranch.schema_changes.tables`` keeps it; None: there is none."""
    if table is None:
        return None
    return {
        "name": table.name,
        "sql_name": table.sql_name,
        "columns": columns_to_json(table.columns),
        "key_columns": list(table.key_columns),
        "former_columns": former_columns_to_json(table.former),
    }


def table_from_json(number: int, kept: Mapping[str, Any] | None) -> Table | None:
    """The table of that number as ``table_to_json`` made it."""
    if kept is None:
        return None
    name, sql_name = kept["name"], kept.get("sql_name") or kept["name"]
    return Table(
        name,
        columns_from_json(kept["columns"], {}),
        tuple(kept["key_columns"]),
        number,
        renamed="" if sql_name == name else sql_name,
        former=former_columns_from_json(kept.get("former_columns") or []),
    )
