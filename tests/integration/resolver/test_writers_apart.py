"""Code that a table's owner attaches to it reaches no table of another database, whatever it does with roles."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs
from tests.integration.resolver import commits
from tests.integration.resolver.calls import decided, resolver_process
from tests.integration.resolver.hostile import ACROSS
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.runtime import metrics
from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog import registration
from anabranch.store.catalog.databases import UnknownDatabaseError
from anabranch.store.inbox.claim import session_options
from anabranch.store.nodes import key_administration
from anabranch.store.writers import our_rights, retired, writer
from anabranch.store.writers.judged import judge
from anabranch.store.writers.own_writer import own_writer
from anabranch.store.writers.retired import drop_retired
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.strangers import login
from anabranch.testkit.waiting import until
from anabranch_conflict_resolver.loop import sessions as sessions_module
from anabranch_conflict_resolver.loop import writers as writers_module
from anabranch_conflict_resolver.loop.seal_keys import SealKeys
from anabranch_conflict_resolver.loop.sessions import Sessions
from anabranch_conflict_resolver.loop.writers import Writers

TODO = "create table todo (id text primary key, title text, done boolean)"
REFUSED = {"refused"}
OPTIONS = session_options(statement_timeout_ms=5_000, lock_timeout_ms=250, idle_timeout_ms=2_000)


@pytest.fixture
def pair(make_rig: Any) -> tuple[ResolverRig, ResolverRig]:
    """Databases ``app`` and ``other``."""
    other: ResolverRig = make_rig(f"create sequence numbers; {TODO}", database="other")
    return make_rig(), other


def role_of(rig: ResolverRig) -> str:
    """The name of the writer of a rig's database."""
    [(role,)] = rig.sql(
        "select 'anabranch_writer_' || oid || '_' || %s from pg_database where datname = current_database()",
        [rig.database.id],
    )
    return str(role)


def may(rig: ResolverRig, role: str, table: str) -> bool:
    """Whether a role may insert into a table."""
    [(found,)] = rig.sql("select has_table_privilege(%s, %s, 'INSERT')", [role, table])
    return bool(found)


def attacked(rig: ResolverRig, other: ResolverRig) -> list[tuple[str, str | None]]:
    """The loot of a trigger on a table of ``rig``, from the other database."""
    key_administration.create(rig.conn, subject="admin", role="admin", database=None, now_ms=1)
    other.node("b").insert("todo", {"id": "mine", "title": "secret"})
    other.drain()
    rig.sql(ACROSS)
    made = rig.node("a").insert("todo", {"id": "1"})
    rig.drain()
    assert rig.outcome(made) == ["APPLIED"]
    return [(what, got) for what, got in rig.sql("select what, got from app.loot")]


def test_code_of_one_databases_owner_reaches_no_table_of_another(pair: tuple[ResolverRig, ResolverRig]) -> None:
    """At once and deferred; its own schema's tables and sequences it may use, synced or not."""
    rig, other = pair
    loot = attacked(rig, other)
    assert len(loot) == 32
    assert {got for _, got in loot} == REFUSED
    assert rig.sql("select what from app.beside order by id") == [("1",), ("1",)]
    assert other.rows("todo", "id", "title") == [("mine", "secret")]


def test_it_would_reach_them_as_a_writer_of_both(pair: tuple[ResolverRig, ResolverRig], migrated_url: str) -> None:
    """So that the attack is one; the keys are out of reach of that one, too."""
    rig, other = pair
    with login(migrated_url, "both") as (role, url):
        writer.make(rig.conn, role)
        session = commits.session(url)
        rig.commit = commits.on(session, SealKeys(migrated_url))
        loot = attacked(rig, other)
        session.close()
    assert {got == "refused" for what, got in loot if " anabranch." in what} == {True}
    assert {got == "refused" for what, got in loot if " anabranch." not in what} == {False}


