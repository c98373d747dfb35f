"""Writes of a function in a default, a check or an index are captured in the resolver's sessions, too; and no type of a
column makes a writer's statement fail.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None
works_from = "0009"

# Whether record_send takes the values of a type, and record_recv gives them back. A send or receive function that is
# not the system's or a C library's may fail for some value, and counts as none. All that a type is made of is looked
# at, since attributes can be added to a composite type that is in use.
HAS_BINARY = """
create function anabranch.has_binary(type oid) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
declare
    kind record;
begin
    select t.oid, t.typtype, t.typbasetype, t.typelem, t.typlen, t.typrelid,
           t.typsend <> 0 and t.typreceive <> 0 and (t.oid < 16384
               or (select p.prolang from pg_proc p where p.oid = t.typsend) in (12, 13)
                  and (select p.prolang from pg_proc p where p.oid = t.typreceive) in (12, 13)) as own
    into kind from pg_type t where t.oid = type;
    if kind.oid is null or not kind.own or kind.typtype = 'p' then
        return false;
    elsif kind.typtype = 'd' then
        return anabranch.has_binary(kind.typbasetype);
    elsif kind.typtype = 'b' and kind.typelem <> 0 and kind.typlen = -1 then
        return anabranch.has_binary(kind.typelem);
    elsif kind.typtype in ('r', 'm') then
        return (select anabranch.has_binary(r.rngsubtype) from pg_range r
                where r.rngtypid = kind.oid or r.rngmultitypid = kind.oid);
    elsif kind.typtype = 'c' then
        return not exists (
            select from pg_attribute a
            where a.attrelid = kind.typrelid and a.attnum > 0 and not a.attisdropped
              and not anabranch.has_binary(a.atttypid));
    end if;
    return true;
end
$$;
"""

# Makes a row's image where some of its columns have no binary form: these are in it as text.
IMAGE = """
create function anabranch.image_of(relation oid, name text) returns text
language sql stable set search_path = pg_catalog, pg_temp
as $$
select 'pg_catalog.record_send(row(' || string_agg(case
           when anabranch.has_binary(a.atttypid) then format('%I.%I', $2, a.attname)
           else format('case when pg_catalog.num_nulls(%1$I.%2$I) operator(pg_catalog.=) 0 '
                       'then pg_catalog.concat(%1$I.%2$I) end', $2, a.attname)
       end, ', ' order by a.attnum) || '))'
