"""Every way of writing to a synced table is captured, once, exactly, and without the writer's needing anything."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest

from anabranch.store.capture import triggers as capture
from anabranch.store.capture.rows import decode
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table, create_database, remove_table
from anabranch.store.catalog.sums import scan_rows
from anabranch.store.session.engine import Session, connect
from anabranch.values import Cell

TABLES = """
create domain app.short as text check (length(value) < 20);
create sequence app.numbers;
create table app.p (id text primary key);
create table app.t (
    id text primary key, n int default nextval('app.numbers'), a app.short, n2 int generated always as (n * 2) stored,
    p text default 'd' references app.p on delete cascade on update cascade,
    q text default 'd' references app.p on delete set null on update set default,
    self text references app.t on delete set null on update cascade
);
insert into app.p values ('d'), ('1'), ('2');
insert into app.t (id, a, p, q) values ('a', 'x', '1', '2'), ('b', 'y', '2', '1'), ('c', 'z', 'd', 'd');
create view app.v as select id, a from app.t;
create function app.f() returns void language sql as $$ update app.t set a = 'by f' where id = 'a' $$;
"""

WRITES = {
    "insert": "insert into app.t (id, a) values ('x', 'new')",
    "insert of many": "insert into app.t (id) select 'x' || i from generate_series(1, 500) i",
    "update": "update app.t set a = a || '!'",
    "update of nothing": "update app.t set a = 'no' where false",
    "delete": "delete from app.t where id <> 'b'",
    "upsert": "insert into app.t (id, a) values ('a', 'u'), ('x', 'u') on conflict (id) do update set a = excluded.a",
    "merge": "merge into app.t using (values ('a'), ('x'), ('b')) s (id) on t.id = s.id "
    "when matched and s.id = 'b' then delete when matched then update set a = 'm' "
    "when not matched then insert (id, a) values (s.id, 'm')",
    "truncate": "truncate app.t",
    "truncate of another": "truncate app.p cascade",
    "through a view": "update app.v set a = 'v' where id = 'b'; insert into app.v values ('w', 'v')",
    "through a function": "select app.f()",
    "with": "with gone as (delete from app.t where id = 'a' returning *) insert into app.t (id) select 'y' from gone",
    "do": "do $$ begin for i in 1..3 loop update app.t set n = i where id = 'c'; end loop; end $$",
    "key change": "update app.t set id = id || '2'",
    "cascade": "delete from app.p where id = '1'",
    "cascade of an update": "update app.p set id = '3' where id = '2'",
    "set null onto itself": "update app.t set self = 'a'; delete from app.t where id = 'a'",
    "cascade onto itself": "update app.t set self = 'a'; update app.t set id = 'aa' where id = 'a'",
    "savepoint": "begin; insert into app.t (id) values ('s'); savepoint s; delete from app.t; rollback to s; commit",
    "replica": "set session_replication_role = replica; update app.t set a = 'r'; delete from app.t where id = 'c'",
    "another encoding": "set client_encoding = latin1; insert into app.t (id, a) values (chr(8364), chr(233)); "
    "insert into app.t (id, a) values ('after', chr(8364))",
    "added column": "alter table app.t add more int default 5; update app.t set more = 6; "
    "insert into app.t (id) values ('x')",
    "added and dropped": "alter table app.t add more int; insert into app.t (id) values ('x'); "
    "alter table app.t drop more, add again text; insert into app.t (id) values ('y'); "
    "delete from app.t where id = 'a'",
}

BEFORE_AND_AFTER = """
create function app.before() returns trigger language plpgsql as $$ begin new.a := 'before'; return new; end $$;
create function app.after() returns trigger language plpgsql as $$
begin update app.t set n = 77 where id = new.id and n is distinct from 77; return null; end $$;
create trigger a_before before insert or update on app.t for each row execute function app.before();
create trigger z_after after insert or update on app.t for each row execute function app.after();
create trigger a_after after insert or update on app.t for each row execute function app.after();
"""


@pytest.fixture
def synced(conn: Session) -> Session:
    conn.execute(TABLES.encode())
    create_database(conn, "d", "app")
    add_table(conn, "d", "p")
    add_table(conn, "d", "t")
    return conn


def rows_of(conn: Session, table: str) -> Counter[tuple[Cell, ...]]:
    database = load_database(conn, "d")
    with conn.transaction():
        return Counter(tuple(row) for rows in scan_rows(conn, "app", database.tables[table]) for row in rows)


def captured(conn: Session, table: str) -> list[tuple[int, tuple[Cell, ...] | None, tuple[Cell, ...] | None]]:
    """Type, old and new cells of what is captured of a table."""
    registered = load_database(conn, "d").tables[table]
    found = conn.execute(
        "select type, old, new from anabranch.captured where table_id = %s and type <> 4 order by id", (registered.id,)
    ).fetchall()
    with conn.transaction():
        old = iter(decode(conn, "app", registered, [row[1] for row in found if row[1] is not None]))
        new = iter(decode(conn, "app", registered, [row[2] for row in found if row[2] is not None]))
    return [
        (t, tuple(next(old)) if o is not None else None, tuple(next(new)) if n is not None else None)
        for t, o, n in found
    ]


def follows(conn: Session, table: str, before: Counter[tuple[Cell, ...]]) -> None:
    """Check that the captured changes take the rows of before to those of now; types and images fit."""
    rows = Counter(before)
    for kind, old, new in captured(conn, table):
        assert (old is None, new is None) == (kind == 1, kind == 3)
        if old is not None:
            rows[old] -= 1
        if new is not None:
            rows[new] += 1
    assert {row: count for row, count in rows.items() if count} == dict(rows_of(conn, table))


@pytest.mark.parametrize("triggers", ["", BEFORE_AND_AFTER], ids=["plain", "with triggers"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_whatever_is_written_is_captured_once(synced: Session, migrated_url: str, write: str, triggers: str) -> None:
    if write.startswith("merge") and synced.info.server_version < 150000:
        pytest.skip("the server has no MERGE: it came with Postgres 15")
    synced.execute(triggers.encode() or b"select 1")
    before = {table: rows_of(synced, table) for table in ("p", "t")}
    with psycopg.connect(migrated_url, autocommit=True) as writer:
        for statement in write.split("; ") if "$$" not in write else [write]:
            writer.execute(statement.encode())
    for table, rows in before.items():
        follows(synced, table, rows)


def test_a_rolled_back_write_leaves_nothing(synced: Session) -> None:
    with synced.transaction(force_rollback=True):
        synced.execute("delete from app.t")
    assert captured(synced, "t") == []


def test_a_copy_is_captured(synced: Session) -> None:
    before = rows_of(synced, "t")
    with synced.cursor().copy("copy app.t (id, a) from stdin") as copy:
        copy.write("c1\tone\nc2\t\\N\n")
    assert len(captured(synced, "t")) == 2
    follows(synced, "t", before)


def test_a_role_with_few_rights_writes_as_before(synced: Session, migrated_url: str) -> None:
    role = f"anabranch_poor_{synced.info.dbname}"
    synced.execute(
        f'create role "{role}"; grant usage on schema app to "{role}";'
        f'grant usage on sequence app.numbers to "{role}";'
        f'grant select, insert, update, delete, truncate on app.t to "{role}";'
        f'grant select on app.p to "{role}"'.encode()
    )
    try:
        before = rows_of(synced, "t")
        with connect(migrated_url, application_name="gate", autocommit=True) as poor:
            poor.execute(f'set session authorization "{role}"'.encode())
            # The setting by which the resolver tells itself counts for no role that may not touch captured changes.
            poor.execute("select set_config('anabranch.resolver', pg_backend_pid()::text, false)")
            poor.execute("insert into app.t (id) values ('poor')")
            poor.execute("update app.t set a = 'poor'")
            poor.execute("delete from app.t where id = 'b'")
        follows(synced, "t", before)
        told = synced.execute("select distinct role, application from anabranch.captured").fetchall()
        assert told == [(role, "gate")]
        with connect(migrated_url, application_name="gate", autocommit=True) as poor:
            poor.execute(f'set session authorization "{role}"'.encode())
            poor.execute("truncate app.t")
        follows(synced, "t", before)
    finally:
        synced.execute(f'drop owned by "{role}"; drop role "{role}"'.encode())


def test_of_what_the_resolver_writes_only_what_it_causes_is_captured(synced: Session) -> None:
    before = rows_of(synced, "t")
    with synced.transaction():
        synced.execute(capture.MARK_RESOLVER)
        synced.execute("insert into app.p values ('mine')")
        synced.execute("update app.t set a = 'mine' where id = 'c'")
        synced.execute("delete from app.p where id = '1'")
    assert captured(synced, "p") == []
    found = captured(synced, "t")
    # a went with p 1; b lost its q.
    assert [(kind, (old or new or ("",))[0]) for kind, old, new in found] in (
        [(3, "a"), (2, "b")],
        [(2, "b"), (3, "a")],
    )
    # The mark ends with the transaction.
    synced.execute("update app.t set a = 'other' where id = 'c'")
    assert len(captured(synced, "t")) == 3
    assert before != rows_of(synced, "t")


@pytest.mark.parametrize("mark", ["on", "1", "true", "0"])
def test_no_setting_but_the_sessions_own_mark_hides_a_write(synced: Session, mark: str) -> None:
    synced.execute("select set_config('anabranch.resolver', %s, false)", (mark,))
    synced.execute("update app.t set a = 'seen'")
    assert len(captured(synced, "t")) == 3


def test_removing_takes_the_triggers_and_what_they_captured(synced: Session) -> None:
    synced.execute("update app.t set a = 'x'; alter table app.t rename to moved")
    remove_table(synced, "d", "t")
    ours = "select tgname from pg_trigger where tgrelid = 'app.moved'::regclass and tgname like '%%anabranch%%'"
    assert synced.execute(ours, ()).fetchall() == []
    assert synced.execute("select count(*) from anabranch.captured").fetchone() == (0,)
    synced.execute("update app.moved set a = 'y'")
    assert synced.execute("select count(*) from anabranch.captured").fetchone() == (0,)
    add_table(synced, "d", "moved")


@pytest.mark.parametrize("how", ["attach partition app.t default", "child"])
def test_postgres_refuses_to_have_rows_written_past_the_triggers(synced: Session, how: str) -> None:
    synced.execute("create table app.solo (id text primary key); create table app.kin (id text not null)")
    add_table(synced, "d", "solo")
    synced.execute("create table app.whole (id text not null) partition by list (id)")
    statement = (
        "alter table app.whole attach partition app.solo default"
        if how.startswith("attach")
        else "alter table app.solo inherit app.kin"
    )
    with pytest.raises(psycopg.Error) as caught:
        synced.execute(statement.encode())
    assert "anabranch_row_delete" in str(caught.value)


def test_writers_during_registration_are_in_the_sum_or_captured(conn: Session, migrated_url: str) -> None:
    conn.execute("create table app.s (id text primary key, n int); insert into app.s values ('a', 1)")
    create_database(conn, "d", "app")
    with connect(migrated_url, application_name="writer") as writer:
        writer.execute("set lock_timeout = '20s'")
        with conn.transaction():
            added = add_table(conn, "d", "s")
            # The table's lock is held: a writer waits, and is captured then.
            writer.execute("set local lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                writer.execute("insert into app.s values ('b', 2)")
            writer.rollback()
        assert added.rows == 1
        writer.execute("insert into app.s values ('b', 2)")
        writer.commit()
    rows: Any = captured(conn, "s")
    assert rows == [(1, None, ("b", 2))]
