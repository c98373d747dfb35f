"""A writer's statement no longer looks at the types of all columns: its plan remembers what they are.

Revision ID: 0017
Revises: 0016
"""

from __future__ import annotations

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None
works_from = "0009"

# Built-in types without a binary form: aclitem, gtsvector, their arrays, and system tables' rows. What else the system
# has without one is no column's type, or has a number above 10000.
_ODD = "1033, 1034, 3642, 3644, 71, 75, 81, 83, 210, 270, 272, 273"
_UNUSUAL = f"(a.atttypid >= 10000::oid or a.atttypid = any(array[{_ODD}]::oid[]))"

# A plan is made anew when its table is altered, and what is immutable is worked out when a plan is made: so a statement
# that asks this has the answer for nothing. It is told the table by a setting, since a plan for any parameter would
# have to ask each time. Only answers that hold until the table is altered count: an attribute can be added to a
# composite type whenever one likes. A snapshot that is older than the statement may not show a column that it writes.
PLAIN_COLUMNS = f"""
create function anabranch.plain_columns() returns boolean
language plpgsql immutable set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('transaction_isolation') <> 'read committed' then
        return false;
    end if;
    return not exists (
        select from pg_attribute a join pg_type t on t.oid = a.atttypid
        where a.attrelid = current_setting('anabranch.relation')::oid and a.attnum > 0 and not a.attisdropped
          and {_UNUSUAL}
          and not case
              when t.typtype = 'e' then true
              when t.typtype = 'd' then t.typbasetype < 10000::oid and t.typbasetype <> all(array[{_ODD}]::oid[])
              when t.typtype = 'b' and t.typelem = 0::oid then
                  2 = (select count(*) from pg_proc p
                       where p.oid in (t.typsend, t.typreceive) and p.prolang in (12, 13))
              when t.typtype = 'b' then
                  exists (select from pg_type e where e.oid = t.typelem and e.typtype = 'e')
              else false end
    );
end
$$;
"""

# Asked at each statement where plain_columns() says no. Two looks: the first is short, and enough for most.
TEXTUAL_COLUMNS = f"""
create function anabranch.textual_columns(relation oid) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
begin
    if not exists (
        select from pg_attribute a
        where a.attrelid = relation and a.attnum > 0 and not a.attisdropped and {_UNUSUAL}
    ) then
        return false;
    end if;
    return exists (
        select from pg_attribute a
        where a.attrelid = relation and a.attnum > 0 and not a.attisdropped and {_UNUSUAL}
          and not anabranch.has_binary(a.atttypid)
    );
end
$$;
"""

# How our own sessions print, and read, what goes as text. record_send gives text in the client's encoding: one that
# can't hold it would fail the writer's statement.
_PRINT = """
        kept := array[pg_catalog.current_setting('DateStyle'), pg_catalog.current_setting('IntervalStyle'),
                      pg_catalog.current_setting('TimeZone'), pg_catalog.current_setting('bytea_output'),
                      pg_catalog.current_setting('extra_float_digits')];
        perform pg_catalog.set_config('DateStyle', 'ISO, YMD', true),
                pg_catalog.set_config('IntervalStyle', 'postgres', true),
                pg_catalog.set_config('TimeZone', 'UTC', true),
                pg_catalog.set_config('bytea_output', 'hex', true),
                pg_catalog.set_config('extra_float_digits', '1', true);
"""
_PRINT_AS_BEFORE = """
        perform pg_catalog.set_config('DateStyle', kept[1], true),
                pg_catalog.set_config('IntervalStyle', kept[2], true),
                pg_catalog.set_config('TimeZone', kept[3], true), pg_catalog.set_config('bytea_output', kept[4], true),
                pg_catalog.set_config('extra_float_digits', kept[5], true);
"""
_COLUMNS = "database_id, table_id, xid, type, depth, old, new, role, application"
_FIRST = """$1::pg_catalog.int4, $2::pg_catalog.int4, pg_catalog.pg_current_xact_id()"""
_LAST = "session_user, pg_catalog.current_setting('application_name')"

