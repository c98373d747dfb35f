"""DDL of synced tables is noticed inside the transaction that runs it, and stands in order with what is captured.

Revision ID: 0024
Revises: 0023
"""

from __future__ import annotations

from alembic import op

from anabranch.store.migrations.event_triggers_0024 import INSTALL, NOTICE_DDL, NOTICE_DROP, NOTICE_REWRITE
from anabranch.store.session.table_locks import take_tables

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
works_from = "0009"

COLUMN = """
alter table anabranch.synced_tables add column shape jsonb;
comment on column anabranch.synced_tables.shape is
    'anabranch.shape_of the table as its columns were read; NULL: not known, as the release before does not write it. '
    'refused: a hash of a later one by which it can''t be synced, and why';
comment on column anabranch.captured.type is
    '1 insert, 2 update (of the key as well), 3 delete; 4: a marker, the table was altered here';
comment on column anabranch.captured.new is
    'record_send of the row after, text in UTF-8; NULL for a delete. Of a marker: JSON in UTF-8'
"""

INDEX = "create index captured_markers on anabranch.captured (database_id, id) where type = 4"

# All of a type that may change while it keeps its number, as far as values depend on it. NULL for a type of the
# system's, and for a base type. No composite type contains itself, so the way down ends.
DEEP = """
create function anabranch.deep_of(type oid) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    one record;
    inner_one jsonb;
begin
    if type < 16384 then
        return null;
    end if;
    select t.typtype, t.typbasetype, t.typtypmod, t.typelem, t.typlen, t.typrelid, t.typnotnull,
           t.typdefault is not null as has_default
    into one from pg_type t where t.oid = type;
    if one.typtype = 'e' then
        return jsonb_build_object('enum', coalesce((
            select jsonb_agg(jsonb_build_array(e.oid::int8, e.enumlabel) order by e.enumsortorder)
            from pg_enum e where e.enumtypid = type), '[]'));
    elsif one.typtype = 'd' then
        return jsonb_strip_nulls(jsonb_build_object(
            'domain', format_type(one.typbasetype, one.typtypmod), 'nn', nullif(one.typnotnull, false),
            'def', nullif(one.has_default, false), 'of', anabranch.deep_of(one.typbasetype)));
    elsif one.typtype = 'c' then
        return jsonb_build_object('row', coalesce((
            select jsonb_agg(jsonb_build_array(a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
                                               anabranch.deep_of(a.atttypid)) order by a.attnum)
            from pg_attribute a where a.attrelid = one.typrelid and a.attnum > 0 and not a.attisdropped), '[]'));
    elsif one.typtype = 'b' and one.typelem <> 0 and one.typlen = -1 then
        inner_one := anabranch.deep_of(one.typelem);
        return case when inner_one is not null then jsonb_build_object('array', inner_one) end;
    elsif one.typtype in ('r', 'm') then
        select anabranch.deep_of(r.rngsubtype) into inner_one from pg_range r
        where r.rngtypid = type or r.rngmultitypid = type;
        return case when inner_one is not null then jsonb_build_object('range', inner_one) end;
    end if;
    return null;
end
$$;
"""

# The constants that rows have which were there before their columns, as our own sessions print them.
MISSING = """
create function anabranch.missing_of(relation oid) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
set datestyle = 'ISO, YMD' set intervalstyle = 'postgres' set timezone = 'UTC' set bytea_output = 'hex'
set extra_float_digits = 1 set lc_monetary = 'C'
as $$
begin
    return (select jsonb_object_agg(a.attnum, (a.attmissingval::text::text[])[1]) from pg_attribute a
            where a.attrelid = relation and a.attnum > 0 and not a.attisdropped and a.atthasmissing);
end
$$;
"""