def test_both_databases_are_served(pair: tuple[ResolverRig, ResolverRig], migrated_url: str, tmp_path: Path) -> None:
    """By one resolver, each as its own role."""
    noted = "create table {0}.wrote (role text); create function {0}.note() returns trigger language plpgsql as"
    noted += " $$ begin insert into {0}.wrote values (session_user); return null; end $$;"
    noted += "create trigger note after insert on {0}.todo for each row execute function {0}.note()"
    with resolver_process(pair[0], migrated_url, tmp_path):
        made = []
        for rig in pair:
            rig.sql(noted.format(rig.name))
            node = rig.node(f"node of {rig.name}")
            made.append((rig, [node.insert("todo", {"id": f"{i}"}) for i in range(20)]))
        for rig, batches in made:
            rig.until_left()
            assert [rig.outcome(one) for one in batches] == [["APPLIED"]] * 20
            assert rig.sql(f"select distinct role from {rig.name}.wrote") == [(role_of(rig),)]
            rig.check()


def test_registrations_give_rights_to_the_databases_own_writer(pair: tuple[ResolverRig, ResolverRig]) -> None:
    rig, other = pair
    own, foreign = role_of(rig), role_of(other)
    rig.sql("create table app.late (id text primary key, n serial)")
    registration.add_table(rig.conn, "app", "late")
    rig.sql("create table app.beside ()")
    for table in ("app.late", "app.beside"):
        assert may(rig, own, table)
        assert not may(rig, foreign, table)
    assert rig.sql("select has_sequence_privilege(%s, 'app.late_n_seq', 'USAGE')", [own]) == [(True,)]
    assert rig.sql("select has_schema_privilege(%s, 'app', 'USAGE')", [foreign]) == [(False,)]


def test_only_the_writers_of_a_database_act_as_the_role_of_its_policies(
    pair: tuple[ResolverRig, ResolverRig], migrated_url: str
) -> None:
    rig, other = pair
    with login(migrated_url, "acted") as (acted, _):
        rig.sql(f'grant usage on schema app to "{acted}"; grant all on app.todo to "{acted}"')
        set_audience_rules(rig.conn, "app", {"rls": acted})
        is_member = "select pg_has_role(%s, %s, 'MEMBER')"
        assert rig.sql(is_member, [role_of(rig), acted]) == [(True,)]
        assert rig.sql(is_member, [role_of(other), acted]) == [(False,)]
        assert judge(rig.conn, role_of(rig)).excess == []
        set_audience_rules(rig.conn, "app", {})


def test_one_that_reaches_another_database_is_warned_of(pair: tuple[ResolverRig, ResolverRig]) -> None:
    rig, other = pair
    role = role_of(rig)
    assert judge(rig.conn, role).excess == []
    rig.sql(f'grant usage on schema other to "{role}"; grant select on other.todo to "{role}"')
    assert judge(rig.conn, role).excess == ["reaches the tables of 2 databases: app, other"]
    writers = Writers(rig.url)
    with capture_logs() as logs:
        for one in (other, rig):
            writers(one.database.id)
        writers.tell(rig.conn)
        writers.tell(rig.conn)
    assert [(line["log_level"], line["role"]) for line in logs] == [("warning", role)]
    assert metrics._levels["anabranch_writer_excess"] == {(): 1}


def test_one_for_all_is_warned_of(pair: tuple[ResolverRig, ResolverRig], migrated_url: str) -> None:
    """As ANABRANCH_WRITER_POSTGRES_URL names one."""
    with login(migrated_url, "all") as (role, _):
        told = ["reaches the tables of 2 databases: app, other"]
        assert writer.make(pair[0].conn, role) == told
        assert may(pair[0], role, "other.todo")
        ran = CliRunner().invoke(app, ["database", "writer", role, "--postgres-url", migrated_url])
        assert f'role "{role}" {told[0]}' in ran.stderr
        assert "may commit groups of all databases" in ran.stdout