from pg_attribute a
where a.attrelid = $1 and a.attnum > 0 and not a.attisdropped
$$;
"""

# A plan for the table at hand looks cheaper than one for any, and would be made anew at every statement: the functions
# are made to keep one plan.
#
# One look at the columns is to do for nearly every table: built-in types that have a binary form, enumerations, arrays
# of them, and domains over built-in types. For others all that they are made of is looked at. The numbers are those of
# aclitem, gtsvector, their arrays, and of system tables' rows; what else the system has without a binary form is no
# column's type, or has a number above.
_ODD = "1033, 1034, 3642, 3644, 71, 75, 81, 83, 210, 270, 272, 273"
_TEXTUAL = f"""coalesce((
    select pg_catalog.bool_or(not anabranch.has_binary(a.atttypid)) from pg_catalog.pg_attribute a
    where a.attrelid operator(pg_catalog.=) tg_relid and a.attnum operator(pg_catalog.>) 0 and not a.attisdropped
      and (a.atttypid operator(pg_catalog.>=) 10000::pg_catalog.oid
           or a.atttypid operator(pg_catalog.=) any(array[{_ODD}]::pg_catalog.oid[]))
      -- Scalars, and no EXISTS: that would be answered by way of a hash table or of a whole catalog.
      and not coalesce((
          select case t.typtype
              when 'e' then true
              when 'd' then t.typbasetype operator(pg_catalog.<) 10000::pg_catalog.oid
                            and t.typbasetype operator(pg_catalog.<>) all(array[{_ODD}]::pg_catalog.oid[])
              when 'b' then case t.typelem
                  when 0::pg_catalog.oid then
                      (select p.prolang from pg_catalog.pg_proc p where p.oid operator(pg_catalog.=) t.typsend)
                          operator(pg_catalog.=) any(array[12, 13]::pg_catalog.oid[])
                      and (select p.prolang from pg_catalog.pg_proc p where p.oid operator(pg_catalog.=) t.typreceive)
                          operator(pg_catalog.=) any(array[12, 13]::pg_catalog.oid[])
                  else (select e.typtype operator(pg_catalog.=) 'e' from pg_catalog.pg_type e
                        where e.oid operator(pg_catalog.=) t.typelem) end
              else false end
          from pg_catalog.pg_type t where t.oid operator(pg_catalog.=) a.atttypid), false)), false)
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
    if {_TEXTUAL} then
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
    elsif tg_op operator(pg_catalog.=) 'INSERT' then
        insert into anabranch.captured (database_id, table_id, xid, type, depth, new, role, application)
        select tg_argv[0]::pg_catalog.int4, tg_argv[1]::pg_catalog.int4, pg_catalog.pg_current_xact_id(), 1,
               pg_catalog.pg_trigger_depth(), pg_catalog.record_send(n.*), {_LAST}
        from new_rows n;
    elsif tg_op operator(pg_catalog.=) 'UPDATE' then
        -- Both hold the same rows in the same order. A full join can't become a nested loop.
        insert into anabranch.captured (database_id, table_id, xid, type, depth, old, new, role, application)
        select tg_argv[0]::pg_catalog.int4, tg_argv[1]::pg_catalog.int4, pg_catalog.pg_current_xact_id(), 2,
               pg_catalog.pg_trigger_depth(), b.image, a.image, {_LAST}
        from (select pg_catalog.record_send(o.*) as image, pg_catalog.row_number() over () as place
              from old_rows o) b
        full join (select pg_catalog.record_send(n.*) as image, pg_catalog.row_number() over () as place
                   from new_rows n) a on a.place operator(pg_catalog.=) b.place;
    else
        insert into anabranch.captured (database_id, table_id, xid, type, depth, old, role, application)
        select tg_argv[0]::pg_catalog.int4, tg_argv[1]::pg_catalog.int4, pg_catalog.pg_current_xact_id(), 3,
               pg_catalog.pg_trigger_depth(), pg_catalog.record_send(o.*), {_LAST}
        from old_rows o;
    end if;
    if client_encoding operator(pg_catalog.<>) 'UTF8' then
        perform pg_catalog.set_config('client_encoding', client_encoding, true);
    end if;
    return null;
end
$$;
"""

# The look at the columns is remembered for the transaction: rows come one by one here, and nobody alters a table that
# is being written to.
ROW = f"""
create or replace function anabranch.capture_row() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
    client_encoding constant name := pg_client_encoding();
    before bytea;
    after bytea;
    kept text[];
    textual boolean := false;
begin
    if client_encoding <> 'UTF8' then
        perform set_config('client_encoding', 'UTF8', true);
    end if;
    if current_setting('anabranch.binary_table', true) is distinct from tg_relid::text then
        textual := {_TEXTUAL};
        if not textual then
            perform set_config('anabranch.binary_table', tg_relid::text, true);
        end if;
    end if;
    if textual then
{_PRINT}
        if tg_op <> 'INSERT' then
            execute 'select ' || anabranch.image_of(tg_relid, 'o') || ' from (select ($1).*) o' into before using old;
        end if;
        if tg_op <> 'DELETE' then
            execute 'select ' || anabranch.image_of(tg_relid, 'n') || ' from (select ($1).*) n' into after using new;
        end if;
{_PRINT_AS_BEFORE}
        insert into anabranch.captured (database_id, table_id, xid, type, depth, old, new, role, application)
        values (tg_argv[0]::int4, tg_argv[1]::int4, pg_current_xact_id(),
                case tg_op when 'INSERT' then 1 when 'UPDATE' then 2 else 3 end, pg_trigger_depth(),
                before, after, session_user, current_setting('application_name'));
    else
        insert into anabranch.captured (database_id, table_id, xid, type, depth, old, new, role, application)
        values (tg_argv[0]::int4, tg_argv[1]::int4, pg_current_xact_id(),
                case tg_op when 'INSERT' then 1 when 'UPDATE' then 2 else 3 end, pg_trigger_depth(),
                case when tg_op <> 'INSERT' then record_send(old) end,
                case when tg_op <> 'DELETE' then record_send(new) end,
                session_user, current_setting('application_name'));
    end if;
    if client_encoding <> 'UTF8' then
        perform set_config('client_encoding', client_encoding, true);
    end if;
    return null;
