"""Changes that no batch named: direct SQL, cascades, triggers.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# No foreign key: it would cost the writer a look-up for every row.
TABLES = """
create table anabranch.captured (
    id          bigint generated always as identity,
    database_id integer not null,
    table_id    integer not null,
    xid         xid8 not null,
    type        smallint not null,
    depth       smallint not null,
    old         bytea,
    new         bytea,
    role        text,
    application text,
    constraint captured_pkey primary key (database_id, id)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
        autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
alter table anabranch.captured alter column old set storage external, alter column new set storage external;
comment on table anabranch.captured is
    'changes that the log lacks yet. Rows appear with the writer''s commit: lower ids may appear after higher ones';
comment on column anabranch.captured.id is
    'for one row the order of the statements that changed it; inside one statement old and new say what came first';
comment on column anabranch.captured.table_id is
    'the registration: its columns are the first ones of every record, in their order, whatever was added since';
comment on column anabranch.captured.type is '1 insert, 2 update (of the key as well), 3 delete';
comment on column anabranch.captured.depth is
    'pg_trigger_depth() of the trigger that wrote the row: 1 for a plain statement';
comment on column anabranch.captured.old is 'record_send of the row before, text in UTF-8; NULL for an insert';
comment on column anabranch.captured.new is 'record_send of the row after, text in UTF-8; NULL for a delete';

alter table anabranch.synced_tables add column capture_off_ms bigint;
comment on column anabranch.synced_tables.capture_off_ms is
    'since when direct writes are not captured, on purpose; NULL: they are';
"""

# Functions of triggers with the arguments (database_id, table_id). They run as the role that owns schema anabranch, so
# that a writer needs no rights in it. Every name in them has its schema; a whole row is written n.*, since a plain n
# would be the column of that name where there is one.
FUNCTIONS = """
create function anabranch.capture() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    anabranch_database constant pg_catalog.int4 := tg_argv[0];
    anabranch_table constant pg_catalog.int4 := tg_argv[1];
    anabranch_xid constant pg_catalog.xid8 := pg_catalog.pg_current_xact_id();
    anabranch_depth constant pg_catalog.int2 := pg_catalog.pg_trigger_depth();
    anabranch_role constant pg_catalog.text := session_user;
    anabranch_application constant pg_catalog.text := pg_catalog.current_setting('application_name');
begin
    if tg_op = 'INSERT' then
        insert into anabranch.captured (database_id, table_id, xid, type, depth, new, role, application)
        select anabranch_database, anabranch_table, anabranch_xid, 1, anabranch_depth,
               pg_catalog.record_send(n.*), anabranch_role, anabranch_application
        from new_rows n;
    elsif tg_op = 'UPDATE' then
        -- Both hold the same rows in the same order. A full join can't become a nested loop.
        insert into anabranch.captured (database_id, table_id, xid, type, depth, old, new, role, application)
        select anabranch_database, anabranch_table, anabranch_xid, 2, anabranch_depth,
               b.image, a.image, anabranch_role, anabranch_application
        from (select pg_catalog.record_send(o.*) as image, pg_catalog.row_number() over () as place
              from old_rows o) b
        full join (select pg_catalog.record_send(n.*) as image, pg_catalog.row_number() over () as place
                   from new_rows n) a on a.place operator(pg_catalog.=) b.place;
    else
        insert into anabranch.captured (database_id, table_id, xid, type, depth, old, role, application)
        select anabranch_database, anabranch_table, anabranch_xid, 3, anabranch_depth,
               pg_catalog.record_send(o.*), anabranch_role, anabranch_application
        from old_rows o;
    end if;
    return null;
end
$$;
"""


def upgrade() -> None:
    """Make the table and the functions that fill it."""
    op.execute(TABLES)
    op.execute(FUNCTIONS)


def downgrade() -> None:
    """Drop both, and the triggers of every synced table with them."""
    op.execute("drop function anabranch.capture() cascade")
    op.execute("drop table anabranch.captured")
    op.execute("alter table anabranch.synced_tables drop column capture_off_ms")