SHAPE = """
create function anabranch.shape_of(relation oid) returns jsonb
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
set quote_all_identifiers = off
as $$
begin
    return (
        select jsonb_build_object(
            'columns', coalesce(jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
                'n', a.attnum, 'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod),
                'oid', a.atttypid::int8, 'mod', nullif(a.atttypmod, -1), 'nn', nullif(a.attnotnull, false),
                'gen', nullif(a.attgenerated::text, ''), 'id', nullif(a.attidentity::text, ''),
                'def', md5(pg_get_expr(d.adbin, d.adrelid)),
                'textual', case when a.atttypid >= 10000 or a.atttypid = any(odd)
                                then nullif(not anabranch.has_binary(a.atttypid), false) end,
                'deep', case when a.atttypid >= 16384 then anabranch.deep_of(a.atttypid) end
            )) order by a.attnum), '[]'),
            'key', coalesce((select to_jsonb((i.indkey::int2[])[0:i.indnkeyatts - 1]) from pg_index i
                             where i.indrelid = relation and i.indisprimary), '[]'))
            || case when bool_or(a.atthasmissing) then jsonb_build_object('missing', anabranch.missing_of(relation))
                    else '{}' end
        from (values (array[1033, 1034, 3642, 3644, 71, 75, 81, 83, 210, 270, 272, 273]::oid[])) few (odd)
        cross join pg_attribute a
        left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum and a.atthasdef
        where a.attrelid = relation and a.attnum > 0 and not a.attisdropped);
end
$$;
"""

# Changes whenever a shape does, and is far cheaper: a shape that is kept has it beside, so that a look at all tables
# makes no shape where nothing was altered.
SEEN = """
create function anabranch.seen_of(relation oid) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
set quote_all_identifiers = off
as $$
begin
    return (
        select md5(concat_ws(' ', relation, string_agg(concat_ws(' ', a.attnum, a.xmin,
                   case when a.atttypid >= 16384 then format_type(a.atttypid, a.atttypmod) end,
                   case when a.atttypid >= 16384 then anabranch.deep_of(a.atttypid) end), ',' order by a.attnum),
               (select string_agg(d.oid::text, ',' order by d.oid) from pg_attrdef d where d.adrelid = relation),
               (select i.indkey::text from pg_index i where i.indrelid = relation and i.indisprimary)))
        from pg_attribute a where a.attrelid = relation and a.attnum > 0);
end
$$;
"""

# The capture triggers of store/capture/triggers.py, for a table that is named by its oid.
INSTALL_CAPTURE = """
create function anabranch.install_capture(relation oid, database_id int, table_id int) returns void
language plpgsql set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    resolver constant text := $when$for each row when (pg_catalog.pg_trigger_depth() > 0 and
        case when pg_catalog.current_setting('anabranch.resolver', true) = pg_catalog.pg_backend_pid()::text
             then pg_catalog.has_table_privilege(session_user, 'anabranch.captured'::pg_catalog.regclass, 'DELETE')
             else false end)$when$;
    one record;
begin
    for one in
        select * from (values
            ('anabranch_insert', 'after insert', 'referencing new table as new_rows for each statement', 'capture'),
            ('anabranch_update', 'after update',
             'referencing old table as old_rows new table as new_rows for each statement', 'capture'),
            ('anabranch_delete', 'after delete', 'referencing old table as old_rows for each statement', 'capture'),
            ('anabranch_row_write', 'after insert or update', resolver, 'capture_row'),
            ('anabranch_row_delete', 'after delete', 'referencing old table as old_rows ' || resolver, 'capture_row'),
            ('~anabranch_truncate', 'before truncate', 'for each statement', 'capture_truncate')
        ) t (name, event, how, function)
    loop
        execute format('create or replace trigger %I %s on %s %s execute function anabranch.%I(%L, %L)', one.name,
                       one.event, relation::regclass, one.how, one.function, database_id::text, table_id::text);
        execute format('alter table %s enable always trigger %I', relation::regclass, one.name);
    end loop;
end
$$;
"""


# The schema of a database: a marker that waits may say that it has another name by now.
SCHEMA_ON_RECORD = """
create function anabranch.schema_on_record(database_id int) returns text
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
begin
    return coalesce(
        (select convert_from(c.new, 'UTF8')::jsonb ->> 'schema_name' from anabranch.captured c
         where c.database_id = $1 and c.type = 4 and c.table_id = 0 order by c.id desc limit 1),
        (select d.schema_name from anabranch.databases d where d.id = $1));
end
$$;
"""

MARK = """
create function anabranch.mark(database_id int, table_id int, tag text, told jsonb) returns void
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
begin
    insert into anabranch.captured (database_id, table_id, xid, type, depth, new, role, application)
    values ($1, $2, pg_current_xact_id(), 4, pg_trigger_depth(),
            convert_to((told || jsonb_build_object(
                'tag', tag, 'command', left(coalesce(current_query(), ''), 4000)))::text, 'UTF8'),
            session_user, current_setting('application_name'));
end
$$;
"""

