"""Where the services' role is a superuser, each database's groups are committed as a writer that is made for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.integration.resolver import commits
from tests.integration.resolver.calls import decided, resolver_process
from tests.integration.resolver.hostile import HOSTILE

from anabranch.store.catalog import registration
from anabranch.store.nodes import key_administration
from anabranch.store.session.engine import UnfitSettingError, connect
from anabranch.store.writers import schema_rights, writer
from anabranch.store.writers.judged import judge, lacking
from anabranch.store.writers.own_writer import _refused, own_writer
from anabranch.testkit.databases import drop_database
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.strangers import login
from anabranch.testkit.waiting import until
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver.config import ResolverSettings
from anabranch_conflict_resolver.loop.seal_keys import SealKeys
from anabranch_conflict_resolver.loop.writers import Writers

TABLES = "create table todo (id text primary key, title text)"
OUTSIDE = """
create schema audit; create table audit.entries (what text); grant usage on schema audit to public;
create function app.note() returns trigger language plpgsql as
    $$ begin insert into audit.entries values (new.id); return null; end $$;
create trigger note after insert on app.todo for each row execute function app.note()
"""


@pytest.fixture
def rig(migrated_url: str) -> Iterator[ResolverRig]:
    made = ResolverRig(migrated_url, TABLES, {"todo": None})
    yield made
    made.close()


def own(rig: ResolverRig, superuser: str = "") -> str | None:
    """The URL of the writer of the rig's database."""
    return own_writer(superuser or rig.url, rig.database.id)


@pytest.fixture
def superuser(rig: ResolverRig) -> Iterator[str]:
    """The URL of another superuser than that of all tests, whose password may change."""
    with login(rig.url, "boss") as (role, url):
        rig.sql(f'alter role "{role}" superuser')
        yield url


def _attacked(rig: ResolverRig, folder: Path) -> set[str | None]:
    """The keys that the owner of a table, who is no superuser, gets at."""
    key_administration.create(rig.conn, subject="admin", role="admin", database=None, now_ms=1)
    rig.sql("create schema other")
    registration.create_database(rig.conn, "other", "other")
    rig.sql(HOSTILE)
    with login(rig.url, "mallory") as (mallory, _):
        for what in ("function app.steal()", "table app.todo", "table app.loot"):
            rig.sql(f'alter {what} owner to "{mallory}"')
        with resolver_process(rig, rig.url, folder) as service:
            a = rig.node("a")
            made = a.insert("todo", {"id": "1"})
            assert not decided(service, a.principal, made).reason
        return {got for _, got in rig.sql("select what, got from app.loot")}


@pytest.mark.slow
def test_code_of_a_tables_owner_reaches_no_keys_without_a_setting(rig: ResolverRig, tmp_path: Path) -> None:
    assert _attacked(rig, tmp_path) == {"refused"}


