"""The meaning of the markers that wait for a database: reads what ``difference`` has to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, LiteralString

import psycopg

from anabranch.errors import ServerError
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.identities import new_identity
from anabranch.store.catalog.policy import TablePolicy
from anabranch.store.catalog.refusals import STOPPING, why_not
from anabranch.store.catalog.relation import Relation, relations_of, types_of
from anabranch.store.cells.binary_cells import quote
from anabranch.store.ddl.difference import Registered, TableChange, difference, new_table
from anabranch.store.ddl.markers import Marker, waiting
from anabranch.store.ddl.shapes import Shape, columns_of, is_like, shape_of_columns
from anabranch.store.session.steps import run
from anabranch.values import Table
from anabranch.values.postgres_types import Types

Connection = psycopg.Connection[Any]

_REGISTERED: LiteralString = """
select id, shape, relation from anabranch.synced_tables where database_id = %s and id = any(%s)
"""
_CAPTURED_BY: LiteralString = """
select pg_catalog.split_part(pg_catalog.encode(t.tgargs, 'escape'), '\\000', 2)::int
from pg_catalog.pg_trigger t join pg_catalog.pg_proc p on p.oid = t.tgfoid
join pg_catalog.pg_namespace n on n.oid = p.pronamespace
where n.nspname = 'anabranch' and p.proname = 'capture_truncate'
  and pg_catalog.split_part(pg_catalog.encode(t.tgargs, 'escape'), '\\000', 1) = %s::text
