"""The tables that are declared are the tables that migrations make: neither has anything that the other lacks.

Two comparisons, since each sees what the other does not. Alembic's compares the MetaData with a database, as it does to
write migrations. The catalog's compares a database that was migrated with one that was made from the MetaData, by
Postgres's own words for columns, constraints and indexes.

The log's partitions are made and dropped while services run. Postgres holds that their columns and constraints are the
log's; so nothing is declared of them, and they may have nothing of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.schema import CreateSchema

from anabranch.store import migrate
from anabranch.store.revisions import SCHEMA, VERSION_TABLE
from anabranch.store.schema import METADATA
from anabranch.store.schema.metadata import Xid8
from anabranch.testkit.databases import TestDatabases

# Alembic does not compare primary keys, checks, collations, identities, options of tables, and of indexes neither their
# conditions nor the columns that they include.
CATALOG = f"""
with tables as (
    select oid, relname, reloptions, relispartition from pg_class
    where relnamespace = '{SCHEMA}'::regnamespace and relkind in ('r', 'p') and relname <> '{VERSION_TABLE}'
)
select 'table', t.relname, '', concat_ws(' ', pg_get_partkeydef(t.oid),
       array_to_string(array(select unnest(t.reloptions) order by 1), ' '), obj_description(t.oid, 'pg_class'))
from tables t where not t.relispartition
union all
select 'column', t.relname, a.attname, concat_ws(' ', format_type(a.atttypid, a.atttypmod), o.collname,
       case when a.attnotnull then 'not null' end, 'default ' || pg_get_expr(d.adbin, d.adrelid),
       'identity ' || nullif(a.attidentity::text, '') || ' cache ' || s.seqcache, nullif(a.attgenerated::text, ''),
       col_description(t.oid, a.attnum))
from tables t join pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped
left join pg_collation o on o.oid = a.attcollation
left join pg_attrdef d on d.adrelid = t.oid and d.adnum = a.attnum
left join pg_sequence s
    on s.seqrelid = pg_get_serial_sequence('{SCHEMA}.' || quote_ident(t.relname), a.attname)::regclass