def test_the_command_gives_a_databases_own_writer_the_rights_of_its_database(
    pair: tuple[ResolverRig, ResolverRig], migrated_url: str
) -> None:
    rig, _ = pair
    role = role_of(rig)
    rig.sql(f'create schema audit; create table audit.entries (what text); revoke all on app.todo from "{role}"')
    ran = CliRunner().invoke(app, ["database", "writer", role, "--grant", "audit", "--postgres-url", migrated_url])
    assert (ran.exit_code, ran.stderr) == (0, "")
    told = 'may commit groups of database "app", and write to the tables of its schema and of schema "audit"'
    assert told in " ".join(ran.stdout.split())
    assert may(rig, role, "app.todo")
    assert may(rig, role, "audit.entries")
    assert not may(rig, role, "other.todo")


def test_the_command_that_makes_a_database_makes_its_writer(migrated_url: str) -> None:
    with psycopg.connect(migrated_url, autocommit=True) as conn:
        conn.execute("create schema shop; create table shop.one (id text primary key)")
        ran = CliRunner().invoke(
            app, ["database", "create", "shop", "--schema", "shop", "--postgres-url", migrated_url]
        )
        assert (ran.exit_code, ran.stderr) == (0, "")
        [role] = writer.writers(conn)
        assert writer.only_database(conn, role) == "shop"
        assert writer.is_complete(conn, role)
        assert conn.execute("select has_table_privilege(%s, 'shop.one', 'DELETE')", (role,)).fetchone() == (True,)


def test_a_database_is_made_where_nobody_may_make_roles(migrated_url: str) -> None:
    """By a role that owns our schema and is no superuser: its services name a writer."""
    with login(migrated_url, "owner") as (role, url), psycopg.connect(migrated_url, autocommit=True) as conn:
        conn.execute(f'grant all on schema anabranch to "{role}"'.encode())
        for kind in ("table", "sequence", "function"):
            rows = conn.execute(
                "select p.oid::regprocedure::text from pg_proc p where p.pronamespace = 'anabranch'::regnamespace"
                if kind == "function"
                else "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname = 'anabranch'"
                if kind == "table"
                else "select format('%I.%I', schemaname, sequencename) from pg_sequences where schemaname = 'anabranch'"
            ).fetchall()
            for (name,) in rows:
                conn.execute(f'grant all on {kind} {name} to "{role}"'.encode())
        conn.execute(f'create schema shop authorization "{role}"'.encode())
        ran = CliRunner().invoke(app, ["database", "create", "shop", "--schema", "shop", "--postgres-url", url])
        assert (ran.exit_code, ran.stderr) == (0, "")
        assert not [name for name in writer.writers(conn) if writer.only_database(conn, name)]
        conn.execute(f'drop schema shop; reassign owned by "{role}" to current_user'.encode())


def test_no_writer_is_made_for_a_database_that_is_gone(make_rig: Any) -> None:
    rig: ResolverRig = make_rig()
    with pytest.raises(UnknownDatabaseError):
        own_writer(rig.url, 4711)
    assert rig.sql("select 1 from pg_roles where rolname like 'anabranch_writer%4711'") == []


@pytest.fixture
def older(pair: tuple[ResolverRig, ResolverRig]) -> Iterator[str]:
    """The name of the writer of all databases that older releases made."""
    rig = pair[0]
    role = role_of(rig).rpartition("_")[0]
    rig.sql(f'create role "{role}" login bypassrls')
    writer.make(rig.conn, role)
    yield role
    rig.sql(f'drop table if exists app.of_older; drop owned by "{role}"; drop role "{role}"' if has(rig, role) else "")


def has(rig: ResolverRig, role: str) -> bool:
    """Whether there is such a role."""
    return bool(rig.sql("select 1 from pg_roles where rolname = %s", [role]))


