"""The synced tables of a story's database by their names in SQL: as they are now, and as they were before each change
of the schema, so that what a node was told before one can be told after it, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from anabranch.store.catalog.databases import columns_from_json, former_columns_from_json
from anabranch.store.session.engine import Session
from anabranch.values import Column, Table

Tables = Mapping[int, Table]
"""Tables by the server's number."""

_CHANGES = """
select c.version, c.tables from anabranch.schema_changes c join anabranch.databases d on d.id = c.database_id
where d.name = %s order by c.version desc
"""


@dataclass(frozen=True, slots=True)
class Naming:
    """``states``: each schema version with its tables, the newest first."""

    states: tuple[tuple[int, Tables], ...]

    @property
    def version(self) -> int:
        """The version that the database has now."""
        return self.states[0][0]

    def at(self, version: int | None) -> Tables:
        """The tables of a version; None, and one that is not there yet: the newest."""
        return next((tables for number, tables in self.states if number == version), self.states[0][1])

    def from_version(self, version: int | None) -> Iterator[Tables]:
        """The tables of a version, then those of the ones before it, the newest first."""
        known = [number for number, _ in self.states]
        start = known.index(version) if version in known else 0
        return (tables for _, tables in self.states[start:])

    def table(self, name: str, version: int | None = None) -> Table | None:
        """The table that has the name at a version, or had it last before; None where none ever had."""
        for tables in self.from_version(version):
            found = [table for table in tables.values() if table.sql_name == name]
            if found:
                return found[0]
        return None

    def last(self) -> dict[int, Table]:
        """Every table that ever was, as it is now or was last."""
        found: dict[int, Table] = {}
        for _, tables in self.states:
            for number, table in tables.items():
                found.setdefault(number, table)
        return found


def read_naming(conn: Session, database: str, version: int, today: Tables) -> Naming:
    """The naming of a database that has the ``version`` and its tables ``today``."""
    changes = conn.execute(_CHANGES, (database,)).fetchall()
    return Naming(((version, today), *_before(dict(today), changes)))


def _before(tables: dict[int, Table], changes: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, Tables]]:
    for version, changed in changes:
        tables = dict(tables)
        for number, states in changed.items():
            if states["before"] is None:
                tables.pop(int(number), None)
            else:
                tables[int(number)] = _table(int(number), states["before"])
        yield version - 1, tables


def _table(number: int, kept: Mapping[str, Any]) -> Table:
    return Table(
        kept["name"],
        columns_from_json(kept["columns"], {}),
        tuple(kept["key_columns"]),
        number,
        renamed=kept["sql_name"] or "",
        former=former_columns_from_json(kept["former_columns"]),
    )


def by_sql_name(table: Table) -> dict[str, Column]:
    """The table's columns by their names in SQL."""
    return {column.sql_name: column for column in table.columns}


def every_column(table: Table) -> dict[str, Column]:
    """The table's columns by identity, and those that it had."""
    return {**{former.column.name: former.column for former in table.former}, **table.by_name}


def column_named(table: Table | None, name: str) -> Column | None:
    """The column of that name in SQL, or the last that had it."""
    if table is None:
        return None
    former = {one.column.sql_name: one.column for one in table.former}
    return {**former, **by_sql_name(table)}.get(name)
