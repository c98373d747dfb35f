"""The event triggers of migration 0024, which call its other functions, and the function that makes them. Like the
migration it is never changed once it is released.
"""

from __future__ import annotations

# The three functions that the event triggers call. They run as the role that owns schema anabranch, never make a
# command fail, and wait shortly: what they miss the resolver finds when it compares the tables itself.
_EVENT = """
create function anabranch.{name}() returns event_trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp set plan_cache_mode = force_generic_plan
set standard_conforming_strings = on
set client_min_messages = error set lock_timeout = '1s'
as $$
declare
{declare}
begin
{body}
exception when others then
    raise warning 'anabranch did not notice a change by DDL, and will look for it later: % (SQLSTATE %)',
                  sqlerrm, sqlstate;
end
$$;
"""

NOTICE_DDL = _EVENT.format(
    name="notice_ddl",
    declare="""
    one record;
    rewritten text := coalesce(current_setting('anabranch.rewritten', true), '');
    types boolean := false;
""",
    body="""
    for one in
        select distinct c.classid, c.objid, c.object_type from pg_event_trigger_ddl_commands() c
        where c.schema_name is distinct from 'pg_temp' and c.schema_name is distinct from 'anabranch'
    loop
        case when one.object_type in ('table', 'table column') then
            perform anabranch.notice_table(one.objid, tg_tag, rewritten);
        when one.object_type = 'schema' then
            perform anabranch.notice_schema(one.objid, tg_tag);
        when one.object_type in ('type', 'domain', 'composite type', 'composite type column', 'extension') then
            types := true;
        else
        end case;
        types := types or (one.classid = 'pg_class'::regclass and anabranch.is_type_of_columns(one.objid));
    end loop;
    if types then
        perform anabranch.notice_types(tg_tag);
    end if;
    if rewritten <> '' then
        perform set_config('anabranch.rewritten', '', true);
    end if;
""",
)

NOTICE_DROP = _EVENT.format(
    name="notice_drop",
    declare="""
    one record;
    types boolean := false;
""",
    body="""
    perform anabranch.notice_dropped(tg_tag);
    for one in
        with part as materialized (
            select distinct d.object_type, d.address_names[1] as its_schema, d.address_names[2] as its_name
            from pg_event_trigger_dropped_objects() d
            where not d.is_temporary and d.schema_name is distinct from 'anabranch' and d.object_type in
                ('table column', 'table constraint', 'default value', 'composite type column')
        )
        select c.oid, c.relkind, bool_or(p.object_type ~ 'column') as of_type
        from part p join pg_namespace n on n.nspname = p.its_schema
        join pg_class c on c.relnamespace = n.oid and c.relname = p.its_name
        group by c.oid, c.relkind order by c.oid
    loop
        if one.relkind = 'r' then
            perform anabranch.notice_table(one.oid, tg_tag, '');
        end if;
        types := types or one.of_type and (one.relkind = 'c' or anabranch.is_type_of_columns(one.oid));
    end loop;
    if types then
        perform anabranch.notice_types(tg_tag);
    end if;
""",
)

NOTICE_REWRITE = _EVENT.format(
    name="notice_rewrite",
    declare="",
    body="""
    perform set_config('anabranch.rewritten', concat_ws(
        ',', nullif(current_setting('anabranch.rewritten', true), ''),
        pg_event_trigger_table_rewrite_oid() || ':' || pg_event_trigger_table_rewrite_reason()), true);
""",
)

# Event triggers run their functions in the sessions of superusers, too: so a superuser makes none of functions
# that another role could replace. Made anew where they are there: a release may have other tags.
INSTALL = """
create function anabranch.install_event_triggers() returns boolean
language plpgsql set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on
as $$
declare
    one record;
begin
    if (select r.rolsuper from pg_roles r where r.rolname = current_user) and not (
        select bool_and(r.rolsuper) from pg_proc p join pg_roles r on r.oid = p.proowner
        where p.oid in ('anabranch.notice_ddl()'::regprocedure, 'anabranch.notice_drop()'::regprocedure,
                        'anabranch.notice_rewrite()'::regprocedure)
    ) then
        return false;
    end if;
    for one in
        select * from (values
            ('anabranch_ddl', 'ddl_command_end', 'notice_ddl', array[
                'ALTER TABLE', 'CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TYPE', 'ALTER DOMAIN',
                'ALTER SCHEMA', 'ALTER EXTENSION', 'CREATE VIEW', 'ALTER VIEW', 'ALTER MATERIALIZED VIEW',
                'ALTER FOREIGN TABLE']),
            ('anabranch_drop', 'sql_drop', 'notice_drop', array[
                'DROP TABLE', 'DROP SCHEMA', 'DROP TYPE', 'DROP DOMAIN', 'DROP EXTENSION', 'DROP OWNED',
                'DROP SEQUENCE', 'DROP FUNCTION', 'DROP PROCEDURE', 'DROP ROUTINE', 'DROP AGGREGATE', 'DROP VIEW',
                'DROP MATERIALIZED VIEW', 'DROP FOREIGN TABLE', 'DROP COLLATION', 'DROP LANGUAGE', 'DROP OPERATOR',
                'DROP OPERATOR CLASS', 'DROP OPERATOR FAMILY', 'DROP CAST', 'DROP INDEX', 'ALTER EXTENSION']),
            ('anabranch_rewrite', 'table_rewrite', 'notice_rewrite', array['ALTER TABLE', 'ALTER TYPE'])
        ) t (name, event, function, tags)
    loop
        if exists (select from pg_event_trigger e where e.evtname = one.name) then
            continue;
        end if;
        execute format('create event trigger %I on %s when tag in (%s) execute function anabranch.%I()', one.name,
                       one.event, (select string_agg(quote_literal(tag), ', ') from unnest(one.tags) tag),
                       one.function);
        execute format('alter event trigger %I enable always', one.name);
    end loop;
    return true;
exception when insufficient_privilege or unique_violation or duplicate_object then
    return false;
end
$$;
"""
