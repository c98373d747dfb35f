"""The tables of a node: as its app sees them, and as the server has them now, by the catalog of Postgres itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from anabranch.scenario.audiences import visible_cells
from anabranch.scenario.node import Node
from anabranch.scenario.world import World
from anabranch.values import Table

_COLUMNS = """
select a.attname from pg_attribute a where a.attrelid = to_regclass(%s) and a.attnum > 0 and not a.attisdropped
"""
_OWN_PREFIX = "_db_"
"""The prefix of a device's own tables and columns, whatever its case."""


@dataclass(frozen=True, slots=True)
class SeenTable:
    """A table that a node has: ``here`` as its app knows it, ``now`` as the server has it."""

    here: Table
    now: Table

    def wanted(self, world: World, node: Node) -> Sequence[Sequence[Any]]:
        """The rows that the node must show, as cells of its app's columns: NULL for one that is gone."""
        cells = visible_cells(world, node, self.now)
        if self.here.column_names == self.now.column_names:
            return cells
        places = [self.now.index.get(name) for name in self.here.column_names]
        return [tuple(None if place is None else row[place] for place in places) for row in cells]


def tables_of(world: World, node: Node) -> list[SeenTable]:
    """The tables that a node has and the server, too."""
    naming = world.naming
    today = naming.at(None)
    known = today if node.pinned is None else naming.at(node.pinned)
    chosen = world.people.spec(node.name).tables
    return [
        SeenTable(_plain(known[number]), table)
        for number, table in today.items()
        if number in known and (chosen is None or table.name in chosen)
    ]


def _plain(table: Table) -> Table:
    """The table with every column in its rows' encodings, so that the same rows have the same."""
    return replace(table, columns=tuple(replace(column, initial=()) for column in table.columns))


def shape_differences(world: World, node: Node) -> list[str]:
    """Where the tables that the server has now, by its own catalog, are not those of the node, in words: what is not
    synced, what the node lacks, and what is gone and still there."""
    return [*_unsynced(world), *_other_columns(world, node), *_other_tables(world, node)]


def _unsynced(world: World) -> Iterator[str]:
    synced = {table.sql_name: table for table in world.naming.at(None).values()}
    there = world.tables_there()
    yield from (f"the server has no table {name} any more, and it is synced" for name in sorted(synced.keys() - there))
    if world.scenario.policy.get("new_tables") == "all":
        yield from (f"{name} is not synced" for name in sorted(there - synced.keys() - world.unsynced))
    for name in sorted(synced.keys() & there):
        found = {column for (column,) in world.conn.execute(_COLUMNS, (world.relation(name),))}
        known = {column.sql_name for column in synced[name].columns}
        if found != known:
            yield f"{name} has the columns {sorted(found)}, of which {sorted(known)} are synced"


def _other_columns(world: World, node: Node) -> Iterator[str]:
    with node.reader() as conn:
        for seen in tables_of(world, node):
            found = _columns_on(conn, seen.here.sql_name)
            wanted = {column.sql_name for column in seen.here.columns}
            if found != wanted:
                yield f"{seen.here.sql_name} has the columns {sorted(found)}, not {sorted(wanted)}"


def _columns_on(conn: sqlite3.Connection, table: str) -> set[str]:
    with closing(conn.execute("SELECT name FROM pragma_table_xinfo(?)", (table,))) as found:
        return {name for (name,) in found if not name.lower().startswith(_OWN_PREFIX)}


def _other_tables(world: World, node: Node) -> Iterator[str]:
    """Tables of the node that the server has had or has, and that its app should not see."""
    naming = world.naming
    known = {seen.here.sql_name for seen in tables_of(world, node)}
    if node.pinned is not None:
        # A table that went since may be there, without any rows or not at all.
        known |= {table.sql_name for table in naming.at(node.pinned).values()}
    ever = {table.sql_name for _, tables in naming.states for table in tables.values()}
    with node.reader() as conn:
        there = {name for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    yield from (f"{name} is still there" for name in sorted(there & ever - known))