# In the resolver's session the row triggers capture what is changed within triggers. What is changed within its own
# statements beside, by functions in defaults, checks, generated columns, indexes, types and conditions of triggers, is
# told by the calls on the stack: at the trigger of its own statement there is none but the trigger's own.
STATEMENT = f"""
create or replace function anabranch.capture() returns trigger
language plpgsql security definer set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
    client_encoding constant pg_catalog.name := pg_catalog.pg_client_encoding();
    calls pg_catalog.text;
    kept pg_catalog.text[];
    relation pg_catalog.text;
    binary_form pg_catalog.bool := false;
    written pg_catalog.int8;
begin
    if pg_catalog.current_setting('anabranch.resolver', true)
       operator(pg_catalog.=) pg_catalog.pg_backend_pid()::pg_catalog.text
       and pg_catalog.has_table_privilege(session_user, 'anabranch.captured'::pg_catalog.regclass, 'DELETE') then
        if pg_catalog.pg_trigger_depth() operator(pg_catalog.>) 1 then
            return null;
        end if;
        get diagnostics calls = pg_context;
        if pg_catalog.strpos(calls, pg_catalog.chr(10)) operator(pg_catalog.=) 0 then
            return null;
        end if;
    end if;
    if client_encoding operator(pg_catalog.<>) 'UTF8' then
        perform pg_catalog.set_config('client_encoding', 'UTF8', true);
    end if;
    relation := pg_catalog.set_config('anabranch.relation', tg_relid::pg_catalog.text, true);
    -- Once where all columns are plain; else nothing is written at first, and what the columns are is looked at.
    loop
        if tg_op operator(pg_catalog.=) 'INSERT' then
            insert into anabranch.captured (database_id, table_id, xid, type, depth, new, role, application)
            select tg_argv[0]::pg_catalog.int4, tg_argv[1]::pg_catalog.int4, pg_catalog.pg_current_xact_id(), 1,
                   pg_catalog.pg_trigger_depth(), pg_catalog.record_send(n.*), {_LAST}
            from new_rows n where binary_form or anabranch.plain_columns();
        elsif tg_op operator(pg_catalog.=) 'UPDATE' then
            -- Both hold the same rows in the same order. A full join can't become a nested loop.
            insert into anabranch.captured (database_id, table_id, xid, type, depth, old, new, role, application)
            select tg_argv[0]::pg_catalog.int4, tg_argv[1]::pg_catalog.int4, pg_catalog.pg_current_xact_id(), 2,
                   pg_catalog.pg_trigger_depth(), b.image, a.image, {_LAST}
            from (select pg_catalog.record_send(o.*) as image, pg_catalog.row_number() over () as place
                  from old_rows o) b
            full join (select pg_catalog.record_send(n.*) as image, pg_catalog.row_number() over () as place
                       from new_rows n) a on a.place operator(pg_catalog.=) b.place
            where binary_form or anabranch.plain_columns();
        else
            insert into anabranch.captured (database_id, table_id, xid, type, depth, old, role, application)
            select tg_argv[0]::pg_catalog.int4, tg_argv[1]::pg_catalog.int4, pg_catalog.pg_current_xact_id(), 3,
                   pg_catalog.pg_trigger_depth(), pg_catalog.record_send(o.*), {_LAST}
            from old_rows o where binary_form or anabranch.plain_columns();
        end if;
        get diagnostics written = row_count;
        exit when binary_form or written operator(pg_catalog.>) 0;
        binary_form := not anabranch.textual_columns(tg_relid);
        if binary_form then
            continue;
        end if;
{_PRINT}
        if tg_op operator(pg_catalog.=) 'INSERT' then
            execute 'insert into anabranch.captured ({_COLUMNS}) select {_FIRST}, 1, $3, null, '
                || anabranch.image_of(tg_relid, 'n') || ', $4, $5 from new_rows n'
            using tg_argv[0], tg_argv[1], pg_catalog.pg_trigger_depth(), session_user,
                  pg_catalog.current_setting('application_name');
        elsif tg_op operator(pg_catalog.=) 'UPDATE' then
            execute 'insert into anabranch.captured ({_COLUMNS}) select {_FIRST}, 2, $3, b.image, a.image, $4, $5 from '
                || '(select ' || anabranch.image_of(tg_relid, 'o')
                || ' as image, pg_catalog.row_number() over () as place from old_rows o) b full join '
                || '(select ' || anabranch.image_of(tg_relid, 'n')
                || ' as image, pg_catalog.row_number() over () as place from new_rows n) a '
                || 'on a.place operator(pg_catalog.=) b.place'
            using tg_argv[0], tg_argv[1], pg_catalog.pg_trigger_depth(), session_user,
                  pg_catalog.current_setting('application_name');
        else
            execute 'insert into anabranch.captured ({_COLUMNS}) select {_FIRST}, 3, $3, '
                || anabranch.image_of(tg_relid, 'o') || ', null, $4, $5 from old_rows o'
            using tg_argv[0], tg_argv[1], pg_catalog.pg_trigger_depth(), session_user,
                  pg_catalog.current_setting('application_name');
        end if;
{_PRINT_AS_BEFORE}
        exit;
    end loop;
    if client_encoding operator(pg_catalog.<>) 'UTF8' then
        perform pg_catalog.set_config('client_encoding', client_encoding, true);
    end if;
    return null;
end
$$;
"""


def upgrade() -> None:
    """Make the functions. The triggers call them under the same names."""
    for statement in (PLAIN_COLUMNS, TEXTUAL_COLUMNS, STATEMENT):
        op.execute(statement)


def downgrade() -> None:
    """Nothing: the release before works with them."""
