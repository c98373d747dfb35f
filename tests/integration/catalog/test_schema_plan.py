"""``anabranch schema plan``: what a migration will mean, and that nothing of it happens."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from anabranch.cli.app import app
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.ddl.install import install
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.log_writer import LogWriter
from anabranch.v1 import batch_pb2, value_pb2

# Each plan makes a database, and migrates it.
pytestmark = pytest.mark.slow
TABLES = """
create type app.state as enum ('open', 'done');
create domain app.short as varchar(40) check (value <> '');
create table app.site (id text primary key, city app.short);
create table app.job (id text primary key, title text, minutes integer, st app.state, site text references app.site);
create table app.note (id text primary key, body text);
create table public.users (id int primary key);
create function app.touch() returns trigger language plpgsql as $$ begin new.title := new.title; return new; end $$;
create trigger touch before update on app.job for each row execute function app.touch();
alter table app.job drop column site;
alter table app.job add column site text references app.site;
create view app.open_jobs as select id from app.job where st = 'open';
"""
INBOX = """
insert into anabranch.inbox (database_id, batch_id, payload, payload_sha256, basis, node_id, principal, arrived_ms)
values (%s, %s, %s, '', 0, 'N', 'p', 1)
"""


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL", raising=False)


@pytest.fixture
def shop(conn: Session, migrated_url: str) -> Session:
    conn.execute(TABLES.encode())
    create_database(conn, "shop", "app")
    for table in ("site", "job", "note"):
        add_table(conn, "shop", table)
    assert install(conn)
    writer = LogWriter(migrated_url, "shop")
    writer.insert("job", [(str(n), "t", n, "open", None) for n in range(3)])
    writer.close()
    return conn


class Plans:
    """Runs plans of scripts against the database."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.file = url, folder / "migration.sql"

    def run(self, script: str, *options: str) -> Result:
        self.file.write_text(script)
        return CliRunner().invoke(
            app, ["schema", "plan", str(self.file), "--postgres-url", self.url, "--scratch-url", self.url, *options]
        )

    def json(self, script: str, *options: str) -> dict[str, Any]:
        told = self.run(script, "--json", *options)
        assert told.exit_code == 0, told.output
        found: dict[str, Any] = json.loads(told.stdout)
        return found

    def costs(self, script: str) -> dict[str, list[str]]:
        return {
            one["before"] or one["after"]: [cost["kind"] for cost in one["costs"]]
            for one in self.json(script)["tables"]
        }


@pytest.fixture
def plans(shop: Session, migrated_url: str, tmp_path: Path) -> Plans:
    return Plans(migrated_url, tmp_path)


def test_what_each_change_costs(plans: Plans) -> None:
    script = """
        begin;
        alter table app.job rename column title to subject;
        alter table app.job add column priority integer not null default 3, add column note text;
        alter table app.site rename to location;
        commit;
        create index concurrently on app.job (subject);
        alter type app.state add value 'late';
    """
    assert plans.costs(script) == {"job": ["free"], "site": ["free"]}
    script = """
        alter table app.job alter minutes type bigint, alter title type varchar;
        alter table app.job alter title type text;
        alter table app.job alter title set not null, add check (minutes > 0), add unique (title);
        alter table app.note alter body set default 'x';
    """
    assert plans.costs(script) == {"job": ["free"], "note": ["free"]}
    assert plans.costs("alter type app.state rename value 'done' to 'finished'") == {"job": ["sends"]}
    assert plans.costs("alter table app.job alter minutes type numeric(6,2) using minutes / 60.0") == {"job": ["sends"]}
    assert plans.costs("alter table app.job alter minutes type bigint using minutes * 60") == {"job": ["sends"]}
    assert plans.costs("alter table app.job add column ref uuid default gen_random_uuid()") == {"job": ["sends"]}
    assert plans.costs("alter table app.job drop column title") == {"job": ["recounts"]}
    assert plans.costs("alter table app.job drop constraint job_pkey, add primary key (title)") == {"job": ["pull"]}
    assert plans.costs("alter table app.note drop constraint note_pkey") == {"note": ["stops"]}
    assert plans.costs("drop table app.note") == {"note": ["gone"]}
    assert plans.costs("create table app.other (id text primary key); analyze app.job") == {}


def test_it_is_said_in_words_and_nothing_of_it_happens(shop: Session, plans: Plans) -> None:
    before = shop.execute("select pg_current_xact_id_if_assigned(), count(*) from pg_class").fetchone()
    told = plans.run(
        "\\set ON_ERROR_STOP on\nalter table app.job add column late int not null;\n"
        "alter table app.job alter minutes type text;\nupdate app.job set title = 'x';"
    )
    assert told.exit_code == 0, told.output
    assert max(map(len, told.stdout.splitlines())) <= 80
    words = " ".join(told.stdout.split())
    assert words.startswith('database shop schema version 2 comes table "job" 3 rows SENDS: values of "minutes" go to')
    assert 'column "minutes" was integer and is text' in words
    assert 'Postgres refuses column "late" where there are rows: it takes no NULL and has no default' in words
    assert "of 0 batches that wait, 0 would be refused, and 0 would lose values" in words
    assert "1 statements may write rows" in words
    assert "left out: line 1: \\set ON_ERROR_STOP on" in words
    assert shop.execute("select pg_current_xact_id_if_assigned(), count(*) from pg_class").fetchone() == before
    assert shop.execute("select count(*) from anabranch.captured where type = 4").fetchone() == (0,)
    assert shop.execute("select count(*) from pg_database where datname like 'anabranch_plan_%'").fetchone() == (0,)


