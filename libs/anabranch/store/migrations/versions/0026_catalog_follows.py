"""The catalog follows DDL of synced tables, also where groups are committed by a role that has few rights.

Revision ID: 0026
Revises: 0025
"""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None
works_from = "0009"

# How the catalog follows. A group that commits DDL into it runs in a session with few rights, in which code of the
# application may run, too: these functions have the owner's rights, and take no more from their caller than what cannot
# reach SQL of the services or another table's rows. So types are compared with the table's own, a table is the one that
# has the triggers of its number, and expressions are never given.
CAPTURED_BY = """
create function anabranch.captured_by(database_id int, number int) returns oid
language sql stable set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
select t.tgrelid from pg_trigger t
where t.tgfoid = 'anabranch.capture_truncate()'::regprocedure and t.tgname = '~anabranch_truncate'
  and t.tgargs = convert_to($1::text, 'UTF8') || '\\x00' || convert_to($2::text, 'UTF8') || '\\x00'
$$;
"""

CHECK_COLUMNS = """
create function anabranch.check_columns(relation oid, columns jsonb) returns void
language plpgsql stable set search_path = pg_catalog, pg_temp set quote_all_identifiers = off
set standard_conforming_strings = on
as $$
begin
    if relation is null or exists (
        select from jsonb_array_elements(columns) k where not exists (
            select from pg_attribute a
            where a.attrelid = relation and a.attnum = (k ->> 'number')::int2 and not a.attisdropped
              and format_type(a.atttypid, a.atttypmod) = k ->> 'postgres_type')
    ) then
        raise exception 'columns are given that table % does not have', coalesce(relation, 0)::regclass
            using errcode = 'invalid_parameter_value';
    end if;
end
$$;
"""

# An audience expression with the names that its columns have now: Postgres prints it so, once a table that had the
# names of then has those of now. NULL where that can't be done.
FOLLOWED_AUDIENCE = """
create function anabranch.followed_audience(number int, out expression text, out reads text[])
language plpgsql security definer set search_path = pg_catalog, pg_temp set client_min_messages = error
set standard_conforming_strings = on
as $$
declare
    registered record;
    relation oid;
    one record;
begin
    select s.database_id, s.audience, s.audience_is_list, s.shape into registered
    from anabranch.synced_tables s where s.id = number;
    relation := anabranch.captured_by(registered.database_id, number);
    if registered.audience is null or relation is null then
        return;
    end if;
    execute format('create temp table anabranch_followed (like %s)', relation::regclass);
    for one in
        select a.attname, a.attnum from pg_attribute a
        where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
    loop
        execute format('alter table pg_temp.anabranch_followed rename column %I to %I', one.attname,
                       'anabranch ' || one.attnum);
    end loop;
    for one in
        select (k ->> 'n')::int as attnum, k ->> 'name' as was
        from jsonb_array_elements(registered.shape -> 'columns') k
        where exists (select from pg_attribute a where a.attrelid = 'pg_temp.anabranch_followed'::regclass
                      and a.attname = 'anabranch ' || (k ->> 'n'))
    loop
        execute format('alter table pg_temp.anabranch_followed rename column %I to %I', 'anabranch ' || one.attnum,
                       one.was);
    end loop;
    execute format(E'create index anabranch_followed_index on pg_temp.anabranch_followed (((\\n%s\\n)::%s))',
                   registered.audience, case when registered.audience_is_list then 'text[]' else 'text' end);
    for one in
        select (k ->> 'n')::int as attnum, k ->> 'name' as was
        from jsonb_array_elements(registered.shape -> 'columns') k
        where exists (select from pg_attribute a where a.attrelid = 'pg_temp.anabranch_followed'::regclass
                      and a.attname = k ->> 'name')
    loop
        execute format('alter table pg_temp.anabranch_followed rename column %I to %I', one.was,
                       'anabranch ' || one.attnum);
    end loop;
    for one in
        select a.attname, a.attnum from pg_attribute a
        where a.attrelid = relation and a.attnum > 0 and not a.attisdropped
    loop
        execute format('alter table pg_temp.anabranch_followed rename column %I to %I', 'anabranch ' || one.attnum,
                       one.attname);
    end loop;
    select coalesce(pg_get_expr(i.indexprs, i.indrelid), pg_get_indexdef(i.indexrelid, 1, false)),
           array(select c.attname::text from pg_depend d
                 join pg_attribute c on c.attrelid = d.refobjid and c.attnum = d.refobjsubid
                 where d.classid = 'pg_class'::regclass and d.objid = i.indexrelid
                   and d.refclassid = 'pg_class'::regclass and d.refobjid = i.indrelid and d.refobjsubid > 0
                 group by c.attnum, c.attname order by c.attnum)
    into expression, reads
    from pg_index i where i.indexrelid = 'pg_temp.anabranch_followed_index'::regclass;
    execute 'drop table pg_temp.anabranch_followed';
exception when others then
    expression := null;
    reads := null;
end
$$;
"""

