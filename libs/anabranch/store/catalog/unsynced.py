"""Tables that are registered and yet not synced, or not as a whole: the reason, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import psycopg

from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.drift import Drift, drift


class WhyUnsynced(StrEnum):
    """Why a table is not synced."""

    TORN = "torn"
    CHANGED = "changed"
    CAPTURE_OFF = "capture_off"


@dataclass(frozen=True, slots=True)
class Unsynced:
    """A table that is not synced, by its name in SQL: the reason, and a text with the remedy. ``audience``: its
    expression, without which it is not to be added anew."""

    table: str
    why: WhyUnsynced
    text: str
    audience: str | None = None


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a database that are not synced, each once, and the differences of the others that stop nothing."""

    unsynced: tuple[Unsynced, ...]
    notes: tuple[Drift, ...]


def look(conn: psycopg.Connection[Any], database: Database) -> Tables:
    """Look at the tables of a database.

    Raises:
        psycopg.Error: it can't be read.
    """
    differences = drift(conn, database)
    found: dict[str, Unsynced] = {}
    for table in _called(database, database.torn):
        text = "writes to it by SQL could not be brought into the log; remove it and add it anew"
        found[table] = Unsynced(table, WhyUnsynced.TORN, text)
    for one in differences:
        if one.stops:
            text = f"{one.text}; it is not what was registered: remove it and add it anew"
            found.setdefault(one.called, Unsynced(one.called, WhyUnsynced.CHANGED, text))
    for table in _called(database, database.uncaptured):
        text = "writes to it by SQL reach no device: turn its capture on again"
        found.setdefault(table, Unsynced(table, WhyUnsynced.CAPTURE_OFF, text))
    notes = tuple(one for one in differences if not one.stops)
    audiences = {database.tables[name].sql_name: one.expression for name, one in database.restricted.items()}
    return Tables(tuple(replace(found[table], audience=audiences.get(table)) for table in sorted(found)), notes)


def _called(database: Database, names: Set[str]) -> list[str]:
    """The names in SQL of those of the tables ``names`` that are synced."""
    return sorted(table.sql_name for name, table in database.tables.items() if name in names)


_ANEW = ("anabranch table remove {database} {table}", "anabranch table add {database} {table}")
COMMANDS: Mapping[WhyUnsynced, tuple[str, ...]] = MappingProxyType(
    {
        WhyUnsynced.TORN: _ANEW,
        WhyUnsynced.CHANGED: _ANEW,
        WhyUnsynced.CAPTURE_OFF: ("anabranch table capture on {database} {table}",),
    }
)
"""The commands that sync the table again; names are put in as a shell takes them."""
