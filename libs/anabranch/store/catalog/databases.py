"""Databases and their synced tables, as every service sees them.

A ``Database`` is a value of one moment: read once, handed around, and read anew when ``schema_version`` has
moved (``NOTIFY`` on ``CATALOG_CHANNEL``, with polling behind it). Its columns are those of registration, not
those of the present catalog; ``drift`` finds where the two differ. Constraints are read from the present catalog.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, LiteralString

import psycopg

from anabranch.errors import ServerError
from anabranch.merge.model import Policy
from anabranch.store.audiences.expression import Audience
from anabranch.store.audiences.rules import AudienceRules, followed, rules_from_json
from anabranch.store.catalog.policy import DatabasePolicy, TablePolicy, database_policy, effective, table_policy
from anabranch.store.catalog.relation import Constraints, ForeignKey, UniqueKey, base_types_of, constraints_of
from anabranch.store.catalog.table_order import TableOrder, table_order
from anabranch.store.session.steps import Statement, Steps, arun, run
from anabranch.v1 import value_pb2
from anabranch.values import Column, Kind, Table
from anabranch.values.messages import column_reader, column_writer
from anabranch.values.table import FormerColumn


class UnknownDatabaseError(ServerError, LookupError):
    """No such database."""

    REASON = "UNKNOWN_DATABASE"


@dataclass(frozen=True)
class Database:
    """A database at one schema version. Its tables are known by their identities, as their columns are.
    ``table_policies`` holds the tables' own rules, which override ``policy``; ``constraints`` the constraints on their
    rows; ``first_positions`` the head when each was registered."""

    id: int
    name: str
    schema_name: str
    epoch: str
    floor_ms: int
    schema_version: int
    policy: DatabasePolicy
    seal_key: bytes = field(repr=False)
    tables: Mapping[str, Table]
    table_policies: Mapping[str, TablePolicy]
    constraints: Mapping[str, Constraints]
    first_positions: Mapping[str, int]
    uncaptured: frozenset[str] = frozenset()
    """Tables whose direct writes are not captured, on purpose."""
    torn: frozenset[str] = frozenset()
    """Tables whose direct writes are missing in the log, since these could not be read."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Those of them that were altered so that they can't be synced, and why."""
    restricted: Mapping[str, Audience] = field(default_factory=dict)
    """By table, the expression that says who sees which rows; every device sees every row of the others."""
    audience_rules: AudienceRules = field(default_factory=AudienceRules)
    """Where principals have their audiences from."""
    was_restricted: bool = False
    """Whether the log may have changes of a restricted table that is not synced any more, or was registered anew."""
    gone: frozenset[str] = frozenset()
    """Identities of tables that were synced once and are no more: what was made for one is for no other table, whatever
    this one is called."""
    ddl_version: int = 1
    """The number of the last schema change, as applications are told of it; 1 before the first."""
    changed_positions: Mapping[str, int] = field(default_factory=dict)
    """By table, the position of the schema change that made it what it is; 0 where it is as registered."""
    relations: Mapping[str, int] = field(default_factory=dict)
    """By table, the oid for which its columns' numbers were read; 0 where they never were."""

    @cached_property
    def by_sql_name(self) -> Mapping[str, Table]:
        """The tables by their names in SQL. One that is not synced as it is gives way to another that has its name."""
        return _by_sql_name(self.tables.values(), self.torn)

    def find(self, name: str) -> Table | None:
        """The table that people mean by ``name``: the one that is called so today, else the one of that identity."""
        return self.by_sql_name.get(name) or self.tables.get(name)

    @cached_property
    def tables_by_id(self) -> Mapping[int, Table]:
        """The tables by their numbers."""
        return {table.id: table for table in self.tables.values()}

    @cached_property
    def _policies(self) -> Mapping[str, Policy]:
        return {name: effective(self.policy, own) for name, own in self.table_policies.items()}

    def table_policy(self, name: str) -> Policy:
        """The rules of a table. KeyError for one that is not synced."""
        return self._policies[name]

    @cached_property
    def order(self) -> TableOrder:
        """The tables in the order of their foreign keys, and the circles among them."""
        return table_order(
            {name: {key.to_table for key in self.constraints[name].foreign_keys if key.synced} for name in self.tables}
        )

    @property
    def table_order(self) -> tuple[str, ...]:
        """The tables' identities; those that others refer to come first."""
        return self.order.tables