where not t.relispartition
union all
select 'constraint', t.relname, c.conname, pg_get_constraintdef(c.oid)
from tables t join pg_constraint c on c.conrelid = t.oid and c.contype in ('p', 'u', 'f', 'c', 'x')
where not t.relispartition or c.conparentid = 0 and c.coninhcount = 0
union all
select 'index', t.relname, i.relname, pg_get_indexdef(i.oid)
from tables t join pg_index x on x.indrelid = t.oid join pg_class i on i.oid = x.indexrelid
where not (t.relispartition and i.relispartition)
"""
PARTITIONS = f"select relname from pg_class where relnamespace = '{SCHEMA}'::regnamespace and relispartition"

Catalog = Mapping[str, str]
"""The description in Postgres of each "table t", "column t.c", "constraint t.c" and "index t.i"."""


def catalog(connection: Connection) -> Catalog:
    rows = connection.exec_driver_sql(CATALOG)
    return {f"{kind} {table}.{name}".removesuffix("."): said for kind, table, name, said in rows}


def catalog_differences(declared: Catalog, migrated: Catalog) -> dict[str, tuple[str | None, str | None]]:
    """The parts of the schema that only one of them has, or both have otherwise: as it is declared, and as it was
    migrated."""
    both = {thing: (declared.get(thing), migrated.get(thing)) for thing in declared.keys() | migrated.keys()}
    return {thing: (one, other) for thing, (one, other) in both.items() if one != other}


def alembic_differences(connection: Connection) -> list[object]:
    """The steps that Alembic would write into a migration."""
    partitions = set(connection.exec_driver_sql(PARTITIONS).scalars())

    def included(name: str | None, kind: str, _: object) -> bool:
        return name == SCHEMA if kind == "schema" else not (kind == "table" and name in partitions)

    context = MigrationContext.configure(
        connection,
        opts={
            "include_schemas": True,
            "include_name": included,
            "compare_type": True,
            "compare_server_default": True,
            "version_table": VERSION_TABLE,
            "version_table_schema": SCHEMA,
        },
    )
    return list(compare_metadata(context, METADATA))


@pytest.fixture(scope="module")
def declared(databases: TestDatabases) -> Iterator[Catalog]:
    """The description that Postgres gives of tables that were made from the MetaData."""
    url = databases.fresh()
    with migrate._transaction(url) as connection:
        connection.execute(CreateSchema(SCHEMA))
        # A default calls it.
        function = f"create function {SCHEMA}.claimed_otherwise() returns boolean language sql as 'select true'"
        connection.execute(text(function))
        METADATA.create_all(connection)
        made = catalog(connection)
    yield made
    databases.release(url)


@pytest.fixture
def migrated(shared_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """A migrated database, to which nothing happens for good."""
    monkeypatch.setitem(ischema_names, "xid8", Xid8)
    with migrate._transaction(shared_url) as connection:
        attempt = connection.begin_nested()
        yield connection
        attempt.rollback()


def test_the_declared_tables_are_those_that_migrations_make(declared: Catalog, migrated: Connection) -> None:
    assert len(METADATA.tables) == 26
    assert catalog_differences(declared, catalog(migrated)) == {}
    assert alembic_differences(migrated) == []


@dataclass(frozen=True)
class Alteration:
    """A change of a migrated database, and the thing that the catalog's comparison names then. Alembic's notices it as
    well, unless it does not compare such a thing."""

    sql: str
    thing: str
    alembic: bool = True


def anew(index: str, definition: str) -> str:
    return f"drop index anabranch.{index}; create index {index} on anabranch.{definition}"


def other(table: str, constraint: str, definition: str) -> str:
    return f"alter table anabranch.{table} drop constraint {constraint}, add constraint {constraint} {definition}"


ALTERATIONS = {
    "a table more": Alteration("create table anabranch.extra (id int)", "table extra"),
    "a table less": Alteration("drop table anabranch.epochs", "table epochs"),
    "another option of a table": Alteration("alter table anabranch.nodes reset (fillfactor)", "table nodes", False),
    "another comment on a table": Alteration("comment on table anabranch.epochs is 'epochs'", "table epochs"),
    "a column more": Alteration("alter table anabranch.nodes add extra int", "column nodes.extra"),
    "a column less": Alteration("alter table anabranch.nodes drop missing", "column nodes.missing"),
    "a column more of the log": Alteration("alter table anabranch.log add extra int", "column log.extra"),
    "another type": Alteration("alter table anabranch.nodes alter acknowledged type int", "column nodes.acknowledged"),
    "another type of elements": Alteration(
        "alter table anabranch.log alter audience_after type varchar[]", "column log.audience_after"
    ),
    "another type than xid8": Alteration("alter table anabranch.captured alter xid type text", "column captured.xid"),
    "another collation": Alteration(
        'alter table anabranch.nodes alter principal type text collate "default"', "column nodes.principal", False
    ),
    "no longer not null": Alteration("alter table anabranch.nodes alter name drop not null", "column nodes.name"),
    "not null now": Alteration("alter table anabranch.inbox alter prev set not null", "column inbox.prev"),
    "another default": Alteration(
        "alter table anabranch.nodes alter acknowledged set default 1", "column nodes.acknowledged"
    ),
    "a default less": Alteration(
        "alter table anabranch.databases alter policy drop default", "column databases.policy"
    ),
    "a default more": Alteration(
        "alter table anabranch.nodes alter principal set default 'x'", "column nodes.principal"
    ),
    "no identity": Alteration("alter table anabranch.captured alter id drop identity", "column captured.id", False),
    "an identity without a cache": Alteration(
        "alter table anabranch.inbox alter arrival set cache 1", "column inbox.arrival", False
    ),
    "another comment on a column": Alteration(
        "comment on column anabranch.nodes.missing is 'a batch'", "column nodes.missing"
    ),
    "an index more": Alteration("create index extra on anabranch.nodes (principal)", "index nodes.extra"),
    "an index more of the log": Alteration("create index extra on anabranch.log (key)", "index log.extra"),
    "an index of a partition alone": Alteration(
        "create index extra on anabranch.log_default (key)", "index log_default.extra", False
    ),
    "an index less": Alteration("drop index anabranch.inbox_node", "index inbox.inbox_node"),
    "an index of other columns": Alteration(
        anew("inbox_node", "inbox (database_id, batch_id)"), "index inbox.inbox_node"
    ),
    "an index of another expression": Alteration(
        anew("conflicts_row", "conflicts (table_id, left(key, 50), position, batch_id, ordinal)"),
        "index conflicts.conflicts_row",
    ),
    "an index with another condition": Alteration(
        anew("batches_accepted", "batches (database_id, node_id, batch_id) include (position) where status = 2"),
        "index batches.batches_accepted",
        False,
    ),
    "an index that includes no column": Alteration(
        anew("batches_accepted", "batches (database_id, node_id, batch_id) where status = 1"),
        "index batches.batches_accepted",
        False,
    ),
    "another primary key": Alteration(
        other("epochs", "epochs_pkey", "primary key (database_id, epoch, ended_ms)"),
        "constraint epochs.epochs_pkey",
        False,
    ),
    "a unique constraint more": Alteration(
        "alter table anabranch.nodes add constraint extra unique (database_id, name)", "constraint nodes.extra"
    ),
    "a unique constraint less": Alteration(
        "alter table anabranch.compactions drop constraint compactions_from_key",
        "constraint compactions.compactions_from_key",
    ),
    "another unique constraint": Alteration(
        other("synced_tables", "synced_tables_name_key", "unique (name)"),
        "constraint synced_tables.synced_tables_name_key",
    ),
    "a foreign key more": Alteration(
        "alter table anabranch.captured add constraint extra foreign key (database_id) references anabranch.databases",
        "constraint captured.extra",
    ),
    "a foreign key less": Alteration(
        "alter table anabranch.epochs drop constraint epochs_database_id_fkey",
        "constraint epochs.epochs_database_id_fkey",
    ),
    "a foreign key that holds its row": Alteration(
        other("epochs", "epochs_database_id_fkey", "foreign key (database_id) references anabranch.databases"),
        "constraint epochs.epochs_database_id_fkey",
    ),
    "a check more": Alteration(
        "alter table anabranch.nodes add constraint extra check (token <> '')", "constraint nodes.extra", False
    ),
    "a check less": Alteration(
        "alter table anabranch.api_keys drop constraint api_keys_role_check",
        "constraint api_keys.api_keys_role_check",
        False,
    ),
    "another check": Alteration(
        other("compactions", "compactions_range_check", "check (to_position >= from_position)"),
        "constraint compactions.compactions_range_check",
        False,
    ),
    "a check of a partition alone": Alteration(
        "alter table anabranch.log_default add constraint extra check (position > 0)",
        "constraint log_default.extra",
        False,
    ),
}


@pytest.mark.parametrize("alteration", list(ALTERATIONS.values()), ids=list(ALTERATIONS))
def test_what_is_altered_is_named(declared: Catalog, migrated: Connection, alteration: Alteration) -> None:
    migrated.exec_driver_sql(alteration.sql)
    assert alteration.thing in catalog_differences(declared, catalog(migrated))
    assert alembic_differences(migrated) or not alteration.alembic
