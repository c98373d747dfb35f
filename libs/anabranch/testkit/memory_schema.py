"""Schema changes of the server in memory: DDL of somebody else, as the log and Describe tell it.

Tables and columns go by identities; ``Ddl`` is one transaction of DDL and SQL, which becomes one group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from anabranch.client.errors import AppOutdated
from anabranch.merge import MutationType, RowState
from anabranch.merge.model import Cell
from anabranch.testkit.memory_messages import table_message
from anabranch.testkit.memory_server import Effect, MemoryServer, MemoryTable
from anabranch.v1 import snapshot_pb2
from anabranch.values import Column, Kind, Table

Tables = dict[str, Table]
Cast = Callable[[Cell], Cell]


@dataclass(frozen=True)
class Successor:
    """The column that a retyped one became, and how a value is cast; raises ValueError where it can't be."""

    name: str
    cast: Cast


class MemorySchema:
    """The tables of a server by identity, today's and those of every version, and what the log says of the changes."""

    def __init__(self, server: MemoryServer, tables: Sequence[Table]) -> None:
        self.server = server
        self.tables: Tables = {t.name: t for t in tables}
        self.versions: list[Tables] = [dict(self.tables)]
        self.changes: dict[int, bytes] = {}
        self.changed_at: dict[str, int] = {}
        self.breaking: list[tuple[int, str, str]] = []
        """By version: the table, and the column of it, that an app of before can't be told any more; "" for all."""
        self.successors: dict[tuple[str, str], Successor] = {}
        self.ever: dict[str, dict[str, Column]] = {t.name: dict(t.by_name) for t in tables}
        """Every column that a table has had, by identity."""
        self.tells_created = True

    @property
    def version(self) -> int:
        """The schema version of today."""
        return len(self.versions)

    def column(self, table: str, name: str) -> Column:
        """A column that the table has, or had."""
        return self.ever[table][name]

    def described(self, app_version: int, restricted: Callable[[Table], bool]) -> list[snapshot_pb2.Table]:
        """The tables as Describe tells them. Raises AppOutdated."""
        messages = []
        then = self.versions[app_version - 1] if app_version else None
        if then is not None:
            self._require(app_version, then)
        for table in self.tables.values():
            message = table_message(table, restricted(table))
            message.changed_position = self.changed_at.get(table.name, 0)
            if then is not None:
                _as_then(message, then.get(table.name))
            messages.append(message)
        return messages

    def _require(self, app_version: int, then: Tables) -> None:
        needed = 0
        for version, table, column in self.breaking:
            known = table in then and (not column or column in then[table].by_name)
            needed = version if version > app_version and known else needed
        if needed:
            raise AppOutdated("the app is too old", needed)

    def begin(self) -> Ddl:
        """A transaction of DDL."""
        return Ddl(self)

    def enter(self, ddl: Ddl, position: int, restricted: Callable[[Table], bool]) -> None:
        """Carry a transaction out, at its position."""
        new = ddl.pulled | ddl.created
        changed = [n for n, t in ddl.tables.items() if self.tables.get(n) != t or n in new]
        dropped = [n for n in self.tables if n not in ddl.tables or n in ddl.created]
        if not changed and not dropped:
            return
        self.tables = ddl.tables
        self.versions.append(dict(ddl.tables))
        for name in changed:
            self.changed_at[name] = position
        messages = [table_message(self.tables[name], restricted(self.tables[name])) for name in changed]
        for message in messages:
            message.changed_position = position
            for column in message.columns:
                column.policy = ""
        self.changes[position] = snapshot_pb2.SchemaChange(
            version=self.version,
            tables=messages,
            dropped=dropped,
            pulled=sorted(ddl.pulled),
            created=sorted(ddl.created) if self.tells_created else (),
        ).SerializeToString()
        self.breaking += [(self.version, table, column) for table, column in ddl.breaking]