# Whether a table is as its registration says; of one that was refused, as it was when it was refused.
IS_ON_RECORD = """
create function anabranch.is_on_record(shape jsonb, sql_name text, relation oid, name text, has jsonb) returns boolean
language sql immutable
as $$
select case when $1 ? 'refused'
            then $1 ->> 'refused' = md5(concat_ws(' ', $3, $4, $5 - 'missing'))
            else $2 = $4 and $1 - '{missing,seen}'::text[] = $5 - 'missing' end
$$;
"""

# Compares a table with what is on record of it: the last marker that waits, else the registration. ``rewritten`` are
# the tables that the command has written anew, each with pg_event_trigger_table_rewrite_reason(): 2 and 4 may bring
# other values. A transaction that reads one moment may see the table as it was before others altered it, and even
# before it has done so itself: it always leaves a marker, which says so where that shows.
NOTICE_TABLE = """
create function anabranch.notice_table(relation oid, tag text, rewritten text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
declare
    one record;
    registered record;
    told jsonb;
    number int;
    now_has jsonb;
    reason int := 0;
    gone boolean;
    ambiguous text;
    of_one_moment boolean := current_setting('transaction_isolation') in ('repeatable read', 'serializable');
begin
    select c.relname, n.nspname, c.relnatts, c.relkind, c.relispartition, c.relpersistence,
           (select string_to_array(encode(t.tgargs, 'escape'), '\\000') from pg_trigger t
            where t.tgrelid = c.oid and t.tgname = '~anabranch_truncate' and not t.tgisinternal
              and t.tgfoid = 'anabranch.capture_truncate()'::regprocedure) as arguments
    into one from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = relation;
    if one.arguments is null then
        if tag in ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') and one.relkind = 'r' and not one.relispartition
           and one.relpersistence = 'p' then
            perform anabranch.notice_new_table(relation, one.nspname, one.relname, tag);
        end if;
        return;
    end if;
    number := one.arguments[2]::int;
    select convert_from(c.new, 'UTF8')::jsonb into told from anabranch.captured c
    where c.database_id = one.arguments[1]::int and c.type = 4 and c.table_id = number order by c.id desc limit 1;
    select s.id, s.shape, coalesce(s.sql_name, s.name) as sql_name into registered from anabranch.synced_tables s
    where s.id = number and s.database_id = one.arguments[1]::int;
    if told is null and registered.id is null then
        return;
    end if;
    if rewritten <> '' then
        select coalesce(bit_or(split_part(r, ':', 2)::int), 0) & 6 into reason
        from unnest(string_to_array(rewritten, ',')) r
        where r ~ '^[0-9]+:[0-9]{1,3}$' and split_part(r, ':', 1) = relation::text;
    end if;
    gone := one.nspname <> anabranch.schema_on_record(one.arguments[1]::int);
    now_has := anabranch.shape_of(relation);
    if of_one_moment and one.relnatts <> (
        select count(*) from pg_attribute a where a.attrelid = relation and a.attnum > 0
    ) then
        ambiguous := 'others had altered it after the moment that its transaction saw';
    end if;
    if reason = 0 and not of_one_moment and (case when told is null then
            not gone and anabranch.is_on_record(registered.shape, registered.sql_name, relation, one.relname, now_has)
        else
            gone = coalesce((told ->> 'dropped')::boolean, false) and told ->> 'sql_name' = one.relname
            and nullif(told -> 'shape', 'null') - 'missing' = now_has - 'missing'
        end) then
        return;
    end if;
    perform anabranch.mark(one.arguments[1]::int, number, tag, jsonb_strip_nulls(jsonb_build_object(
        'sql_name', one.relname, 'relation', relation::int8, 'rewritten', nullif(reason, 0),
        'dropped', nullif(gone, false), 'created', nullif(registered.id is null, false), 'ambiguous', ambiguous))
        || jsonb_build_object('shape', now_has));
end
$$;
"""

# Whether a database's policy has new tables of that name registered by themselves.
TAKES_NEW_TABLE = """
create function anabranch.takes_new_table(database_id int, name text) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    pattern text := (select d.policy ->> 'new_tables' from anabranch.databases d where d.id = $1);
begin
    if coalesce(pattern, 'none') = 'none' then
        return false;
    end if;
    pattern := regexp_replace(case pattern when 'all' then '*' else pattern end, '([^\\w*?])', '\\\\\\1', 'g');
    return name ~ ('^' || replace(replace(pattern, '*', '.*'), '?', '.') || '$');
end
$$;
"""

