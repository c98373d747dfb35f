"""A database at one schema version, compiled for the resolver: its statements, decoders and encoders, made once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from anabranch.merge import MutationType, function_of
from anabranch.store.audiences.row_audiences import RowAudiences
from anabranch.store.capture.growth import Growing, growing_columns
from anabranch.store.capture.older_images import OlderImages
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.relation import ForeignKey
from anabranch.store.group.rows import TableSql
from anabranch.values.messages import column_writer
from anabranch.wire.effects import EffectBuilder
from anabranch_conflict_resolver.batch.decode import Decoder
from anabranch_conflict_resolver.batch.verdict_bytes import Head, mutation_writer
from anabranch_conflict_resolver.group.table import SyncedTable, successors

Kinds = Mapping[str, frozenset[MutationType]]
"""By table, some types of changes."""
_ACTIONS = frozenset("cnd")
"""Cascade, set null, set default."""


@dataclass(frozen=True, slots=True)
class SyncedDatabase:
    """A database at one schema version, compiled."""

    database: Database
    decoder: Decoder
    tables: Mapping[str, SyncedTable]
    primary_keys: frozenset[str]
    """Names of the tables' primary key constraints."""
    mutation_writers: Mapping[str, Head]
    """By table, the function that writes the verdict on a mutation that was applied as written."""
    once_a_group: frozenset[str]
    """Tables with a foreign key that old rows may break (``not valid``): a group touches a row of theirs once only."""
    asks: bool
    """Whether any column is decided by a function of the application's own."""
    may_cause: Mapping[str, frozenset[MutationType]]
    """Tables of which some changes may cause others, by the application's code or by the actions of foreign keys; and
    which."""
    referrers: Mapping[str, Sequence[tuple[str, ForeignKey]]] = field(default_factory=dict)
    """By table, the synced tables that refer to it, each with the foreign key."""
    growing: Growing = field(default_factory=dict)
    """Columns of captured rows whose values grow."""
    restricted: Mapping[str, RowAudiences] = field(default_factory=dict)
    """By restricted table, the audiences of its rows."""
    unreadable: set[str] = field(default_factory=set)
    """Tables that have drifted so far from their registration that their captured changes can't be read."""
    older: OlderImages | None = None
    """Reads captured changes that are older than their tables are, in the group that takes a schema change."""


_QUIET: Mapping[str, frozenset[MutationType]] = MappingProxyType({})
_WHOLE: Mapping[str, str] = MappingProxyType({})


def compile_database(
    database: Database,
    *,
    with_code: Mapping[str, frozenset[MutationType]] = _QUIET,
    stopped: Mapping[str, str] = _WHOLE,
) -> SyncedDatabase:
    """Compile ``database`` for the resolver. ``with_code``: its tables, by their names in SQL, that have code of the
    application's, and for which changes it runs. ``stopped``: those that can't be synced as they are, and why."""
    ranks = {name: rank for rank, name in enumerate(database.table_order)}
    tables = {}
    read_by_queries = {name for one in database.audience_rules.memberships for name in one.tables}
    for name, table in database.tables.items():
        audience = database.restricted.get(name)
        primary_key = database.constraints[name].primary_key
        tables[name] = SyncedTable(
            table,
            ranks[name],
            TableSql(database.schema_name, table),
            EffectBuilder(table),
            {column.name: column_writer(column) for column in table.columns},
            primary_key.name if primary_key is not None else "",
            table.column_names,
            RowAudiences(table, audience) if audience is not None else None,
            name in read_by_queries,
            successors(table),
        )
    primary_keys = frozenset(table.primary_key for table in tables.values() if table.primary_key)
    once_a_group = frozenset(
        name for name in tables if not all(key.valid for key in database.constraints[name].foreign_keys)
    )
    writers = {name: mutation_writer(table) for name, table in database.tables.items()}
    asks = any(function_of(column.policy) for table in database.tables.values() for column in table.columns)
    decoder = Decoder(database, stopped)
    referrers: dict[str, list[tuple[str, ForeignKey]]] = {}
    for name in database.tables:
        for key in database.constraints[name].foreign_keys:
            if key.synced:
                referrers.setdefault(key.to_table, []).append((name, key))
    may_cause = _may_cause(database, with_code)
    growing = growing_columns(list(database.tables.values()))
    restricted = {name: one.audiences for name, one in tables.items() if one.audiences is not None}
    torn = set(database.torn)
    return SyncedDatabase(
        database,
        decoder,
        tables,
        primary_keys,
        writers,
        once_a_group,
        asks,
        may_cause,
        referrers,
        growing,
        restricted,
        torn,
    )


def _may_cause(
    database: Database, with_code: Mapping[str, frozenset[MutationType]]
) -> dict[str, frozenset[MutationType]]:
    may_cause = {name: set(with_code.get(table.sql_name, ())) for name, table in database.tables.items()}
    for name in database.tables:
        for key in database.constraints[name].foreign_keys:
            if not key.synced:
                continue
            if key.on_delete in _ACTIONS:
                may_cause[key.to_table].add(MutationType.DELETE)
            # No batch updates a key.
            if key.on_update in _ACTIONS and not set(key.to_columns) <= set(database.tables[key.to_table].key_columns):
                may_cause[key.to_table].add(MutationType.UPDATE)
    return {name: frozenset(kinds) for name, kinds in may_cause.items() if kinds}