_NONE: Mapping[str, str] = MappingProxyType({})


def columns_to_json(columns: tuple[Column, ...]) -> list[dict[str, Any]]:
    """Columns as ``anabranch.synced_tables.columns`` keeps them. What most columns lack is left out."""
    return [_column_to_json(column) for column in columns]


def _column_to_json(c: Column) -> dict[str, Any]:
    kept: dict[str, Any] = {
        "name": c.name,
        "kind": int(c.kind),
        "element_kind": None if c.element_kind is None else int(c.element_kind),
        "postgres_type": c.postgres_type,
        "not_null": c.not_null,
        "generated": c.generated,
        "has_default": c.has_default,
    }
    if c.number:
        kept["number"] = c.number
    if c.renamed:
        kept["renamed"] = c.renamed
    if c.initial:
        kept["initial"] = b64encode(column_writer(c)(c.initial[0]).SerializeToString()).decode()
        kept["added_position"] = c.added_position
    return kept


def columns_from_json(
    columns: list[dict[str, Any]], policies: Mapping[str, str], base_types: Mapping[str, str] = _NONE
) -> tuple[Column, ...]:
    """Columns as they were kept, each with its policy and, by its name in SQL, the type that is below its domain."""
    return tuple(_column_from_json(c, policies, base_types) for c in columns)


def _column_from_json(kept: dict[str, Any], policies: Mapping[str, str], base_types: Mapping[str, str]) -> Column:
    initial = kept.get("initial")
    column = replace(
        Column(**{**kept, "initial": ()}),
        kind=Kind(kept["kind"]),
        element_kind=None if kept["element_kind"] is None else Kind(kept["element_kind"]),
        policy=policies.get(kept["name"], "lww"),
    )
    if initial is not None:
        cell = column_reader(column)(value_pb2.Value.FromString(b64decode(initial)))
        column = replace(column, initial=(cell,))
    return replace(column, base_type=base_types.get(column.sql_name, ""))


def former_columns_to_json(former: tuple[FormerColumn, ...]) -> list[dict[str, Any]]:
    """Columns that a table had, as ``anabranch.synced_tables.former_columns`` keeps them."""
    return [
        {"column": _column_to_json(f.column), "dropped_position": f.dropped_position, "successor": f.successor}
        for f in former
    ]


def former_columns_from_json(kept: list[dict[str, Any]]) -> tuple[FormerColumn, ...]:
    """Columns that a table had, as they were kept."""
    return tuple(
        FormerColumn(_column_from_json(f["column"], _NONE, _NONE), f["dropped_position"], f["successor"]) for f in kept
    )


