"""Tables that are registered and yet not synced, or not as a whole: the reason, and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, LiteralString

import psycopg

from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.drift import Drift, drift
from anabranch.store.catalog.refusals import STOPPING, TableRefusal

_ALTERED: LiteralString = "select distinct table_id from anabranch.captured where database_id = %s and type = 4"


class WhyUnsynced(StrEnum):
    """Why a table is not synced."""

    TORN = "torn"
    REFUSED = "refused"
    CHANGED = "changed"
    CAPTURE_OFF = "capture_off"


@dataclass(frozen=True, slots=True)
class Unsynced:
    """A table that is not synced, by its name in SQL: the reason, and a text with the remedy. ``audience``: its
    expression, without which it is not to be added anew; ``refusals``: what has to be mended by SQL."""

    table: str
    why: WhyUnsynced
    text: str
    audience: str | None = None
    refusals: tuple[TableRefusal, ...] = ()


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
    waiting = {number for (number,) in conn.execute(_ALTERED, (database.id,)).fetchall()}
    found: dict[str, Unsynced] = {}
    for table in database.tables.values():
        if table.name in database.torn:
            own = [one for one in differences if one.table == table.name]
            found[table.sql_name] = (
                _refused(table.sql_name, own) if table.name in database.refused else _torn(table.sql_name)
            )
    for one in differences:
        if one.stops and database.tables[one.table].id not in waiting:
            text = f"{one.text}; the log does not have that yet: the resolver takes it by itself"
            found.setdefault(one.called, Unsynced(one.called, WhyUnsynced.CHANGED, text))
    for name in _called(database, database.uncaptured):
        text = "writes to it by SQL reach no device: turn its capture on again"
        found.setdefault(name, Unsynced(name, WhyUnsynced.CAPTURE_OFF, text))
    audiences = {database.tables[name].sql_name: one.expression for name, one in database.restricted.items()}
    unsynced = tuple(replace(found[table], audience=audiences.get(table)) for table in sorted(found))
    told = {one.table for one in unsynced if one.refusals}
    notes = tuple(one for one in differences if not one.stops and not (one.refusal and one.called in told))
    return Tables(unsynced, notes)


def _torn(name: str) -> Unsynced:
    text = "writes to it by SQL could not be brought into the log; remove it and add it anew"
    return Unsynced(name, WhyUnsynced.TORN, text)


def _refused(name: str, differences: Sequence[Drift]) -> Unsynced:
    """A table that was altered so that it can't be synced, by its differences."""
    stopping = [one for one in differences if one.refusal in STOPPING]
    told = stopping or [one for one in differences if one.stops]
    why = f" ({'; '.join(one.text for one in told)})" if told else ""
    text = f"it was altered so that it can't be synced{why}; once that is mended it is pulled anew by itself"
    reasons = tuple(one.refusal for one in stopping if one.refusal is not None)
    return Unsynced(name, WhyUnsynced.REFUSED, text, refusals=reasons)


def _called(database: Database, names: Set[str]) -> list[str]:
    """The names in SQL of those of the tables ``names`` that are synced."""
    return sorted(table.sql_name for name, table in database.tables.items() if name in names)


_ANEW = ("anabranch table remove {database} {table}", "anabranch table add {database} {table}")
COMMANDS: Mapping[WhyUnsynced, tuple[str, ...]] = MappingProxyType(
    {
        WhyUnsynced.TORN: _ANEW,
        WhyUnsynced.REFUSED: (),
        WhyUnsynced.CHANGED: (),
        WhyUnsynced.CAPTURE_OFF: ("anabranch table capture on {database} {table}",),
    }
)
"""The commands that sync the table again; names are put in as a shell takes them."""