@pytest.mark.slow
def test_it_reaches_them_where_owners_are_trusted(
    rig: ResolverRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the attack is one."""
    monkeypatch.setenv("ANABRANCH_TRUST_OWNERS", "true")
    assert "refused" not in _attacked(rig, tmp_path)


@pytest.mark.slow
def test_a_refusal_says_the_grant_and_the_grant_helps(rig: ResolverRig, tmp_path: Path) -> None:
    rig.sql(OUTSIDE)
    with resolver_process(rig, rig.url, tmp_path) as service:
        a = rig.node("a")
        refused = decided(service, a.principal, a.insert("todo", {"id": "1"}))
        assert refused.reason == errors_pb2.REASON_FORBIDDEN
        [role] = writer.writers(rig.conn)
        grant = f'grant select, insert, update, delete, truncate on table "audit"."entries" to "{role}"'
        assert refused.message == (
            'the database does not allow this change of table "todo" (SQLSTATE 42501): role '
            f'"{role}", as which groups are committed, lacks rights to table "entries"; `{grant}` gives them, '
            f"`anabranch database writer {role} --grant audit` those to the whole schema"
        )
        rig.sql(grant)
        assert not decided(service, a.principal, a.insert("todo", {"id": "2"})).reason
    assert rig.sql("select what from audit.entries") == [("2",)]


def test_rights_to_a_schema_are_given_to_all_writers_by_the_command(rig: ResolverRig) -> None:
    assert own(rig) is not None
    [role] = writer.writers(rig.conn)
    rig.sql("create schema audit; create table audit.entries (what text)")
    writer.make(rig.conn, role, ["audit"])
    assert rig.sql("select has_table_privilege(%s, 'audit.entries', 'INSERT')", [role]) == [(True,)]
    for none in ("anabranch", "pg_catalog", "information_schema", "nowhere"):
        with pytest.raises(psycopg.errors.InvalidSchemaName):
            writer.make(rig.conn, role, [none])


def test_an_installation_from_before_has_it_with_its_next_start(rig: ResolverRig) -> None:
    """Tables are synced and have rows, a schema is gone: the writer may write to all that is there."""
    rig.sql("create table app.beside (id serial); create view app.seen as select * from app.todo; create schema gone")
    registration.create_database(rig.conn, "gone", "gone")
    rig.sql("drop schema gone")
    url = own(rig)
    assert url is not None
    with psycopg.connect(url) as conn:
        assert judge(conn).excess == []
        assert lacking(conn) == []
        for statement in ("insert into app.todo values ('1')", "insert into app.beside default values"):
            conn.execute(statement.encode())
        assert conn.execute("select count(*) from app.seen").fetchone() == (1,)
    assert own(rig) == url


def test_synced_tables_from_before_take_numbers_from_sequences_elsewhere(migrated_url: str) -> None:
    """A default names a sequence by its number: no right to the schema shows that one to the sequence is missing."""
    tables = (
        "create schema other; create sequence other.numbers; create sequence other.secret;"
        "create table todo (id text primary key, n bigint default nextval('other.numbers'));"
        "create table beside (n bigint default nextval('other.secret'));"
        "create table odd (id text primary key, n bigint default nextval('anabranch.api_keys_no'))"
    )
    with psycopg.connect(migrated_url, autocommit=True) as conn:
        conn.execute("create sequence anabranch.api_keys_no")
    rig = ResolverRig(migrated_url, tables, {"todo": None, "odd": None})
    url = own(rig)
    assert url is not None
    session = commits.session(url)
    rig.commit = commits.on(session, SealKeys(rig.url))
    made = rig.node("a").insert("todo", {"id": "1"})
    rig.group()
    assert rig.outcome(made) == ["APPLIED"]
    assert rig.rows("todo") == [("1", 1)]
    [role] = writer.writers(rig.conn)
    may = "select has_sequence_privilege(%s, %s, 'USAGE')"
    # Of no synced table, and of ours.
    for none in ("other.secret", "anabranch.api_keys_no"):
        assert rig.sql(may, [role, none]) == [(False,)]
    session.close()
    rig.close()


def test_rights_to_many_tables_are_given_in_one_statement(rig: ResolverRig, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    run = schema_rights._run

    def noted(conn: psycopg.Connection[Any], statement: str) -> None:
        ran.append(statement)
        run(conn, statement)

    monkeypatch.setattr(schema_rights, "_run", noted)
    rig.sql("create schema audit")
    for number in range(20):
        rig.sql(f"create table audit.t{number} (id serial)")
    own(rig)
    [role] = writer.writers(rig.conn)
    ran.clear()
    writer.make(rig.conn, role, ["audit"])
    grants = [statement.partition(" on ")[2].partition(" ")[0] for statement in ran if statement.startswith("grant")]
    assert grants == ["table", "schema", "sequence"]
    for number in range(20):
        insert = f"select has_table_privilege(%s, 'audit.t{number}', 'INSERT')"
        assert rig.sql(insert, [role]) == [(True,)]


@pytest.mark.parametrize(
    "right",
    [
        "usage on schema anabranch",
        "delete on anabranch.inbox",
        "select on anabranch.epochs",
        "select (epoch) on anabranch.databases",
        "update (schema_version) on anabranch.databases",
        "update (torn_ms) on anabranch.synced_tables",
    ],
)
def test_a_writer_that_lacks_a_right_to_our_tables_gets_it_with_the_next_start(rig: ResolverRig, right: str) -> None:
    """As one that was made by an older release, to whose list it was added."""
    own(rig)
    [role] = writer.writers(rig.conn)
    assert writer.is_complete(rig.conn, role)
    rig.sql(f'revoke {right} from "{role}"')
    assert not writer.is_complete(rig.conn, role)
    own(rig)
    assert writer.is_complete(rig.conn, role)


def test_who_has_a_writers_rights_by_being_a_superuser_is_none(rig: ResolverRig) -> None:
    """A migration gives rights to new tables by the list of writers."""
    assert not writer.is_complete(rig.conn, urlsplit(rig.url).username or "")
    assert not writer.is_complete(rig.conn, "nobody at all")


def test_where_the_role_is_refused_groups_are_committed_as_the_superuser(rig: ResolverRig) -> None:
    """Whatever the server says of it, and in whatever language."""
    own(rig)
    [role] = writer.writers(rig.conn)
    rig.sql(f'alter role "{role}" nologin')
    assert own(rig) is None
    assert Writers(rig.url)(rig.database.id) == rig.url


def test_where_there_is_no_room_for_the_role_the_start_fails(rig: ResolverRig) -> None:
    """A superuser comes in all the same: groups would be committed as it, because others hold all sessions."""
    url = own(rig)
    name = urlsplit(rig.url).path[1:]
    rig.sql(f'alter database "{name}" connection limit 1')
    with pytest.raises(psycopg.OperationalError):
        own(rig)
    rig.sql(f'alter database "{name}" connection limit -1')
    assert own(rig) == url


def test_a_role_that_is_let_in_with_a_session_of_no_use_is_not_refused(rig: ResolverRig) -> None:
    """So the start fails, and no groups are committed as the superuser."""
    with login(rig.url, "odd") as (role, url):
        rig.sql(f'alter role "{role}" set zero_damaged_pages = on')
        with pytest.raises(UnfitSettingError):
            _refused(url)


def test_it_is_let_into_a_database_that_others_are_not(rig: ResolverRig) -> None:
    name = urlsplit(rig.url).path[1:]
    rig.sql(f'revoke all on database "{name}" from public')
    url = own(rig)
    assert url is not None
    with psycopg.connect(url) as conn:
        conn.execute("create type pg_temp.one as (a text)")


def test_settings_of_the_database_that_only_a_superuser_changes_do_not_reach_it(rig: ResolverRig) -> None:
    name = urlsplit(rig.url).path[1:]
    url = own(rig)
    rig.sql(f'alter database "{name}" set session_replication_role = replica')
    rig.sql(f'alter database "{name}" set zero_damaged_pages = on')
    assert own(rig) == url
    assert url is not None
    with connect(url, application_name="test") as conn:
        assert conn.execute("show session_replication_role").fetchone() == ("origin",)


def test_of_several_that_start_at_one_moment_all_have_it(rig: ResolverRig) -> None:
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda _: own(rig), range(6)))
    assert None not in made
    assert len(set(made)) == 1


def test_an_application_that_alters_a_table_meanwhile_fails_at_nothing(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of CREATE TRIGGER and GRANT at one moment one fails in Postgres."""
    monkeypatch.setattr(schema_rights, "LOCK_LIMIT", "set local lock_timeout = '60s'")
    rig.sql("create table app.plain (id text primary key)")
    waits = "select count(*) from pg_locks where not granted and relation = 'app.plain'::regclass"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(rig.url) as app:
        app.execute(
            "create trigger same before update on app.plain for each row"
            " execute function suppress_redundant_updates_trigger()"
        )
        made = pool.submit(own, rig)
        until(lambda: rig.sql(waits) == [(1,)], beside=made)
        app.commit()
        url = made.result(60)
    assert url is not None
    with connect(url, application_name="test") as conn:
        conn.execute("insert into app.plain values ('1')")


def test_a_new_password_of_the_superuser_is_one_of_the_writer(rig: ResolverRig, superuser: str) -> None:
    before = own(rig, superuser)
    rig.sql(f"alter role \"{urlsplit(superuser).username}\" password 'another'")
    after = own(rig, superuser.replace(":stranger@", ":another@"))
    assert after is not None
    assert after != before
    psycopg.connect(after).close()
    assert before is not None
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(before)


def test_the_password_is_not_that_of_the_superuser_and_in_no_statement(rig: ResolverRig, superuser: str) -> None:
    url = own(rig, superuser)
    assert url is not None
    password = conninfo_to_dict(url)["password"]
    assert isinstance(password, str)
    assert len(password) == 64
    [role] = writer.writers(rig.conn)
    [(kept,)] = rig.sql("select rolpassword from pg_authid where rolname = %s", [role])
    assert kept.startswith("SCRAM-SHA-256$")


def test_another_role_is_left_as_it_is(rig: ResolverRig) -> None:
    with login(rig.url) as (_, url):
        assert own(rig, url) is None
        assert ResolverSettings.model_validate({"postgres_url": url}).shared_writer() == url
    assert writer.writers(rig.conn) == []


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({"trust_owners": True}, lambda url: url),
        ({"writer_postgres_url": "postgresql://w@h/d"}, lambda _: "postgresql://w@h/d"),
    ],
)
def test_a_setting_goes_before(migrated_url: str, more: dict[str, Any], wanted: Callable[[str], str]) -> None:
    settings = ResolverSettings.model_validate({"postgres_url": migrated_url, **more})
    assert settings.shared_writer() == wanted(migrated_url)


def test_each_database_of_a_superuser_has_its_own(migrated_url: str) -> None:
    assert ResolverSettings.model_validate({"postgres_url": migrated_url}).shared_writer() is None


def test_a_writer_goes_with_its_database_in_tests(rig: ResolverRig) -> None:
    own(rig)
    [role] = writer.writers(rig.conn)
    server = urlsplit(rig.url)._replace(path="/postgres").geturl()
    drop_database(server, urlsplit(rig.url).path[1:])
    with psycopg.connect(server) as conn:
        assert conn.execute("select from pg_roles where rolname = %s", (role,)).fetchone() is None


def test_a_lock_on_our_tables_keeps_no_process_from_starting(rig: ResolverRig) -> None:
    """As while a table of many rows is registered."""
    url = own(rig)
    with rig.session() as somebody:
        somebody.execute("lock table anabranch.synced_tables, anabranch.row_versions in access exclusive mode")
        assert own(rig) == url