# One statement, so that a database and its tables are of one moment.
_COLUMNS: LiteralString = """
d.id, d.name, d.schema_name, d.epoch, d.floor_ms, d.schema_version, d.policy, d.audience_rules, d.ddl_version
"""
_TABLES: LiteralString = """
       coalesce((select jsonb_agg(jsonb_build_array(
                     t.id, t.name, t.columns, to_jsonb(t.key_columns), t.policy, t.first_position,
                     t.capture_off_ms, t.torn_ms, coalesce(t.sql_name, ''), t.former_columns, t.changed_position,
                     t.relation, to_jsonb(t.column_numbers), t.shape ->> 'why',
                     t.audience, to_jsonb(t.audience_columns), t.audience_is_list)
                     order by t.id)
                 from anabranch.synced_tables t where t.database_id = d.id), '[]'),
       exists (select from anabranch.former_tables f
               where f.database_id = d.id and f.audience is not null and f.last_position > d.floor_ms),
       coalesce((select jsonb_agg(distinct f.name) from anabranch.former_tables f
                 where f.database_id = d.id and not exists (
                     select from anabranch.synced_tables t where t.database_id = d.id and t.name = f.name)), '[]')
from anabranch.databases d
where %(name)s::text is null or d.name = %(name)s
"""
_DATABASES: LiteralString = f"select {_COLUMNS}, d.seal_key, {_TABLES}"
# A role that may not read the key may not name its column.
_WITHOUT_KEYS: LiteralString = f"select {_COLUMNS}, ''::bytea, {_TABLES}"
_SEAL_KEY = "select seal_key from anabranch.databases where id = %s"


def _databases(name: str | None, statement: LiteralString = _DATABASES) -> Steps[dict[str, Database]]:
    rows = yield Statement(statement, {"name": name})
    constraints = yield from constraints_of(row[2] for row in rows)
    base_types = yield from base_types_of(row[2] for row in rows)
    return {row[1]: _database(row, constraints, base_types) for row in rows}


def _database(
    row: tuple[Any, ...],
    constraints: Mapping[tuple[str, str], Constraints],
    base_types: Mapping[tuple[str, str], Mapping[str, str]],
) -> Database:
    number, name, schema_name, epoch, floor_ms, schema_version, policy, rules, ddl_version, seal_key = row[:10]
    synced, was_restricted, gone = row[10:]
    tables: dict[str, Table] = {}
    policies: dict[str, TablePolicy] = {}
    first_positions: dict[str, int] = {}
    uncaptured = set()
    torn = set()
    restricted: dict[str, Audience] = {}
    changed_positions: dict[str, int] = {}
    relations: dict[str, int] = {}
    refused: dict[str, str] = {}
    for table_id, table, columns, key_columns, own_policy, first_position, off_ms, torn_ms, *further in synced:
        sql_name, former, changed_positions[table], relations[table], numbers, why, *audience = further
        policies[table] = table_policy(own_policy)
        bases = base_types.get((schema_name, sql_name or table), {})
        known = columns_from_json(_numbered(columns, numbers), policies[table].columns, bases)
        tables[table] = Table(
            table, known, tuple(key_columns), table_id, renamed=sql_name, former=former_columns_from_json(former)
        )
        first_positions[table] = first_position
        if off_ms is not None:
            uncaptured.add(table)
        if torn_ms is not None:
            torn.add(table)
            if why:
                refused[table] = why
        if audience[0] is not None:
            expression, reads, is_list = audience
            restricted[table] = Audience(expression, tuple(reads), is_list)
    return Database(
        id=number,
        name=name,
        schema_name=schema_name,
        epoch=epoch,
        floor_ms=floor_ms,
        schema_version=schema_version,
        policy=database_policy(policy),
        seal_key=seal_key,
        tables=tables,
        table_policies=policies,
        constraints=_all_by_identity(constraints, tables.values(), torn, schema_name),
        first_positions=first_positions,
        uncaptured=frozenset(uncaptured),
        torn=frozenset(torn),
        refused=refused,
        restricted=restricted,
        audience_rules=followed(rules_from_json(rules), schema_name, tables),
        was_restricted=was_restricted,
        gone=frozenset(gone),
        ddl_version=ddl_version,
        changed_positions=changed_positions,
        relations=relations,
    )


def _all_by_identity(
    found: Mapping[tuple[str, str], Constraints], tables: Collection[Table], torn: Collection[str], schema_name: str
) -> dict[str, Constraints]:
    """The constraints of all tables of a database, with identities."""
    synced = _by_sql_name(tables, torn)
    return {
        table.name: _by_identity(found.get((schema_name, table.sql_name), Constraints()), table, schema_name, synced)
        for table in tables
    }