FOLLOW_TABLE = """
create function anabranch.follow_table(
    number int, columns jsonb, former jsonb, key_columns text[], sql_name text, shape jsonb, policies jsonb,
    changed bigint
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
#variable_conflict use_column
declare
    registered anabranch.synced_tables;
    ours oid;
    followed record;
begin
    select s.* into registered from anabranch.synced_tables s where s.id = number;
    ours := anabranch.captured_by(registered.database_id, number);
    perform anabranch.check_columns(ours, $2);
    if exists (
        select from jsonb_array_elements(former) k where not exists (
            select from jsonb_array_elements(registered.columns) c
            where c ->> 'postgres_type' = k -> 'column' ->> 'postgres_type'
            union all
            select from jsonb_array_elements(registered.former_columns) c
            where c -> 'column' ->> 'postgres_type' = k -> 'column' ->> 'postgres_type')
    ) or not exists (select from pg_class c where c.oid = ours and c.relname = $5) then
        raise exception 'columns are given that table % never had', number using errcode = 'invalid_parameter_value';
    end if;
    followed := anabranch.followed_audience(number);
    update anabranch.synced_tables s
    set columns = $2, former_columns = former, key_columns = $4, sql_name = nullif($5, s.name),
        relation = ours::int8, column_numbers = '{}',
        shape = $6 || jsonb_build_object('seen', anabranch.seen_of(ours)),
        policy = case when s.policy ? 'columns' then jsonb_set(s.policy, '{columns}', policies) else s.policy end,
        changed_position = coalesce(changed, s.changed_position),
        audience = coalesce(followed.expression, s.audience),
        audience_columns = coalesce(followed.reads, s.audience_columns)
    where s.id = number;
end
$$;
"""

# Of a table that can't be synced as it is now: it is set aside until it is another one.
REFUSE_TABLE = """
create function anabranch.refuse_table(number int, relation oid, why text, now_ms bigint) returns void
language sql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
update anabranch.synced_tables s
set torn_ms = coalesce(s.torn_ms, $4),
    shape = s.shape || jsonb_build_object('why', $3, 'refused', md5(concat_ws(' ', c.oid, c.relname,
                                                                   anabranch.shape_of(c.oid) - 'missing')))
from pg_class c where s.id = $1 and c.oid = $2
$$;
"""

KEEP_TABLE = """
create function anabranch.keep_table(number int) returns void
language sql set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
with gone as (
    delete from anabranch.synced_tables where id = number
    returning id, database_id, name, columns, key_columns, audience, sql_name, former_columns
)
insert into anabranch.former_tables
    (id, database_id, name, columns, key_columns, last_position, audience, sql_name, former_columns)
select g.id, g.database_id, g.name, g.columns, g.key_columns,
       coalesce((select position from anabranch.groups where database_id = g.database_id
                 order by position desc limit 1), 0), g.audience, g.sql_name, g.former_columns
from gone g
$$;
"""

# Of a table that is gone, or is in another schema.
END_TABLE = """
create function anabranch.end_table(number int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
begin
    if exists (
        select from anabranch.synced_tables s
        join pg_class c on c.oid = anabranch.captured_by(s.database_id, s.id)
        join pg_namespace n on n.oid = c.relnamespace and n.nspname = anabranch.schema_on_record(s.database_id)
        where s.id = number
    ) then
        raise exception 'the table of registration % is there', number using errcode = 'invalid_parameter_value';
    end if;
    perform anabranch.keep_table(number);
end
$$;
"""

# A registration ends, and another one of the same table begins: with its policies, its audience and its triggers.
RENEW_TABLE = """
create function anabranch.renew_table(number int, now_ms bigint) returns int
language plpgsql security definer set search_path = pg_catalog, pg_temp set client_min_messages = error
set standard_conforming_strings = on
as $$
#variable_conflict use_column
declare
    registered anabranch.synced_tables;
    ours oid;
    anew int;
    trigger name;
begin
    select s.* into registered from anabranch.synced_tables s where s.id = number;
    ours := anabranch.captured_by(registered.database_id, number);
    if ours is null then
        raise exception 'no table has the triggers of registration %', number
            using errcode = 'object_not_in_prerequisite_state';
    end if;
    perform anabranch.keep_table(number);
    anew := nextval(pg_get_serial_sequence('anabranch.synced_tables', 'id'));
    registered.id := anew;
    registered.registered_ms := now_ms;
    registered.torn_ms := null;
    registered.first_position := coalesce((select max(position) from anabranch.groups
                                           where database_id = registered.database_id), 0);
    insert into anabranch.synced_tables overriding system value select registered.*;
    insert into anabranch.table_sums (table_id, position, row_count, row_hash)
    values (anew, registered.first_position, 0, decode(repeat('00', 16), 'hex'));
    perform anabranch.install_capture(ours, registered.database_id, anew);
    if registered.capture_off_ms is not null then
        for trigger in
            select t.tgname from pg_trigger t join pg_proc p on p.oid = t.tgfoid
            where t.tgrelid = ours and p.pronamespace = 'anabranch'::regnamespace
        loop
            execute format('alter table %s disable trigger %I', ours::regclass, trigger);
        end loop;
    end if;
    return anew;
end
$$;
"""

