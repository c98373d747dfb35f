"""Writes of a device into tables that DDL changes: it looks into its own file, as an app would that has no fixed
schema, and writes what it finds there."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from typing import Any, NamedTuple

from anabranch.client import NotReady, RowExists, RowMissing, SyncedDb
from anabranch.store.cells.binary_cells import quote

SIZES = (1, 1, 1, 2, 4, 20)
_TABLES = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '\\_db\\_%' ESCAPE '\\' ORDER BY name"
_COLUMNS = "SELECT name, type, pk FROM pragma_table_info(?) WHERE name NOT LIKE '\\_db\\_%' ESCAPE '\\'"
# The schema may change between a look and a write, and a value that looked right may be none of its column's.
_PASSED = (RowMissing, RowExists, NotReady, ValueError, sqlite3.OperationalError)


class Shown(NamedTuple):
    """A column as SQLite shows it; ``key``: its place in the key, 0 for none."""

    name: str
    type: str
    key: int


def write(db: SyncedDb, chance: random.Random, mark: str) -> str:
    """Write one batch of some rows; return its id, "" where nothing fitted."""
    with db.batch() as batch:
        for part in range(chance.choice(SIZES)):
            try:
                _one(db, chance, f"{mark}.{part}")
            except _PASSED:
                continue
    return batch.id


def _one(db: SyncedDb, chance: random.Random, mark: str) -> None:
    names = [name for (name,) in db.execute(_TABLES).fetchall()]
    table = chance.choice(names)
    columns = [Shown(*row) for row in db.execute(_COLUMNS, (table,)).fetchall()]
    key = sorted((c for c in columns if c.key), key=lambda c: c.key)
    rest = [c for c in columns if not c.key]
    what = chance.random()
    if what < 0.4:
        new = {c.name: mark if c.type.startswith("TEXT") else chance.randrange(10**9) for c in key}
        db.table(table).insert({**new, **_values(db, chance, table, rest, mark)})
        return
    quoted = ", ".join(quote(c.name) for c in key)
    found = db.execute(f"SELECT {quoted} FROM {quote(table)} ORDER BY random() LIMIT 1").fetchone()
    if found is None:
        return
    named = dict(zip([c.name for c in key], found, strict=True))
    if what < 0.9:
        db.table(table).update({**named, **_values(db, chance, table, rest, mark)})
    else:
        db.table(table).delete(named)


def _values(db: SyncedDb, chance: random.Random, table: str, columns: Sequence[Shown], mark: str) -> dict[str, Any]:
    """Values for some columns: mostly one that another row has, so that it is one of its type."""
    found: dict[str, Any] = {}
    for column in chance.sample(columns, min(len(columns), chance.randint(1, 3))):
        name = quote(column.name)
        other = db.execute(
            f"SELECT {name} FROM {quote(table)} WHERE {name} IS NOT NULL ORDER BY random() LIMIT 1"
        ).fetchone()
        if column.type.startswith("TEXT") and chance.random() < 0.4:
            found[column.name] = mark
        elif other is not None:
            found[column.name] = other[0]
        else:
            found[column.name] = mark if column.type.startswith("TEXT") else chance.randint(0, 1)
    return found
