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
#
# record_send gives text in the client's encoding: one that can't hold it would fail the writer's statement.
FUNCTIONS = """
create function anabranch.capture() returns trigger
language plpgsql security definer
as $$
#variable_conflict use_variable
declare
    client_encoding constant pg_catalog.name := pg_catalog.pg_client_encoding();
begin
    if client_encoding operator(pg_catalog.<>) 'UTF8' then
        perform pg_catalog.set_config('client_encoding', 'UTF8', true);
    end if;
    if tg_op operator(pg_catalog.=) 'INSERT' then
        insert into anabranch.captured (database_id, table_id, xid, type, depth, new, role, application)
        select tg_argv[0]::pg_catalog.int4, tg_argv[1]::pg_catalog.int4, pg_catalog.pg_current_xact_id(), 1,
               pg_catalog.pg_trigger_depth(), pg_catalog.record_send(n.*),
               session_user, pg_catalog.current_setting('application_name')
        from new_rows n;
    elsif tg_op operator(pg_catalog.=) 'UPDATE' then
        -- Both hold the same rows in the same order. A full join can't become a nested loop.
        insert into anabranch.captured (database_id, table_id, xid, type, depth, old, new, role, application)
        select tg_argv[0]::pg_catalog.int4, tg_argv[1]::pg_catalog.int4, pg_catalog.pg_current_xact_id(), 2,
               pg_catalog.pg_trigger_depth(), b.image, a.image,
               session_user, pg_catalog.current_setting('application_name')
        from (select pg_catalog.record_send(o.*) as image, pg_catalog.row_number() over () as place
              from old_rows o) b
        full join (select pg_catalog.record_send(n.*) as image, pg_catalog.row_number() over () as place
                   from new_rows n) a on a.place operator(pg_catalog.=) b.place;
    else
        insert into anabranch.captured (database_id, table_id, xid, type, depth, old, role, application)
        select tg_argv[0]::pg_catalog.int4, tg_argv[1]::pg_catalog.int4, pg_catalog.pg_current_xact_id(), 3,
               pg_catalog.pg_trigger_depth(), pg_catalog.record_send(o.*),
               session_user, pg_catalog.current_setting('application_name')
        from old_rows o;
    end if;
    if client_encoding operator(pg_catalog.<>) 'UTF8' then
        perform pg_catalog.set_config('client_encoding', client_encoding, true);
    end if;
    return null;
end
$$;

create function anabranch.capture_row() returns trigger
language plpgsql security definer
as $$
#variable_conflict use_variable
declare
    client_encoding constant pg_catalog.name := pg_catalog.pg_client_encoding();
begin
    if client_encoding operator(pg_catalog.<>) 'UTF8' then
        perform pg_catalog.set_config('client_encoding', 'UTF8', true);
    end if;
    insert into anabranch.captured (database_id, table_id, xid, type, depth, old, new, role, application)
    values (tg_argv[0]::pg_catalog.int4, tg_argv[1]::pg_catalog.int4, pg_catalog.pg_current_xact_id(),
            case tg_op when 'INSERT' then 1 when 'UPDATE' then 2 else 3 end, pg_catalog.pg_trigger_depth(),
            case when tg_op operator(pg_catalog.<>) 'INSERT' then pg_catalog.record_send(old) end,
            case when tg_op operator(pg_catalog.<>) 'DELETE' then pg_catalog.record_send(new) end,
            session_user, pg_catalog.current_setting('application_name'));
    if client_encoding operator(pg_catalog.<>) 'UTF8' then
        perform pg_catalog.set_config('client_encoding', client_encoding, true);
    end if;
    return null;
end
$$;

create function anabranch.capture_truncate() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off
as $$
declare
    client_encoding constant name := pg_client_encoding();
begin
    perform set_config('client_encoding', 'UTF8', true);
    execute format(
        'insert into anabranch.captured (database_id, table_id, xid, type, depth, old, role, application) '
        'select $1, $2, pg_current_xact_id(), 3, pg_trigger_depth(), record_send(t.*), '
        'session_user, current_setting(''application_name'') from %s t', tg_relid::regclass)
    using tg_argv[0]::int4, tg_argv[1]::int4;
    perform set_config('client_encoding', client_encoding, true);
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
    for function in ("capture", "capture_row", "capture_truncate"):
        op.execute(f"drop function anabranch.{function}() cascade")
    op.execute("drop table anabranch.captured")
    op.execute("alter table anabranch.synced_tables drop column capture_off_ms")