def test_a_migration_that_fails_says_where(plans: Plans) -> None:
    told = plans.run("alter table app.job add a int;\n\nalter table job add b int;")
    assert told.exit_code == 2
    assert 'line 3: relation "job" does not exist; names are looked up in' in told.stderr
    assert told.stderr.endswith("(MIGRATION_FAILS)\n")
    assert plans.run("alter table job add b int", "--search-path", "app").exit_code == 0
    told = plans.run("\\i other.sql")
    assert (told.exit_code, "line 1: '\\\\i other.sql' is a command of psql" in told.stderr) == (2, True)


def test_what_waits_is_held_against_it(shop: Session, plans: Plans) -> None:
    database = load_database(shop, "shop")

    def text(value: str | None) -> value_pb2.Value:
        return value_pb2.Value(null_value=0) if value is None else value_pb2.Value(string_value=value)  # type: ignore[arg-type]

    for number, (title, minutes) in enumerate([("one", 5), (None, 5), ("two", 2**31 - 1)]):
        row = value_pb2.Row(values=[text(str(number)), text(title), value_pb2.Value(int64_value=minutes)])
        mutation = batch_pb2.DbMutation(table="job", columns=["id", "title", "minutes"], rows=[row])
        payload = batch_pb2.DbMutationBatch(id=f"{number:026}", mutations=[mutation]).SerializeToString()
        shop.execute(INBOX, (database.id, f"{number:026}", payload))
    shop.execute(INBOX, (database.id, "X" * 26, b"\xff"))

    def troubles(script: str) -> list[tuple[int, bool]]:
        found = plans.json(script)
        assert found["batches"] == 4
        return sorted((int(one["batch_id"]), one["refused"]) for one in found["troubles"])

    assert troubles("alter table app.job rename column title to subject") == []
    assert troubles("alter table app.job alter title set not null") == [(1, True)]
    assert troubles("alter table app.job drop column title") == [(0, False), (1, False), (2, False)]
    assert troubles("alter table app.job alter minutes type numeric(6,2)") == [(2, True)]
    assert troubles("drop table app.job cascade") == [(0, True), (1, True), (2, True)]
    told = plans.run("alter table app.job alter minutes type numeric(6,2)", "--strict")
    assert told.exit_code == 1
    words = " ".join(told.stdout.split())
    assert "of 4 batches that wait, 1 would be refused, and 0 would lose values" in words
    assert 'its value 2147483647 of column "minutes" can\'t be cast to numeric(6,2)' in words


def test_apps_of_earlier_versions_are_told_of_where_they_need_another_one(shop: Session, plans: Plans) -> None:
    shop.execute(
        "insert into anabranch.nodes (database_id, node_id, name, principal, epoch, token, last_seen_ms, app_version)"
        " select id, 'N', '', 'p', '', '', 1, 1 from anabranch.databases"
    )
    assert plans.json("alter table app.job add column a int")["apps"] == {}
    assert plans.json("alter table app.job alter minutes type text")["apps"] == {"1": 1}


def test_new_tables_come_where_the_policy_says_so(shop: Session, plans: Plans) -> None:
    shop.execute("""update anabranch.databases set policy = policy || '{"new_tables": "v*"}'""")
    script = "create table app.visit (id text primary key); create table app.other (id text primary key)"
    assert plans.costs(script) == {"visit": ["new"]}
    assert plans.costs("create table app.void (id text)") == {"void": ["stops"]}


def test_nobody_waits_for_it(shop: Session, plans: Plans, migrated_url: str) -> None:
    """A migration that takes long holds nothing of the real tables meanwhile."""
    import threading

    worker = threading.Thread(target=plans.run, args=("select pg_sleep(3); alter table app.job add column a int",))
    worker.start()
    with connect(migrated_url, application_name="test", autocommit=True) as other:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            sleeping = other.execute(
                "select count(*) from pg_stat_activity where query like '%pg_sleep(3)%'"
            ).fetchone()
            if sleeping == (2,):
                break
            time.sleep(0.05)
        began = time.monotonic()
        other.execute("alter table app.job alter column title set default 'x'")
        assert time.monotonic() - began < 1.0
    worker.join()


def test_a_server_is_started_for_it_where_none_is_given(shop: Session, plans: Plans) -> None:
    plans.file.write_text("alter table app.job alter minutes type text; grant select on app.job to migrator")
    shop.execute("do $$ begin create role migrator; exception when duplicate_object then null; end $$")
    told = CliRunner().invoke(app, ["schema", "plan", str(plans.file), "--postgres-url", plans.url, "--json"])
    assert told.exit_code == 0, told.output
    [table] = json.loads(told.stdout)["tables"]
    assert [cost["kind"] for cost in table["costs"]] == ["sends"]