end
$$;
"""

TRUNCATE = f"""
create or replace function anabranch.capture_truncate() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off
as $$
declare
    client_encoding constant name := pg_client_encoding();
    most constant int := 100000;
    moment pg_snapshot;
    behind bool;
    next bigint;
    kept text[];
begin
    if current_setting('transaction_isolation') in ('repeatable read', 'serializable') then
        moment := pg_current_snapshot();
        behind := exists (
            select from pg_snapshot_xip(moment) running where pg_xact_status(running) = 'committed'
        );
        next := pg_snapshot_xmax(moment)::text::bigint;
        begin
            for later in next .. next + most loop
                exit when behind;
                behind := pg_xact_status(later::text::xid8) = 'committed' or later = next + most;
            end loop;
        exception when invalid_parameter_value then
            null;  -- none of that number has begun
        end;
        if behind then
            raise exception using
                errcode = 'serialization_failure',
                message = format('could not serialize access: TRUNCATE of the synced table %s would remove rows that '
                                 'this transaction can''t see', tg_relid::regclass),
                hint = 'Others have committed since the transaction began. Try it again with TRUNCATE as the first '
                       'statement, or use DELETE, or READ COMMITTED.';
        end if;
    end if;
    perform set_config('client_encoding', 'UTF8', true);
{_PRINT}
    execute format(
        'insert into anabranch.captured (database_id, table_id, xid, type, depth, old, role, application) '
        'select $1, $2, pg_catalog.pg_current_xact_id(), 3, $3, %s, $4, $5 from %s t',
        case when {_TEXTUAL} then anabranch.image_of(tg_relid, 't')
             else 'pg_catalog.record_send(t.*)' end,
        tg_relid::regclass)
    using tg_argv[0]::int4, tg_argv[1]::int4, pg_trigger_depth(), session_user, current_setting('application_name');
{_PRINT_AS_BEFORE}
    perform set_config('client_encoding', client_encoding, true);
    return null;
end
$$;
"""

# The triggers for statements had a condition that kept them silent in the resolver's sessions. How they are switched
# stays. A table of another owner keeps its own, and is named.
TRIGGERS = """
do $$
declare
    one record;
begin
    for one in
        select t.tgname, t.tgtype, t.tgenabled, c.oid::pg_catalog.regclass as relation, c.relowner,
               pg_catalog.string_to_array(pg_catalog.encode(t.tgargs, 'escape'), '\\000') as arguments
        from pg_catalog.pg_trigger t join pg_catalog.pg_class c on c.oid = t.tgrelid
        where t.tgfoid = 'anabranch.capture()'::pg_catalog.regprocedure and t.tgqual is not null
        order by c.oid, t.tgname
    loop
        if not pg_catalog.pg_has_role(one.relowner, 'USAGE') then
            raise warning 'the triggers of % stay as they are: it is not this role''s. Remove and add the table, as a '
                          'role that owns it', one.relation;
            continue;
        end if;
        execute pg_catalog.format(
            'create or replace trigger %I after %s on %s referencing %s for each statement '
            'execute function anabranch.capture(%L, %L)',
            one.tgname,
            case when one.tgtype & 4 <> 0 then 'insert' when one.tgtype & 8 <> 0 then 'delete' else 'update' end,
            one.relation,
            case when one.tgtype & 4 <> 0 then 'new table as new_rows' when one.tgtype & 8 <> 0
                 then 'old table as old_rows' else 'old table as old_rows new table as new_rows' end,
            one.arguments[1], one.arguments[2]);
        execute pg_catalog.format(
            'alter table %s %s trigger %I', one.relation,
            case one.tgenabled when 'A' then 'enable always' when 'D' then 'disable' when 'R' then 'enable replica'
                 else 'enable' end,
            one.tgname);
    end loop;
end
$$;
"""


def upgrade() -> None:
    """Make the functions anew, and the triggers that call them for a statement."""
    for statement in (HAS_BINARY, IMAGE, STATEMENT, ROW, TRUNCATE, TRIGGERS):
        op.execute(statement)


def downgrade() -> None:
    """Nothing: the release before works with them, and better than with its own."""
