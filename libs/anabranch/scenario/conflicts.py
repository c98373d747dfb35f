"""The conflicts of a scenario's database, as the server keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.scenario.naming import every_column
from anabranch.scenario.world import World
from anabranch.v1 import change_pb2, value_pb2
from anabranch.values import Cell, Column, Table
from anabranch.values.messages import column_reader
from anabranch.wire.enum_names import enum_name

_CONFLICTS = """
select c.table_id, c.key, c.column_name, c.losing_value, c.cause from anabranch.conflicts c
join anabranch.databases d on d.id = c.database_id where d.name = %s order by c.position, c.batch_id, c.ordinal
"""


@dataclass(frozen=True, slots=True)
class Lost:
    """A value that lost, in a ``column`` of a ``table``, both as they are now or were last; ``column`` is None where a
    whole row did, and then there is no ``value``. ``cause``: "" where another value won."""

    table: Table
    key: str
    column: Column | None
    value: Cell
    cause: str


def conflicts(world: World) -> list[Lost]:
    """All of them, in the log's order."""
    tables = world.naming.last()
    found = []
    for table_id, key, name, raw, cause in world.conn.execute(_CONFLICTS, (world.name,)).fetchall():
        table = tables[table_id]
        column = every_column(table)[name] if name else None
        value = None if column is None else column_reader(column)(value_pb2.Value.FromString(raw))
        found.append(Lost(table, key, column, value, enum_name(change_pb2.LossCause, cause) if cause else ""))
    return found
