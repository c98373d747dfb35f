"""Renames synced tables and columns, in Postgres and in their registrations, as a schema change does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from psycopg.types.json import Jsonb

from anabranch.store.catalog.databases import columns_to_json, load_database
from anabranch.store.catalog.identities import called
from anabranch.store.catalog.registration import tell
from anabranch.store.cells.binary_cells import quote
from anabranch.store.session.engine import Session
from anabranch.values import Table

_SET = """
update anabranch.synced_tables
set sql_name = nullif(%s, name), columns = %s, shape = anabranch.shape_of(relation::oid) where id = %s
"""
_DELETE_MARKERS = "delete from anabranch.captured where database_id = %s and type = 4"
_BETWEEN = "between {}"


@dataclass(frozen=True)
class Names:
    """The names in SQL that a table gets, and some of its columns by identity; "" keeps the table's."""

    table: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    def of(self, table: Table) -> Table:
        """The table with these names."""
        sql_name = self.table or table.sql_name
        columns = []
        for column in table.columns:
            now = replace(column, renamed=self.columns.get(column.name, column.sql_name))
            columns.append(called(now, column.name))
        return replace(table, columns=tuple(columns), renamed=sql_name if sql_name != table.name else "")


def rename(conn: Session, db_name: str, names: Mapping[str, Names]) -> None:
    """Rename tables, by identity, and their columns, all in one transaction; names may be swapped."""
    with conn.transaction():
        database = load_database(conn, db_name)
        schema = quote(database.schema_name)
        after = {name: to.of(database.tables[name]) for name, to in names.items()}
        for number, (name, now) in enumerate(after.items()):
            before, there = database.tables[name], f"{schema}.{quote(database.tables[name].sql_name)}"
            moved = [(was, is_) for was, is_ in zip(before.columns, now.columns, strict=True) if was != is_]
            for place, (was, _) in enumerate(moved):
                between = quote(_BETWEEN.format(place))
                conn.execute(f"alter table {there} rename column {quote(was.sql_name)} to {between}".encode())
            for place, (_, is_) in enumerate(moved):
                between = quote(_BETWEEN.format(place))
                conn.execute(f"alter table {there} rename column {between} to {quote(is_.sql_name)}".encode())
            conn.execute(f"alter table {there} rename to {quote(_BETWEEN.format(number))}".encode())
        for number, now in enumerate(after.values()):
            between = f"{schema}.{quote(_BETWEEN.format(number))}"
            conn.execute(f"alter table {between} rename to {quote(now.sql_name)}".encode())
            conn.execute(_SET, (now.sql_name, Jsonb(columns_to_json(now.columns)), now.id))
        conn.execute(_DELETE_MARKERS, (database.id,))
        tell(conn, database.id)
