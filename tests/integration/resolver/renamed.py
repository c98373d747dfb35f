"""A rig whose tables and columns have other names in SQL than when they were registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.store.catalog.databases import load_database
from anabranch.store.cells.binary_cells import quote
from anabranch.testkit.renaming import Names, rename
from anabranch.testkit.resolver_rig import ResolverRig

TABLES = """
create table list (id text primary key, code text, title text, constraint list_code unique (code));
create table todo (
    id text primary key, list_id text, title text, n smallint default 7, note varchar(5), needed text not null,
    constraint todo_list foreign key (list_id) references list (id),
    constraint todo_n check (n >= 0)
);
create table part (id text primary key, todo_id text constraint part_todo references todo on delete cascade);
create table pair (a int, b text, body text, primary key (a, b));
"""
TABLE_NAMES: Mapping[str, Any] = {"list": None, "todo": None, "part": None, "pair": None}

ODD: Mapping[str, Names] = {
    "list": Names('The "List"', {"id": "Key", "code": 'co"de'}),
    "todo": Names("To Do", {"id": "ID", "list_id": "of list", "n": 'N "o"', "needed": "Needed"}),
    "part": Names('"', {"todo_id": "select"}),
    "pair": Names(columns={"a": "A 1", "b": "B", "body": "Körper"}),
}
"""Names that have to be quoted."""
SWAPPED: Mapping[str, Names] = {
    "list": Names("todo", {"id": "code", "code": "id"}),
    "todo": Names("list", {"id": "title", "title": "list_id", "list_id": "id", "note": "needed", "needed": "note"}),
    "part": Names("pair", {"id": "todo_id", "todo_id": "id"}),
    "pair": Names("part", {"a": "b", "b": "a"}),
}
"""Names that are identities of others."""
RENAMES = {"odd": ODD, "swapped": SWAPPED}


class Renamed:
    """A rig, and its tables' and columns' names in SQL by identity."""

    def __init__(self, rig: ResolverRig, names: Mapping[str, Names]) -> None:
        self.rig = rig
        rename(rig.conn, rig.name, names)
        rig.database = load_database(rig.conn, rig.name)

    def table(self, name: str) -> str:
        """A table as SQL takes it."""
        return f"{self.rig.name}.{quote(self.rig.database.tables[name].sql_name)}"

    def column(self, table: str, name: str) -> str:
        """A column's name in SQL."""
        return self.rig.database.tables[table].by_name[name].sql_name

    def sql(self, text: str, table: str) -> list[tuple[Any, ...]]:
        """Run SQL that has identities of a table and its columns in braces."""
        columns = {name: quote(self.column(table, name)) for name in self.rig.database.tables[table].by_name}
        return self.rig.sql(text.format(table=self.table(table), **columns))

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of a table, the columns named by their identities, in the order of the first one."""
        listed = ", ".join(quote(self.column(table, name)) for name in columns)
        return self.rig.sql(f"select {listed} from {self.table(table)} order by 1")
