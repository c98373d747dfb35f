"""The conflicts of a scenario's database, as the server keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.scenario.world import World
from anabranch.v1 import value_pb2
from anabranch.values import Cell, Table
from anabranch.values.messages import column_reader

_CONFLICTS = """
select c.table_id, c.key, c.column_name, c.losing_value from anabranch.conflicts c
join anabranch.databases d on d.id = c.database_id where d.name = %s order by c.position, c.batch_id, c.ordinal
"""


@dataclass(frozen=True, slots=True)
class Lost:
    """A value that lost. ``column`` is "" where a whole row did; then there is no ``value``."""

    table: Table
    key: str
    column: str
    value: Cell


def conflicts(world: World) -> list[Lost]:
    """All of them, in the log's order."""
    tables = world.database.tables_by_id
    found = []
    for table_id, key, column, raw in world.conn.execute(_CONFLICTS, (world.name,)).fetchall():
        table = tables[table_id]
        value = None
        if column:
            value = column_reader(table.by_name[column])(value_pb2.Value.FromString(raw))
        found.append(Lost(table, key, column, value))
    return found