"""
_PRESENT: LiteralString = """
select o.oid, anabranch.shape_of(o.oid::oid) from unnest(%s::int8[]) as o (oid)
"""
_UNREAD: LiteralString = """
select c.relname::text, session_user::text
from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
where n.nspname = %s and c.relname = any(%s) and not pg_catalog.has_table_privilege(c.oid, 'SELECT')
"""
_AUDIENCE: LiteralString = "select expression from anabranch.followed_audience(%s)"


class AlteredMeanwhileError(ServerError):
    """Tables are altered at this very moment: the caller rolls back, and looks again."""

    REASON = "UNAVAILABLE"


def changes_of(conn: Connection, database: Database, markers: Sequence[Marker], *, position: int) -> list[TableChange]:
    """One change for each table that ``markers`` name, in the order of their first markers. Tables of which nothing
    changed in the end are among them (``nothing``), and those that can't be synced (``refused``), as one that this
    session may not read. ``position``: that of the group.

    The tables are locked against further DDL, to the transaction's end, which so waits for a group commit at most, and
    for no long one (``in_the_way``); where others hold a table, this fails at once. Nothing is written.

    Raises:
        AlteredMeanwhileError: a table has been altered since the markers were read.
        psycopg.errors.LockNotAvailable: a table is being altered.
        psycopg.Error: the catalog can't be read.
    """
    of_tables: dict[int, list[Marker]] = {}
    schema_name = database.schema_name
    for marker in markers:
        if marker.schema_name:
            schema_name = marker.schema_name
        else:
            of_tables.setdefault(marker.table_id, []).append(marker)
    here = [of_table[-1].sql_name for of_table in of_tables.values() if not of_table[-1].dropped]
    unread = dict(conn.execute(_UNREAD, (schema_name, here)).fetchall())
    _lock(conn, schema_name, [name for name in here if name not in unread])
    if [marker.id for marker in waiting(conn, database.id)] != [marker.id for marker in markers]:
        raise AlteredMeanwhileError("tables were altered while the group began")
    return _Reading(conn, database, schema_name, position, of_tables, unread).changes()


def _lock(conn: Connection, schema_name: str, names: Iterable[str]) -> None:
    for name in sorted(names):
        try:
            conn.execute(f"lock table {quote(schema_name)}.{quote(name)} in access share mode nowait".encode())
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
            raise AlteredMeanwhileError(f'table "{name}" has another name by now') from error


class _Reading:
    """The material of one group's changes."""

    def __init__(
        self,
        conn: Connection,
        database: Database,
        schema_name: str,
        position: int,
        of_tables: dict[int, list[Marker]],
        unread: Mapping[str, str],
    ) -> None:
        # By name in SQL, tables that this session may not read, with its role.
        self.unread = unread
        self.conn, self.database, self.position, self.of_tables = conn, database, position, of_tables
        rows = conn.execute(_REGISTERED, (database.id, list(of_tables))).fetchall()
        self.kept = {number: (shape, relation) for number, shape, relation in rows}
        names = [markers[-1].sql_name for markers in of_tables.values()]
        self.relations, _ = run(conn, relations_of(schema_name, names))
        self.captured = {number for (number,) in conn.execute(_CAPTURED_BY, (database.id,)).fetchall()}
        oids = [relation.oid for relation in self.relations.values() if relation.kind == "r"]
        present = {oid: Shape.from_json(shape) for oid, shape in conn.execute(_PRESENT, (oids,)).fetchall()}
        self.of_tables = of_tables = {
            number: self._to_the_present(markers, present) for number, markers in of_tables.items()
        }
        # By number, as the tables are called from here on.
        self.called = {table.id: table.sql_name for table in database.tables.values()}
        self.called |= {number: markers[-1].sql_name for number, markers in of_tables.items()}
        gone = {number for number, markers in of_tables.items() if markers[-1].dropped}
        self.called = {number: name for number, name in self.called.items() if number not in gone}
        self.identities = {*database.tables, *database.gone}
        self.types = self._types()

    def _to_the_present(self, markers: list[Marker], present: dict[int, Shape]) -> list[Marker]:
        """The markers of a table, with one more where the last is not how the table is: its transaction may not have
        seen all that others altered, nor that it was dropped, or two that altered types may not have seen each
        other."""
        last = markers[-1]
        relation = self.relations.get(last.sql_name)
        gone = next((marker for marker in reversed(markers) if marker.dropped), None)
        if gone is not None and not last.dropped and (relation is None or relation.oid != last.relation):
            # A session that looked while it was being dropped may have written its marker afterwards.
            return [*markers, replace(gone, id=last.id)]
        shape = None if relation is None or last.dropped else present.get(relation.oid)
        if relation is None or shape is None or last.shape is None or is_like(shape, last.shape):
            return markers
        seen, has = ([(c.number, c.oid) for c in columns_of(one)] for one in (last.shape, shape))
        ambiguous = "" if seen == has else "others had altered it, and not all of that was seen when it was altered"
        return [*markers, replace(last, shape=shape, relation=relation.oid, rewritten=0, ambiguous=ambiguous)]

    def _types(self) -> Types:
        shapes = [markers[-1].shape for markers in self.of_tables.values()]
        oids = {c.type_oid for shape in shapes if shape is not None for c in shape.columns}
        for kept, _ in self.kept.values():
            oids |= {int(c["oid"]) for c in (kept or {"columns": ()})["columns"]}
        return run(self.conn, types_of(oids - {0}))

    def changes(self) -> list[TableChange]:
        found = []
        for number, markers in self.of_tables.items():
            table = self.database.tables_by_id.get(number)
            if table is not None:
                found.append(self._registered(table, markers))
            elif any(marker.created for marker in markers):
                found.append(self._new(markers))
            else:
                # Its registration has ended.
                found.append(TableChange(None, None, markers=tuple(markers)))
        return found

    def _registered(self, table: Table, markers: list[Marker]) -> TableChange:
        kept, relation = self.kept.get(table.id, (None, 0))
        following = next((marker.shape for marker in markers if marker.shape is not None), None)
        shape = shape_of_columns(table, following) if kept is None else Shape.from_json(kept)
        registered = Registered(table, shape, relation)
        change = difference(
            registered, markers, self.types, position=self.position, refusals=self._refusals(table, markers)
        )
        if change.after is None or change.refused:
            return change
        if table.name in self.database.torn and not change.pulled:
            pulled = "its changes could not be read meanwhile"
            change = replace(change, pulled=pulled, rewritten=frozenset(), recount=True)
        if trouble := self._audience_trouble(change):
            return difference(registered, markers, self.types, position=self.position, refusals=[trouble])
        return change

    def _refusals(self, table: Table, markers: list[Marker]) -> list[str]:
        last = markers[-1]
        if last.dropped:
            return []
        relation = self.relations.get(last.sql_name)
        if relation is None or table.id not in self.captured:
            return ["its direct writes are not captured: its triggers are gone"]
        if refused := self._right(last.sql_name):
            return refused
        policy = self.database.table_policies[table.name]
        restricted = table.name in self.database.restricted
        others = [name for number, name in self.called.items() if number != table.id]
        policy = policy.model_copy(update={"columns": {}})
        found = why_not(relation, self.types_of(relation), policy, others, restricted=restricted)
        return [refused.text for refused in found if refused.reason in STOPPING]

    def _right(self, name: str) -> list[str]:
        """Why a table can't be read, none where it can."""
        if name not in self.unread:
            return []
        role = quote(self.unread[name])
        return [f"role {role} may not read it: grant it SELECT, and alter it again, or remove it and add it anew"]

    def types_of(self, relation: Relation) -> Types:
        """All types of a relation."""
        missing = {c.type_oid for c in relation.columns} - self.types.keys()
        if missing:
            self.types = {**self.types, **run(self.conn, types_of(missing))}
        return self.types

    def _audience_trouble(self, change: TableChange) -> str:
        """Why the table's audience expression can't go on, "" where it can."""
        assert change.before is not None
        audience = self.database.restricted.get(change.before.name)
        if audience is None:
            return ""
        read = {change.before.by_sql_name[name].name: name for name in audience.columns}
        for former in change.dropped:
            if former.column.name in read:
                what = "has another type now" if former.successor else "was dropped"
                return (
                    f'its audience expression reads column "{former.column.sql_name}", which {what}: give it another '
                    "one (`anabranch table audience`)"
                )
        if any(name in read for name in change.renamed):
            [(expression,)] = self.conn.execute(_AUDIENCE, (change.before.id,)).fetchall()
            if expression is None:
                names = ", ".join(f'"{was}"' for name, (was, _) in change.renamed.items() if name in read)
                return (
                    f"its audience expression reads {names}, under another name now, and can't be written anew: give "
                    "it another one (`anabranch table audience`)"
                )
        return ""

    def _new(self, markers: list[Marker]) -> TableChange:
        last = markers[-1]
        if last.dropped or last.shape is None:
            return TableChange(None, None, markers=tuple(markers))
        name = new_identity(last.sql_name, self.identities)
        self.identities.add(name)
        refusals = ["it is not there"]
        if relation := self.relations.get(last.sql_name):
            others = [one for number, one in self.called.items() if number != last.table_id]
            found = why_not(relation, self.types_of(relation), TablePolicy(), others)
            refusals = self._right(last.sql_name) + [refused.text for refused in found]
        return new_table(last, last.shape, self.types, name=name, markers=markers, refusals=refusals)