NOTICE_NEW_TABLE = """
create function anabranch.notice_new_table(relation oid, its_schema text, its_name text, tag text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
declare
    database int;
    number int;
    writer text;
    sequence oid;
begin
    select d.id into database from anabranch.databases d
    where anabranch.schema_on_record(d.id) = its_schema and anabranch.takes_new_table(d.id, its_name);
    if database is null then
        return;
    end if;
    number := nextval(pg_get_serial_sequence('anabranch.synced_tables', 'id'));
    perform anabranch.install_capture(relation, database, number);
    for writer in
        select r.rolname from pg_class c cross join lateral aclexplode(c.relacl) g join pg_roles r on r.oid = g.grantee
        where c.oid = 'anabranch.row_versions'::regclass and g.privilege_type = 'UPDATE' and g.grantee <> c.relowner
    loop
        execute format('grant select, insert, update, delete, truncate on table %s to %I', relation::regclass, writer);
        for sequence in
            select s.oid from pg_depend p join pg_class s on s.oid = p.objid
            where p.classid = 'pg_class'::regclass and p.refclassid = 'pg_class'::regclass and p.refobjid = relation
              and s.relkind = 'S'
        loop
            execute format('grant usage, select on sequence %s to %I', sequence::regclass, writer);
        end loop;
    end loop;
    perform anabranch.mark(database, number, tag, jsonb_build_object(
        'sql_name', its_name, 'relation', relation::int8, 'created', true, 'shape', anabranch.shape_of(relation)));
end
$$;
"""

# Tables that have columns of types that can change while these keep their numbers, and tables of a type.
NOTICE_TYPES = """
create function anabranch.notice_types(tag text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
declare
    relation oid;
begin
    for relation in
        select t.tgrelid from pg_trigger t
        where t.tgfoid = 'anabranch.capture_truncate()'::regprocedure and t.tgname = '~anabranch_truncate'
          and ((select c.reloftype from pg_class c where c.oid = t.tgrelid) <> 0
               or exists (select from pg_attribute a where a.attrelid = t.tgrelid and a.attnum > 0
                          and not a.attisdropped and a.atttypid >= 16384))
        order by t.tgrelid
    loop
        perform anabranch.notice_table(relation, tag, '');
    end loop;
end
$$;
"""

# Whether the row type of a table or a view, or an array of it, is that of some column, or of a domain over it.
IS_TYPE_OF_COLUMNS = """
create function anabranch.is_type_of_columns(relation oid) returns boolean
language plpgsql stable set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
begin
    return exists (
        select from pg_class c join pg_type t on t.oid = c.reltype
        join pg_depend d on d.refclassid = 'pg_type'::regclass and d.refobjid = any(array[t.oid, t.typarray])
        where c.oid = relation and (d.classid = 'pg_class'::regclass
                                    or d.classid = 'pg_type'::regclass and d.objid <> t.typarray));
end
$$;
"""

# The schema of a database has another name: its tables are where they were.
NOTICE_SCHEMA = """
create function anabranch.notice_schema(schema oid, tag text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
declare
    one record;
begin
    for one in
        select distinct d.id, n.nspname from pg_trigger t join pg_class c on c.oid = t.tgrelid
        join pg_namespace n on n.oid = c.relnamespace
        join anabranch.databases d
          on d.id::text = (string_to_array(encode(t.tgargs, 'escape'), '\\000'))[1]
        where t.tgfoid = 'anabranch.capture_truncate()'::regprocedure and t.tgname = '~anabranch_truncate'
          and n.oid = schema and n.nspname <> anabranch.schema_on_record(d.id)
          and not exists (select from pg_namespace o where o.nspname = anabranch.schema_on_record(d.id))
    loop
        perform anabranch.mark(one.id, 0, tag, jsonb_build_object('schema_name', one.nspname));
    end loop;
    perform anabranch.notice_types(tag);
end
$$;
"""