def _as_then(message: snapshot_pb2.Table, then: Table | None) -> None:
    if then is None:
        message.hidden = True
        return
    message.sql_name = then.renamed
    there = set()
    for column in message.columns:
        there.add(column.name)
        column.hidden = column.name not in then.by_name
        if not column.hidden:
            column.sql_name = then.by_name[column.name].renamed
    for column in table_message(then).columns:
        if column.name not in there:
            column.gone = True
            message.columns.add().CopyFrom(column)


class Ddl:
    """One transaction. Names are identities but for new names in SQL; rows change at once, their effects follow in the
    group. Its statements give itself, or the identity of the column that they made."""

    def __init__(self, schema: MemorySchema) -> None:
        self._schema = schema
        self._server = schema.server
        self.tables: Tables = dict(schema.tables)
        self.created: set[str] = set()
        self.pulled: set[str] = set()
        self.breaking: list[tuple[str, str]] = []
        self.effects: list[Effect] = []

    def rename_table(self, table: str, sql_name: str) -> Ddl:
        """ALTER TABLE … RENAME TO."""
        self.tables[table] = replace(self.tables[table], renamed="" if sql_name == table else sql_name)
        return self

    def rename_column(self, table: str, column: str, sql_name: str) -> Ddl:
        """ALTER TABLE … RENAME COLUMN."""
        renamed = "" if sql_name == column else sql_name
        self._columns(table, [replace(c, renamed=renamed) if c.name == column else c for c in self._of(table)])
        return self

    def relabel(self, table: str, column: str, postgres_type: str) -> Ddl:
        """ALTER COLUMN … TYPE within one kind, whose values stay."""
        self._columns(
            table, [replace(c, postgres_type=postgres_type) if c.name == column else c for c in self._of(table)]
        )
        return self

    def add_column(
        self,
        table: str,
        sql_name: str,
        kind: Kind = Kind.STRING,
        postgres_type: str = "text",
        initial: Cell = None,
        values: Callable[[Mapping[str, Cell]], Cell] | None = None,
    ) -> str:
        """ADD COLUMN, with a constant or NULL in the rows that are there (``initial``), or with ``values`` computed for
        each, which follow as effects. Gives its identity."""
        name = self._identity(table, sql_name)
        column = Column(name, kind, postgres_type, renamed="" if name == sql_name else sql_name, initial=(initial,))
        self._columns(table, [*self._of(table), column])
        self._schema.ever[table][name] = column
        self._rows(table, lambda row: {**row, name: initial})
        if values is not None:
            self.rewrite(table, name, values)
        return name

    def drop_column(self, table: str, column: str) -> Ddl:
        """DROP COLUMN."""
        self._columns(table, [c for c in self._of(table) if c.name != column])
        self._rows(table, lambda row: {n: v for n, v in row.items() if n != column})
        return self

    def retype(
        self, table: str, column: str, kind: Kind, postgres_type: str, cast: Cast, using: Cast | None = None
    ) -> str:
        """ALTER COLUMN … TYPE to another kind: a new identity, whose values follow as effects. Rows get theirs by
        ``using``, where it is given, and queued batches by ``cast``."""
        place = [c.name for c in self._of(table)].index(column)
        old = self._of(table)[place]
        cells = {key: row[column] for key, row in self._live(table).items()}
        self.drop_column(table, column)
        name = self.add_column(table, old.sql_name, kind, postgres_type)
        columns = self._of(table)
        self._columns(table, [*columns[:place], columns[-1], *columns[place:-1]])
        self._schema.successors[table, column] = Successor(name, cast)
        self.breaking.append((table, column))
        self.rewrite(table, name, lambda row: (using or cast)(cells[str(row["id"])]))
        return name

    def rewrite(self, table: str, column: str, values: Callable[[Mapping[str, Cell]], Cell]) -> Ddl:
        """Give a column other values without a row trigger: they follow as effects of that column alone."""
        for key, row in self._live(table).items():
            cell = values(row)
            if cell != row[column]:
                self._set(table, key, {**row, column: cell})
                self._effect(table, key, MutationType.UPDATE, {column: cell})
        return self

    def create(self, table: Table, rows: Sequence[Mapping[str, Cell]] = ()) -> Ddl:
        """CREATE TABLE, registered by itself, and rows of it."""
        self.tables[table.name] = table
        self.created.add(table.name)
        self._schema.ever.setdefault(table.name, {}).update(table.by_name)
        self._server.tables = {**self._server.tables, table.name: MemoryTable(dict.fromkeys(table.column_names))}
        for row in rows:
            self.insert(table.name, row)
        return self

    def drop_table(self, table: str) -> Ddl:
        """DROP TABLE."""
        del self.tables[table]
        for key in self._live(table):
            del self._server.rows[table, key]
        return self

    def make_anew(self, table: Table, rows: Sequence[Mapping[str, Cell]]) -> Ddl:
        """Another key, or what else can't go on: registered anew, to be pulled."""
        for key in self._live(table.name):
            del self._server.rows[table.name, key]
        self.tables[table.name] = table
        self.pulled.add(table.name)
        self.breaking.append((table.name, ""))
        self._schema.ever[table.name].update(table.by_name)
        old = self._server.tables[table.name]
        changed = MemoryTable(dict.fromkeys(table.column_names), audience=old.audience)
        self._server.tables = {**self._server.tables, table.name: changed}
        for row in rows:
            self._set(table.name, str(row["id"]), row)
        return self

    def insert(self, table: str, row: Mapping[str, Cell]) -> Ddl:
        """INSERT of one row."""
        whole = {**dict.fromkeys(self.tables[table].column_names), **row}
        self._set(table, str(row["id"]), whole)
        self._effect(table, str(row["id"]), MutationType.INSERT, whole)
        return self

    def update(self, table: str, key: str, **values: Cell) -> Ddl:
        """UPDATE of one row."""
        self._set(table, key, {**self._live(table)[key], **values})
        self._effect(table, key, MutationType.UPDATE, values)
        return self

    def delete(self, table: str, key: str) -> Ddl:
        """DELETE of one row."""
        before = self._audiences(table, self._live(table)[key])
        del self._server.rows[table, key]
        self.effects.append(
            Effect(table, key, MutationType.DELETE, {}, before, None if before is None else frozenset())
        )
        return self

    def _identity(self, table: str, sql_name: str) -> str:
        known = {name.lower() for name in self._schema.ever[table]}
        names = (sql_name if n == 1 else f"{sql_name}~{n}" for n in count(1))
        return next(name for name in names if name.lower() not in known)

    def _of(self, table: str) -> list[Column]:
        return list(self.tables[table].columns)

    def _columns(self, table: str, columns: Sequence[Column]) -> None:
        self.tables[table] = replace(self.tables[table], columns=tuple(columns))
        old = self._server.tables[table]
        names = {c.name: old.columns.get(c.name) for c in columns}
        self._server.tables = {**self._server.tables, table: replace(old, columns=names)}

    def _live(self, table: str) -> dict[str, Mapping[str, Cell]]:
        return {key: row for (name, key), row in self._server.live().items() if name == table}

    def _rows(self, table: str, change: Callable[[Mapping[str, Cell]], Mapping[str, Cell]]) -> None:
        for key, row in self._live(table).items():
            self._set(table, key, change(row))

    def _set(self, table: str, key: str, row: Mapping[str, Cell]) -> None:
        state = self._server.rows.get((table, key))
        self._server.rows[table, key] = RowState(dict(row), None if state is None else state.version)

    def _audiences(self, table: str, row: Mapping[str, Cell]) -> frozenset[str] | None:
        return self._server.audiences(table, row)

    def _effect(self, table: str, key: str, kind: MutationType, values: Mapping[str, Cell]) -> None:
        whose = self._audiences(table, self._live(table)[key])
        before = frozenset() if whose is not None and kind is MutationType.INSERT else whose
        self.effects.append(Effect(table, key, kind, dict(values), before, whose))