BEGIN_TABLE = """
create function anabranch.begin_table(
    database_id int, number int, name text, columns jsonb, key_columns text[], shape jsonb, now_ms bigint
) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
#variable_conflict use_column
declare
    ours oid := anabranch.captured_by($1, number);
    one record;
begin
    perform anabranch.check_columns(ours, $4);
    select c.relname into one from pg_class c join pg_namespace n on n.oid = c.relnamespace
    join anabranch.databases d on d.schema_name = n.nspname and d.id = $1
    where c.oid = ours and anabranch.takes_new_table($1, c.relname);
    if one is null or exists (select from anabranch.synced_tables s where s.id = number) then
        raise exception 'table % is none that is registered by itself', ours::regclass
            using errcode = 'invalid_parameter_value';
    end if;
    insert into anabranch.synced_tables
        (id, database_id, name, columns, key_columns, registered_ms, first_position, sql_name, relation, shape)
    overriding system value
    values (number, $1, $3, $4, $5, $7, coalesce((select max(position) from anabranch.groups
                                                 where database_id = $1), 0),
            nullif(one.relname, $3), ours::int8, $6 || jsonb_build_object('seen', anabranch.seen_of(ours)));
    insert into anabranch.table_sums (table_id, position, row_count, row_hash)
    select s.id, s.first_position, 0, decode(repeat('00', 16), 'hex') from anabranch.synced_tables s
    where s.id = number;
end
$$;
"""

# Of a new table that can't be synced.
LEAVE_TABLE = """
create function anabranch.leave_table(database_id int, number int) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set client_min_messages = error
set standard_conforming_strings = on
as $$
declare
    relation constant oid := anabranch.captured_by($1, number);
    one record;
begin
    if exists (select from anabranch.synced_tables s where s.id = number) then
        raise exception 'registration % goes on', number using errcode = 'invalid_parameter_value';
    end if;
    for one in
        select t.tgname from pg_trigger t join pg_proc p on p.oid = t.tgfoid
        where t.tgrelid = relation and p.pronamespace = 'anabranch'::regnamespace
    loop
        execute format('drop trigger %I on %s', one.tgname, relation::regclass);
    end loop;
end
$$;
"""

MOVE_DATABASE = """
create function anabranch.move_database(database_id int) returns void
language sql security definer set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
update anabranch.databases d set schema_name = n.nspname
from pg_namespace n
where d.id = $1 and n.nspname = anabranch.schema_on_record($1)
  and not exists (select from pg_namespace o where o.nspname = d.schema_name)
  and exists (select from anabranch.synced_tables s join pg_class c on c.oid = anabranch.captured_by($1, s.id)
              where s.database_id = $1 and c.relnamespace = n.oid)
$$;
"""

FUNCTIONS = (
    CAPTURED_BY, CHECK_COLUMNS, FOLLOWED_AUDIENCE, FOLLOW_TABLE, REFUSE_TABLE, KEEP_TABLE, END_TABLE, RENEW_TABLE,
    BEGIN_TABLE, LEAVE_TABLE, MOVE_DATABASE,
)  # fmt: skip

# Whoever may use schema anabranch could call them else.
REVOKE = """
revoke execute on function
    anabranch.begin_table(int, int, text, jsonb, text[], jsonb, bigint), anabranch.end_table(int),
    anabranch.follow_table(int, jsonb, jsonb, text[], text, jsonb, jsonb, bigint), anabranch.followed_audience(int),
    anabranch.leave_table(int, int), anabranch.move_database(int), anabranch.refuse_table(int, oid, text, bigint),
    anabranch.renew_table(int, bigint)
from public
"""


def upgrade() -> None:
    """Make the functions."""
    for statement in (*FUNCTIONS, REVOKE):
        op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    for name in (
        "move_database(int)", "leave_table(int, int)", "begin_table(int, int, text, jsonb, text[], jsonb, bigint)",
        "renew_table(int, bigint)", "end_table(int)", "keep_table(int)", "refuse_table(int, oid, text, bigint)",
        "follow_table(int, jsonb, jsonb, text[], text, jsonb, jsonb, bigint)", "followed_audience(int)",
        "check_columns(oid, jsonb)", "captured_by(int, int)",
    ):  # fmt: skip
        op.execute(f"drop function anabranch.{name}")
