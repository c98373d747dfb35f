"""Groups are committed as a role that reaches no keys, whatever the owner of a synced table has run in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs
from tests.integration.resolver import commits
from tests.integration.resolver.calls import resolver_process
from tests.integration.resolver.hostile import HOSTILE
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.runtime import metrics
from anabranch.store.catalog import registration
from anabranch.store.inbox.claim import end_session, silent_claims
from anabranch.store.nodes import key_administration
from anabranch.store.session.engine import connect
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.store.writers import writer
from anabranch.store.writers.judged import lacking
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.strangers import login
from anabranch.testkit.waiting import until
from anabranch_conflict_resolver.loop.seal_keys import SealKeys
from anabranch_conflict_resolver.loop.writers import Writers

TABLES = """
create sequence numbers;
create table todo (id text primary key, title text, n bigint default nextval('numbers'), m serial);
create table part (id text primary key, todo text references todo on delete cascade)
"""


@dataclass
class Ground:
    rig: ResolverRig
    role: str
    url: str


@pytest.fixture
def ground(migrated_url: str) -> Iterator[Ground]:
    """A rig whose groups are committed as a writer."""
    with login(migrated_url, "writer") as (role, url):
        with psycopg.connect(migrated_url, autocommit=True) as owner:
            writer.make(owner, role)
        session = commits.session(url)
        names: Any = {"todo": None, "part": None}
        rig = ResolverRig(migrated_url, TABLES, names, commit=commits.on(session, SealKeys(migrated_url)))
        yield Ground(rig, role, url)
        session.close()
        rig.close()


def test_a_writer_commits_groups(ground: Ground) -> None:
    """With defaults that take numbers from sequences, cascades, and changes by SQL."""
    rig = ground.rig
    a = rig.node("a")
    sent = [a.insert("todo", {"id": "1", "title": "x"}), a.insert("part", {"id": "p", "todo": "1"})]
    rig.drain()
    rig.sql("update app.todo set title = 'by sql'")
    rig.drain()
    a.see()
    sent.append(a.update("todo", {"id": "1", "title": "y"}))
    rig.drain()
    a.see()
    sent.append(a.delete("todo", {"id": "1"}))
    rig.drain()
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * 4
    assert rig.rows("part") == []
    # The update by SQL, and the part that the delete took along.
    assert len(rig.sql("select 1 from anabranch.log")) == 6


def test_code_of_a_tables_owner_reaches_no_keys(ground: Ground, migrated_url: str) -> None:
    rig = ground.rig
    key_administration.create(rig.conn, subject="admin", role="admin", database=None, now_ms=1)
    rig.sql(HOSTILE)
    rig.node("a").insert("todo", {"id": "1"})
    assert rig.group() == 1
    loot = rig.sql("select distinct what, got from app.loot")
    assert len(loot) == 5
    assert {got for _, got in loot} == {"refused"}


def test_it_would_reach_them_as_the_role_of_the_services(ground: Ground, migrated_url: str) -> None:
    """So that the attack is one."""
    rig = ground.rig
    key_administration.create(rig.conn, subject="admin", role="admin", database=None, now_ms=1)
    rig.sql(HOSTILE)
    session = commits.session(migrated_url)
    rig.commit = commits.on(session)
    rig.node("a").insert("todo", {"id": "1"})
    assert rig.group() == 1
    session.close()
    assert "refused" not in {got for _, got in rig.sql("select what, got from app.loot")}


def test_a_writer_has_the_rights_to_the_tables_of_a_databases_schema(ground: Ground) -> None:
    rig = ground.rig
    may = "select has_table_privilege(%s, %s, 'INSERT')"
    rig.sql("create schema other; create table other.one (); create table app.late (id text primary key, n serial)")
    assert rig.sql(may, [ground.role, "app.late"]) == [(True,)]
    assert rig.sql("select has_sequence_privilege(%s, 'app.late_n_seq', 'USAGE')", [ground.role]) == [(True,)]
    assert rig.sql(may, [ground.role, "other.one"]) == [(False,)]
    registration.create_database(rig.conn, "other", "other")
    assert rig.sql(may, [ground.role, "other.one"]) == [(True,)]
    rig.sql("create table other.two ()")
    assert rig.sql(may, [ground.role, "other.two"]) == [(True,)]


def test_tables_of_an_owner_who_has_one_come_with_the_rights(ground: Ground, migrated_url: str) -> None:
    rig = ground.rig
    may = "select has_table_privilege(%s, 'app.later', 'INSERT')"
    with login(migrated_url, "owner") as (owner, url):
        rig.sql(f'create table app.mine (id text primary key); alter table app.mine owner to "{owner}"')
        rig.sql(f'grant usage, create on schema app to "{owner}"')
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("create table app.later ()")
            assert rig.sql(may, [ground.role]) == [(False,)]
            conn.execute("drop table app.later")
            registration.add_table(rig.conn, "app", "mine")
            conn.execute("create table app.later ()")
            assert rig.sql(may, [ground.role]) == [(True,)]
        registration.remove_table(rig.conn, "app", "mine")


def test_a_writer_finds_and_ends_a_silent_claim(ground: Ground) -> None:
    with connect(ground.url, application_name="a") as holder, connect(ground.url, application_name="b") as looks:
        wait_for_claim(holder, ground.rig.database.id)
        looks.autocommit = True
        until(lambda: len(silent_claims(looks)) == 1)
        [claim] = silent_claims(looks)
        assert claim.pid == holder.info.backend_pid
        end_session(looks, claim)
        with pytest.raises(psycopg.OperationalError):
            holder.execute("select 1")


def test_too_many_rights_and_too_few_are_told(ground: Ground, migrated_url: str) -> None:
    def told(url: str) -> list[str]:
        with connect(url, application_name="test", autocommit=True) as conn, capture_logs() as logs:
            Writers(url, url).tell(conn)
        return [line["log_level"] for line in logs]

    assert told(ground.url) == []
    assert metrics._levels["anabranch_writer_excess"] == {(): 0}
    assert told(migrated_url) == ["warning"]
    assert metrics._levels["anabranch_writer_excess"] == {(): 1}
    ground.rig.sql(f'revoke update on app.todo from "{ground.role}"')
    assert told(ground.url) == ["error"]


def test_a_writer_that_may_not_look_into_a_schema_is_told_of(ground: Ground) -> None:
    """Not by an error, which would keep the listener from listening."""
    ground.rig.sql(f'revoke usage on schema app from "{ground.role}"')
    with connect(ground.url, application_name="test", autocommit=True) as conn, capture_logs() as logs:
        assert lacking(conn) == ["app.part", "app.todo"]
        Writers(ground.url, ground.url).tell(conn)
    assert [(line["log_level"], line["tables"]) for line in logs] == [("error", ["app.part", "app.todo"])]


def test_a_writer_with_more_rights_is_warned_of(ground: Ground, migrated_url: str) -> None:
    with psycopg.connect(migrated_url, autocommit=True) as owner:
        assert writer.make(owner, ground.role) == []
        owner.execute(f'grant select on anabranch.api_keys to "{ground.role}"'.encode())
        assert writer.make(owner, ground.role) == ["may read keys"]
        owner.execute(f'alter role "{ground.role}" createdb; grant pg_read_all_data to "{ground.role}"'.encode())
        told = ["may read keys", "may make databases", "has the rights of role pg_read_all_data"]
        assert writer.make(owner, ground.role) == told
        assert writer.writers(owner) == [ground.role]
        owner.execute(f'revoke all on anabranch.inbox from "{ground.role}"'.encode())
        writer.refresh(owner)
        assert owner.execute(
            "select has_table_privilege(%s, 'anabranch.inbox', 'DELETE')", (ground.role,)
        ).fetchone() == (True,)


def test_the_command_makes_one_and_says_what_is_too_much(ground: Ground, migrated_url: str) -> None:
    told = CliRunner().invoke(app, ["database", "writer", ground.role, "--postgres-url", migrated_url])
    assert (told.exit_code, told.stderr) == (0, "")
    told = CliRunner().invoke(app, ["database", "writer", "postgres", "--postgres-url", migrated_url])
    assert "is a superuser" in told.stderr
    told = CliRunner().invoke(app, ["database", "writer", "nobody at all", "--postgres-url", migrated_url])
    assert told.exit_code == 2


@pytest.mark.slow
def test_a_process_commits_and_explains_as_the_writer(
    ground: Ground, migrated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = ground.rig
    monkeypatch.setenv("ANABRANCH_WRITER_POSTGRES_URL", ground.url)
    rig.sql("create table app.wrote (role text); grant insert on app.wrote to public")
    rig.sql(
        "create function app.note() returns trigger language plpgsql as"
        " $$ begin insert into app.wrote values (session_user); return null; end $$"
    )
    rig.sql("create trigger note after insert on app.todo for each row execute function app.note()")
    with resolver_process(rig, migrated_url, tmp_path) as service:
        a = rig.node("a")
        assert not service.explain(a, a.make(("insert", "todo", [{"id": "2"}]))).verdict.reason
        made = a.insert("todo", {"id": "1"})
        until(lambda: rig.outcome(made) != "PENDING")
        assert rig.outcome(made) == ["APPLIED"]
    assert rig.sql("select distinct role from app.wrote") == [(ground.role,)]
