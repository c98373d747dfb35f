"""Code that the owner of a synced table attaches to it, to get at keys in the session that commits groups."""

from __future__ import annotations

_ON_TODO = """
create trigger steal after insert on app.todo for each row execute function app.steal();
create constraint trigger later after insert on app.todo deferrable initially deferred
    for each row execute function app.steal();
"""
HOSTILE = (
    """
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
"""
    + _ON_TODO
)
"""Of table ``app.todo``; it notes in ``app.loot`` what it got."""

ACROSS = (
    """
create table app.loot (what text, got text);
grant insert on app.loot to public;
create table app.beside (id serial primary key, what text);
create function app.steal() returns trigger language plpgsql as $$
declare
    attempt text;
    got text;
begin
    insert into app.beside (what) values (new.id);
    foreach attempt in array array[
        'reset role', 'set role none', 'set role postgres', 'reset session authorization',
        'set session authorization default', 'set session authorization postgres',
        'set local session authorization postgres', 'select set_config(''role'', ''none'', false)',
        'grant usage on schema other to public', 'alter role current_user superuser',
        'set row_security = off'
    ] || array(select 'set role ' || quote_ident(rolname) from pg_roles where rolname like 'anabranch\\_writer%') loop
        begin
            execute attempt;
        exception when others then
            null;
        end;
    end loop;
    foreach attempt in array array[
        'select string_agg(title, '' '') from other.todo',
        'insert into other.todo values (''forged'', ''x'') returning title',
        'update other.todo set title = ''changed'' returning title',
        'delete from other.todo returning title',
        'select nextval(''other.numbers'')::text',
        'select string_agg(encode(secret_hash, ''hex''), '' '') from anabranch.api_keys',
        'select string_agg(encode(seal_key, ''hex''), '' '') from anabranch.databases',
        'select string_agg(encode(token, ''hex''), '' '') from anabranch.nodes',
        'insert into anabranch.inbox (database_id, batch_id, node_id, principal, basis, payload, payload_sha256,'
            || ' arrived_ms) select d.id, ''forged'', ''n'', ''p'', 0, '''', '''', 0 from anabranch.databases d'
            || ' returning batch_id',
        'update anabranch.inbox set payload = '''' returning batch_id',
        'update anabranch.batches set verdict = '''' returning batch_id',
        'delete from anabranch.batches returning batch_id',
        'delete from anabranch.log returning batch_id',
        'select string_agg(losing_batch, '' '') from anabranch.conflicts',
        'insert into anabranch.api_keys default values returning ''made''',
        'update anabranch.synced_tables set name = ''x'' returning name'
    ] loop
        got := null;
        begin
            execute attempt into got;
        exception when insufficient_privilege then
            got := 'refused';
        end;
        insert into app.loot values (attempt, got);
    end loop;
    return null;
end $$;
"""
    + _ON_TODO
)
"""Of table ``app.todo``, against another database in schema ``other`` with a table ``todo`` and a sequence ``numbers``;
it notes in ``app.loot`` what it got."""
