"""Tables that are registered and yet not synced, or not whole: why, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
    """A table that is not synced: why, and in words with what to do."""

    table: str
    why: WhyUnsynced
    text: str


@dataclass(frozen=True, slots=True)
class Tables:
    """Of a database: the tables that are not synced, each once, and what is worth knowing about the others."""

    unsynced: tuple[Unsynced, ...]
    notes: tuple[Drift, ...]


def look(conn: psycopg.Connection[Any], database: Database) -> Tables:
    """How the tables of a database are.

    Raises:
        psycopg.Error: it can't be read.
    """
    differences = drift(conn, database)
    found: dict[str, Unsynced] = {}
    for table in sorted(database.torn & database.tables.keys()):
        text = "what was written to it by SQL could not be brought into the log; remove it and add it anew"
        found[table] = Unsynced(table, WhyUnsynced.TORN, text)
    for one in differences:
        if one.stops:
            text = f"{one.text}; it is not what was registered: remove it and add it anew"
            found.setdefault(one.table, Unsynced(one.table, WhyUnsynced.CHANGED, text))
    for table in sorted(database.uncaptured & database.tables.keys()):
        text = "what is written to it by SQL reaches no device: turn its capture on again"
        found.setdefault(table, Unsynced(table, WhyUnsynced.CAPTURE_OFF, text))
    notes = tuple(one for one in differences if not one.stops)
    return Tables(tuple(found[table] for table in sorted(found)), notes)


_ANEW = ("anabranch table remove {database} {table}", "anabranch table add {database} {table}")
COMMANDS: Mapping[WhyUnsynced, tuple[str, ...]] = MappingProxyType(
    {
        WhyUnsynced.TORN: _ANEW,
        WhyUnsynced.CHANGED: _ANEW,
        WhyUnsynced.CAPTURE_OFF: ("anabranch table capture on {database} {table}",),
    }
)
"""What puts an end to it; names are put in as a shell takes them."""