def _by_sql_name(tables: Iterable[Table], torn: Collection[str]) -> dict[str, Table]:
    """Tables by their names in SQL. A torn one may be called so no longer."""
    return {table.sql_name: table for table in sorted(tables, key=lambda table: table.name not in torn)}


def _by_identity(found: Constraints, table: Table, schema_name: str, synced: Mapping[str, Table]) -> Constraints:
    """A table's constraints as Postgres has them, with identities; ``synced``: the database's tables by their names in
    SQL. A constraint over columns that are not synced keeps the names of these."""
    unique = tuple(_unique_by_identity(key, table) for key in found.unique)
    return Constraints(
        primary_key=next((key for key in unique if key.primary), None),
        unique=unique,
        foreign_keys=tuple(_foreign_by_identity(key, table, schema_name, synced) for key in found.foreign_keys),
    )


def _unique_by_identity(key: UniqueKey, table: Table) -> UniqueKey:
    return replace(key, columns=_identities(table, key.columns))


def _foreign_by_identity(key: ForeignKey, table: Table, schema_name: str, synced: Mapping[str, Table]) -> ForeignKey:
    columns = _identities(table, key.columns)
    to = synced.get(key.to_table) if key.to_schema == schema_name else None
    if to is None:
        return replace(key, columns=columns)
    return replace(key, columns=columns, to_table=to.name, to_columns=_identities(to, key.to_columns), synced=True)


def _identities(table: Table, names: Iterable[str]) -> tuple[str, ...]:
    return tuple([table.by_sql_name[name].name if name in table.by_sql_name else name for name in names])


def _numbered(columns: list[dict[str, Any]], numbers: list[int]) -> list[dict[str, Any]]:
    """Columns with their numbers: those of registration stand beside the columns, as an older release knows none."""
    if len(numbers) != len(columns):
        return columns
    return [{"number": number, **column} for column, number in zip(columns, numbers, strict=True)]


def load_databases(conn: psycopg.Connection[Any]) -> dict[str, Database]:
    """All databases by name."""
    return run(conn, _databases(None))


async def aload_databases(conn: psycopg.AsyncConnection[Any]) -> dict[str, Database]:
    """``load_databases`` for asyncio."""
    return await arun(conn, _databases(None))


def load_database(conn: psycopg.Connection[Any], name: str) -> Database:
    """One database.

    Raises:
        UnknownDatabaseError: there is none of that name.
    """
    return _one(run(conn, _databases(name)), name)


def load_without_key(conn: psycopg.Connection[Any], name: str, seal_key: Callable[[int], bytes]) -> Database:
    """``load_database`` in a session that may not read the key of its seals; ``seal_key`` gives it for the database's
    number."""
    found = _one(run(conn, _databases(name, _WITHOUT_KEYS)), name)
    return replace(found, seal_key=seal_key(found.id))


def read_seal_key(conn: psycopg.Connection[Any], database_id: int) -> bytes:
    """The key of a database's seals.

    Raises:
        UnknownDatabaseError: there is none of that number.
    """
    row = conn.execute(_SEAL_KEY, (database_id,)).fetchone()
    if row is None:
        raise UnknownDatabaseError(f"there is no database of the number {database_id}")
    return bytes(row[0])


async def aload_database(conn: psycopg.AsyncConnection[Any], name: str) -> Database:
    """``load_database`` for asyncio."""
    return _one(await arun(conn, _databases(name)), name)


def _one(found: dict[str, Database], name: str) -> Database:
    if name not in found:
        raise UnknownDatabaseError(f'there is no database "{name}"')
    return found[name]


_VERSIONS = "select name, schema_version from anabranch.databases"


def schema_versions(conn: psycopg.Connection[Any]) -> dict[str, int]:
    """The schema version of every database by name: a poller compares it before it loads anew."""
    return dict(conn.execute(_VERSIONS).fetchall())