# All tables that a command has dropped, in one statement: where it drops thousands of partitions, what is on record is
# read once.
NOTICE_DROPPED = """
create function anabranch.notice_dropped(tag text) returns void
language plpgsql set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
as $$
declare
    one record;
begin
    for one in
        with gone as materialized (
            select distinct o.id as database_id, g.object_name::text as sql_name
            from pg_event_trigger_dropped_objects() g
            join (select d.id, anabranch.schema_on_record(d.id) as name from anabranch.databases d offset 0) o
              on o.name = g.schema_name
            where g.object_type = 'table' and not g.is_temporary
        ), last as materialized (
            select distinct on (c.database_id, c.table_id) c.database_id, c.table_id,
                   convert_from(c.new, 'UTF8')::jsonb as told
            from anabranch.captured c
            where c.type = 4 and c.table_id <> 0 and c.database_id in (select g.database_id from gone g)
            order by c.database_id, c.table_id, c.id desc
        ), on_record as (
            select s.database_id, s.id as table_id, coalesce(s.sql_name, s.name) as sql_name, false as created
            from anabranch.synced_tables s
            where not exists (select from last m where m.database_id = s.database_id and m.table_id = s.id)
            union all
            select m.database_id, m.table_id, m.told ->> 'sql_name',
                   coalesce((m.told ->> 'created')::boolean, false)
            from last m where not coalesce((m.told ->> 'dropped')::boolean, false)
        )
        select r.* from on_record r join gone g on g.database_id = r.database_id and g.sql_name = r.sql_name
        order by r.database_id, r.table_id
    loop
        perform anabranch.mark(one.database_id, one.table_id, tag, jsonb_build_object(
            'sql_name', one.sql_name, 'dropped', true, 'created', one.created, 'shape', null));
    end loop;
end
$$;
"""

FUNCTIONS = (
    DEEP, MISSING, SHAPE, SEEN, INSTALL_CAPTURE, SCHEMA_ON_RECORD, MARK, TAKES_NEW_TABLE, NOTICE_NEW_TABLE,
    IS_ON_RECORD, NOTICE_TABLE, NOTICE_TYPES, IS_TYPE_OF_COLUMNS, NOTICE_SCHEMA, NOTICE_DROPPED, NOTICE_DDL,
    NOTICE_DROP, NOTICE_REWRITE, INSTALL,
)  # fmt: skip

# The columns that are registered. Where the table has others by now, which were never synced, their values have to be
# sent once they are.
FILL = """
with found as (
    select s.id, s.columns, anabranch.shape_of(c.oid) || jsonb_build_object('seen', anabranch.seen_of(c.oid)) as shape
    from anabranch.synced_tables s join anabranch.databases d on d.id = s.database_id
    join pg_catalog.pg_namespace n on n.nspname = d.schema_name
    join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = s.name and c.relkind = 'r'
), matched as (
    select f.id, f.shape,
           (select coalesce(jsonb_agg(c.one order by c.place), '[]')
            from jsonb_array_elements(f.shape -> 'columns') with ordinality as c (one, place)
            where c.one ->> 'name' in (select k ->> 'name' from jsonb_array_elements(f.columns) k)) as known
    from found f
)
update anabranch.synced_tables s
set shape = m.shape || jsonb_build_object('columns', m.known)
            || case when m.known <> m.shape -> 'columns' then '{"behind": true, "seen": ""}' else '{}' end::jsonb
from matched m where m.id = s.id
"""


def upgrade() -> None:
    """Make the functions; ``migrate`` makes the event triggers."""
    take_tables(["synced_tables", "captured"])
    for statement in (COLUMN, INDEX, *FUNCTIONS, FILL):
        op.execute(statement)


def downgrade() -> None:
    """Drop them."""
    op.execute("delete from anabranch.captured where type = 4")
    for name in ("ddl", "drop", "rewrite"):
        op.execute(f"drop event trigger if exists anabranch_{name}")
    for name in (
        "install_event_triggers()", "notice_rewrite()", "notice_drop()", "notice_ddl()",
        "notice_dropped(text)", "notice_schema(oid, text)", "is_type_of_columns(oid)",
        "notice_types(text)",
        "notice_table(oid, text, text)", "is_on_record(jsonb, text, oid, text, jsonb)",
        "notice_new_table(oid, text, text, text)", "takes_new_table(int, text)",
        "mark(int, int, text, jsonb)", "schema_on_record(int)", "install_capture(oid, int, int)", "seen_of(oid)",
        "shape_of(oid)",
        "missing_of(oid)", "deep_of(oid)",
    ):  # fmt: skip
        op.execute(f"drop function anabranch.{name}")
    op.execute("drop index anabranch.captured_markers")
    op.execute("alter table anabranch.synced_tables drop column shape")
