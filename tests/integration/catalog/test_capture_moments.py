"""The captured changes are those that were made, also where the writer's transaction sees one moment, or its search
path lies."""

from __future__ import annotations

import threading
from collections import Counter

import psycopg
import pytest

from anabranch.store.capture import triggers
from anabranch.store.capture.rows import decode
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.session.engine import Session, connect
from anabranch.store.session.errors import PostgresError

LEVELS = [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE]


@pytest.fixture
def synced(conn: Session) -> Session:
    conn.execute("create table app.p (id text primary key); insert into app.p values ('1')")
    conn.execute(
        "create table app.t (id text primary key, n int, p text references app.p on delete cascade);"
        "insert into app.t values ('a', 1, '1'), ('b', 2, '1')"
    )
    create_database(conn, "d", "app")
    add_table(conn, "d", "p")
    add_table(conn, "d", "t")
    return conn


def captured_deletes(conn: Session) -> Counter[str]:
    """How often the delete of each row of t is captured."""
    registered = load_database(conn, "d").tables["t"]
    found = conn.execute(
        "select old from anabranch.captured where type = 3 and table_id = %s", (registered.id,)
    ).fetchall()
    with conn.transaction():
        return Counter(str(row[0]) for row in decode(conn, "app", registered, [old for (old,) in found]))


def truncate(url: str, level: psycopg.IsolationLevel) -> None:
    """Truncate as the transaction's first statement, again where it could not be serialized: as applications do at such
    a level. Anybody's commit on the server can come between."""
    with connect(url, application_name="truncates") as session:
        session.isolation_level = level
        for _ in range(200):
            try:
                session.execute("truncate app.t")
                session.commit()
                return
            except psycopg.errors.SerializationFailure:
                session.rollback()
    raise AssertionError("it can never be serialized")


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_truncate_never_removes_what_its_transaction_does_not_see(
    synced: Session, migrated_url: str, level: psycopg.IsolationLevel
) -> None:
    with connect(migrated_url, application_name="truncates") as session:
        session.isolation_level = level
        session.execute("select 1 from app.p")
        synced.execute("insert into app.t values ('late', 3, '1'); update app.t set n = 9 where id = 'b'")
        synced.execute("delete from app.t where id = 'a'")
        before = captured_deletes(synced)
        with pytest.raises(psycopg.errors.SerializationFailure) as caught:
            session.execute("truncate app.t")
        assert "app.t" in str(caught.value)
        assert "READ COMMITTED" in (caught.value.diag.message_hint or "")
        session.rollback()
    assert synced.execute("select count(*) from app.t").fetchone() == (2,)
    assert captured_deletes(synced) == before == Counter("a")
    truncate(migrated_url, level)
    assert captured_deletes(synced) == Counter(["a", "b", "late"])


def test_a_truncate_that_waited_for_a_writer_does_not_lose_his_row(synced: Session, migrated_url: str) -> None:
    """Its moment is before the lock's."""
    level = LEVELS[0]
    with connect(migrated_url, application_name="writer") as writer:
        writer.execute("insert into app.t values ('late', 3, '1')")
        thread = threading.Thread(target=truncate, args=(migrated_url, level))
        thread.start()
        waiting = "select 1 from pg_stat_activity where application_name = 'truncates' and wait_event_type = 'Lock'"
        for _ in range(1_000):
            if synced.execute(waiting).fetchone():
                break
            synced.execute("select pg_sleep(0.01)")
        else:
            raise AssertionError("nobody waits for the writer")
        writer.commit()
        thread.join(30)
    assert synced.execute("select count(*) from app.t").fetchone() == (0,)
    assert captured_deletes(synced) == Counter(["a", "b", "late"])


def test_what_was_rolled_back_meanwhile_does_not_count(synced: Session, migrated_url: str) -> None:
    """Numbers of transactions were used up, and nothing has changed."""
    with connect(migrated_url, application_name="truncates") as session:
        session.isolation_level = LEVELS[0]
        for _ in range(200):
            session.execute("select 1 from app.p")
            for _ in range(3):
                with pytest.raises(PostgresError):
                    synced.execute("insert into app.t values ('a', 1, '1')")
            try:
                session.execute("truncate app.t")
                session.commit()
                break
            except psycopg.errors.SerializationFailure:
                # Somebody else on this server.
                session.rollback()
        else:
            raise AssertionError("it can never be serialized")
    assert captured_deletes(synced) == Counter(["a", "b"])


HOSTILE = """
create schema evil;
create function evil.lie(anyelement, anyelement) returns bool language plpgsql as
    $$ begin raise exception 'a name was looked up in the writer''s path'; end $$;
create operator evil.= (function = evil.lie, leftarg = anyelement, rightarg = anyelement);
create operator evil.<> (function = evil.lie, leftarg = anyelement, rightarg = anyelement);
create function evil.lie(text, text) returns bool language plpgsql as
    $$ begin raise exception 'a name was looked up in the writer''s path'; end $$;
create operator evil.= (function = evil.lie, leftarg = text, rightarg = text);
create operator evil.<> (function = evil.lie, leftarg = text, rightarg = text);
create function evil.pg_trigger_depth() returns int language sql as $$ select 1 / 0 $$;
create function evil.current_setting(text) returns text language sql as $$ select (1 / 0)::text $$;
create function evil.pg_client_encoding() returns name language sql as $$ select (1 / 0)::text::name $$;
"""


def test_nothing_is_looked_up_in_the_writers_search_path(synced: Session, migrated_url: str) -> None:
    """The functions run as the owner of schema anabranch: what they would find there would, too."""
    synced.execute(HOSTILE)
    with connect(migrated_url, application_name="hostile", autocommit=True) as writer:
        writer.execute("set search_path = evil, pg_catalog, public")
        writer.execute("set client_encoding = latin1")
        for statement in (
            "insert into app.p values ('2')",
            "insert into app.t values ('c', 3, '2')",
            "update app.t set n = 4",
            "delete from app.p where id operator(pg_catalog.=) '2'",
        ):
            writer.execute(statement.encode())
        with writer.transaction():
            writer.execute(triggers.MARK_RESOLVER)
            writer.execute("delete from app.p where id operator(pg_catalog.=) '1'")
        writer.execute("insert into app.t values ('d', 3, null)")
        writer.execute("truncate app.t")
    assert captured_deletes(synced) == Counter(["a", "b", "c", "d"])