def test_the_writer_of_an_older_release_is_dropped(pair: tuple[ResolverRig, ResolverRig], older: str) -> None:
    """Not while an older resolver may still come in with it, and those of databases stay."""
    rig, other = pair
    with rig.session() as used:
        used.execute(f'set session authorization "{older}"'.encode())
        used.commit()
        rig.sql(f"alter role \"{older}\" password 'x'")
        url = psycopg.conninfo.make_conninfo(rig.url, user=older, password="x")
        with psycopg.connect(url):
            assert drop_retired(rig.url).dropped == []
    until(lambda: drop_retired(rig.url).dropped == [older])
    assert not has(rig, older)
    assert writer.writers(rig.conn) == sorted([role_of(rig), role_of(other)])
    assert drop_retired(rig.url) == ([], [])


def test_a_retired_writer_is_dropped_behind_who_gives_rights(
    pair: tuple[ResolverRig, ResolverRig], older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both change the rights to our tables; at one moment one of them would fail."""
    monkeypatch.setattr(retired, "LOCK_LIMIT", "set local lock_timeout = '60s'")
    rig, _ = pair
    role = role_of(rig)
    waits = "select count(*) from pg_locks where not granted and locktype <> 'transactionid'"
    with ThreadPoolExecutor(1) as pool, rig.session() as making:
        writer.alone(making, rig.database.id)
        our_rights.grant_ours(making, role)
        dropping = pool.submit(drop_retired, rig.url)
        until(lambda: rig.sql(waits) == [(1,)], beside=dropping)
        making.commit()
        assert dropping.result(60).dropped == [older]


def test_a_registration_keeps_a_retired_writer_for_the_next_time(
    pair: tuple[ResolverRig, ResolverRig], older: str
) -> None:
    rig, _ = pair
    with rig.session() as registering:
        registering.execute("lock table anabranch.synced_tables in row exclusive mode")
        assert drop_retired(rig.url) == ([], [])
    assert drop_retired(rig.url) == ([older], [])


def test_what_a_retired_writer_owns_is_not_dropped(pair: tuple[ResolverRig, ResolverRig], older: str) -> None:
    rig, _ = pair
    rig.sql(f'create table app.of_older (); alter table app.of_older owner to "{older}"')
    assert drop_retired(rig.url) == ([], [older])
    assert rig.sql("select 1 from app.of_older") == []


def test_a_database_that_is_gone_takes_its_writer_along(pair: tuple[ResolverRig, ResolverRig]) -> None:
    rig, other = pair
    role = role_of(other)
    other.commit = None
    rig.sql("delete from anabranch.databases where id = %s", [other.database.id])
    rig.sql("select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", [role])
    until(lambda: drop_retired(rig.url).dropped == [role])
    assert not has(rig, role)
    assert has(rig, role_of(rig))


def test_a_writer_that_was_not_let_in_is_tried_again(rig: ResolverRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that groups are committed as a superuser for no longer than it takes."""
    writers, number, role = Writers(rig.url), rig.database.id, role_of(rig)
    rig.sql(f'alter role "{role}" nologin')
    assert writers(number) == rig.url
    rig.sql(f'alter role "{role}" login')
    assert writers(number) == rig.url
    monkeypatch.setattr(writers_module, "_AGAIN_S", 0.0)
    writers.forget(number)
    rig.sql(f'alter role "{role}" nologin')
    assert writers(number) == rig.url
    rig.sql(f'alter role "{role}" login')
    assert writers(number) == own_writer(rig.url, number)


def test_there_are_no_more_sessions_than_the_most(make_rig: Any, migrated_url: str) -> None:
    """However many databases have work; the one that was used longest ago gives way."""
    rigs: list[ResolverRig] = [make_rig(database=f"d{i}") for i in range(6)]
    sessions = Sessions(Writers(migrated_url), OPTIONS, kept=2, most=3)
    count = "select count(*) from pg_stat_activity where application_name = 'anabranch-conflict-resolver'"
    count += " and datname = current_database()"
    [(before,)] = rigs[0].sql(count)
    seen = {}
    for rig in rigs:
        number = rig.database.id
        session = sessions.take(number)
        seen[number] = session.info.backend_pid
        assert session.info.user == role_of(rig)
        sessions.give_back(number, session)
        until(lambda: rigs[0].sql(count)[0][0] - before <= 3)
    last = [rig.database.id for rig in rigs[-3:]]
    held = [sessions.take(number) for number in last]
    assert [one.info.backend_pid for one in held] == [seen[number] for number in last]
    for number, session in zip(last, held, strict=True):
        sessions.give_back(number, session)
    sessions.close()
    until(lambda: rigs[0].sql(count)[0][0] == before)


def test_idle_sessions_are_closed_but_for_as_many_as_workers(
    make_rig: Any, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rigs: list[ResolverRig] = [make_rig(database=f"d{i}") for i in range(3)]
    sessions = Sessions(Writers(migrated_url), OPTIONS, kept=1, most=9)
    made = []
    for rig in rigs:
        made.append(sessions.take(rig.database.id))
        sessions.give_back(rig.database.id, made[-1])
    assert not any(one.closed for one in made)
    monkeypatch.setattr(sessions_module, "IDLE_S", 0.0)
    sessions.sweep()
    assert [one.closed for one in made] == [True, True, False]
    sessions.close()
    assert made[-1].closed


def test_a_session_that_the_server_has_ended_is_not_given_out(
    rig: ResolverRig, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = Sessions(Writers(migrated_url), OPTIONS)
    number = rig.database.id
    lost = sessions.take(number)
    pid = lost.info.backend_pid
    sessions.give_back(number, lost)
    rig.sql("select pg_terminate_backend(%s, 5000)", [pid])
    monkeypatch.setattr(sessions_module, "_DOUBT_S", 0.0)
    found = sessions.take(number)
    assert found.info.backend_pid != pid
    sessions.give_back(number, found)
    sessions.close()


def test_one_writer_for_all_has_a_session_for_all(pair: tuple[ResolverRig, ResolverRig], migrated_url: str) -> None:
    sessions = Sessions(Writers(migrated_url, migrated_url), OPTIONS)
    taken = []
    for rig in pair:
        session = sessions.take(rig.database.id)
        taken.append(session.info.backend_pid)
        sessions.give_back(rig.database.id, session)
    sessions.close()
    assert len(set(taken)) == 1


def test_a_database_whose_writer_is_not_let_in_holds_up_no_other(
    pair: tuple[ResolverRig, ResolverRig], worker_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its batches wait until there is a session again."""
    rig, other = pair

    def refusing(url: str, database_id: int) -> str | None:
        if database_id == other.database.id:
            raise psycopg.OperationalError("refused")
        return own_writer(url, database_id)

    monkeypatch.setattr(writers_module, "own_writer", refusing)
    waits = other.node("b").insert("todo", {"id": "1"})
    made = rig.node("a").insert("todo", {"id": "1"})
    worker = worker_of(other)
    worker._wakeups.wake(rig.database.id)
    rig.until_left()
    assert rig.outcome(made) == ["APPLIED"]
    until(lambda: worker._known.why_unreached() is not None)
    assert other.outcome(waits) == "PENDING"
    monkeypatch.undo()
    other.until_left()
    assert other.outcome(waits) == ["APPLIED"]
    assert worker._known.why_unreached() is None


@pytest.mark.slow
def test_a_process_explains_as_the_databases_own_writer(rig: ResolverRig, migrated_url: str, tmp_path: Path) -> None:
    rig.sql(
        "create function app.who() returns trigger language plpgsql as"
        " $$ begin new.title := session_user; return new; end $$;"
        "create trigger who before insert on app.todo for each row execute function app.who()"
    )
    with resolver_process(rig, migrated_url, tmp_path) as service:
        a = rig.node("a")
        told = service.explain(a, a.make(("insert", "todo", [{"id": "2"}])))
        assert role_of(rig) in str(told.effects)
        assert not decided(service, a.principal, a.insert("todo", {"id": "1"})).reason
    assert rig.rows("todo", "title") == [(role_of(rig),)]
