"""Tables may change by DDL while they are synced: columns keep their identity, and each change is an entry of its own.

Revision ID: 0023
Revises: 0022
"""

from __future__ import annotations

from alembic import op

from anabranch.store.session.table_locks import take_tables

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
works_from = "0009"

DATABASES = """
alter table anabranch.databases add column ddl_version bigint not null default 1;
comment on column anabranch.databases.ddl_version is
    'the number of the last schema change, as applications are told of it; 1 before the first'
"""

CHANGES = """
create table anabranch.schema_changes (
    database_id integer not null references anabranch.databases (id) on delete cascade,
    version bigint not null,
    position bigint not null,
    noticed_ms bigint not null,
    role text not null default '',
    application text not null default '',
    command text not null default '',
    change bytea not null,
    tables jsonb not null,
    primary key (database_id, version),
    constraint schema_changes_position_key unique (database_id, position)
);
comment on table anabranch.schema_changes is
    'each change of synced tables by DDL, at its position of the log';
comment on column anabranch.schema_changes.role is 'who ran the DDL; empty where not known';
comment on column anabranch.schema_changes.command is 'the statement, cut; empty: not known';
comment on column anabranch.schema_changes.change is 'the serialized anabranch.v1.SchemaChange';
comment on column anabranch.schema_changes.tables is
    'by number of each table that was changed, came or went: how it was before, and is after'
"""

SHAPES = """
create table anabranch.captured_shapes (
    table_id integer not null references anabranch.synced_tables (id) on delete cascade,
    before_id bigint not null,
    shape jsonb not null,
    primary key (table_id, before_id)
);
comment on table anabranch.captured_shapes is
    'columns of a table that was altered since: those of its captured changes with smaller numbers than before_id, and '
    'than those of no other row of the table here'
"""

TABLES = """
alter table anabranch.synced_tables
    add column sql_name text collate "C",
    add column relation bigint not null default 0,
    add column column_numbers smallint[] not null default '{}',
    add column former_columns jsonb not null default '[]',
    add column changed_position bigint not null default 0;
comment on column anabranch.synced_tables.sql_name is
    'the table''s name in its schema where it was renamed since; NULL: its name';
comment on column anabranch.synced_tables.relation is
    'the oid for which columns'' numbers were read; another table of the name is matched by names';
comment on column anabranch.synced_tables.column_numbers is
    'the columns'' numbers in pg_attribute at registration; a schema change keeps them in columns, which may not have '
    'them before: a release before this one reads columns, and knows none';
comment on column anabranch.synced_tables.former_columns is
    'columns that it had: of queued batches and of older files';
comment on column anabranch.synced_tables.changed_position is
    'the position of the schema change that made it what it is; 0: as registered'
"""

FORMER = """
alter table anabranch.former_tables
    add column sql_name text collate "C",
    add column former_columns jsonb not null default '[]';
comment on column anabranch.former_tables.sql_name is
    'the table''s last name in its schema where that was another one; NULL: its name';
comment on column anabranch.former_tables.former_columns is 'columns that it had before'
"""

# Of tables that are there under their names; columns that are not give all of a table's no numbers.
NUMBERS = """
update anabranch.synced_tables s set relation = found.oid, column_numbers = found.numbers
from (
    select t.id, c.oid, array_agg(a.attnum order by k.place) as numbers
    from anabranch.synced_tables t
    join anabranch.databases d on d.id = t.database_id
    join pg_catalog.pg_namespace n on n.nspname = d.schema_name
    join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = t.name and c.relkind in ('r', 'p')
    cross join lateral pg_catalog.jsonb_array_elements(t.columns) with ordinality k (kept, place)
    left join pg_catalog.pg_attribute a
        on a.attrelid = c.oid and a.attname = k.kept ->> 'name' and a.attnum > 0 and not a.attisdropped
    group by t.id, c.oid
) found
where s.id = found.id and array_position(found.numbers, null) is null
"""

CAUSE = """
alter table anabranch.conflicts add column cause smallint not null default 0;
comment on column anabranch.conflicts.cause is 'the number of an anabranch.v1.LossCause'
"""

STATEMENTS = (DATABASES, CHANGES, SHAPES, TABLES, FORMER, NUMBERS, CAUSE)


def upgrade() -> None:
    """Make the tables, and the columns."""
    take_tables(["databases", "synced_tables", "former_tables", "conflicts"])
    for statement in STATEMENTS:
        op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    op.execute("alter table anabranch.conflicts drop column cause")
    op.execute(
        "alter table anabranch.synced_tables drop column sql_name, drop column relation, drop column column_numbers, "
        "drop column former_columns, drop column changed_position"
    )
    op.execute("alter table anabranch.former_tables drop column sql_name, drop column former_columns")
    op.execute("drop table anabranch.captured_shapes")
    op.execute("drop table anabranch.schema_changes")
    op.execute("alter table anabranch.databases drop column ddl_version")
