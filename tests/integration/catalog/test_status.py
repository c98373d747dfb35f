"""``anabranch status`` and ``table list`` when things are not well: a Postgres that is stopped, tables that are not
synced, names of any length, a narrow terminal, and no terminal at all."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner, Result

from anabranch.cli.app import app
from anabranch.cli.lines import show
from anabranch.cli.status import read, shown
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.ports import free_port
from anabranch.store import migrate
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.out_of_sync import capture_off
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.ddl.install import install
from anabranch.store.session.engine import Session, connect

LONG = "t" * 63
AWKWARD = ['a "quoted" name', "naïve 🦆 emoji", "[red]markup[/red]", "with\nnewline \x1b[31mred", LONG]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL", raising=False)


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


@contextmanager
def serving() -> Iterator[str]:
    """A service that says it is well; its address."""
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        servicer = health.HealthServicer()
        servicer.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


@contextmanager
def stopped(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Postgres and all its children stand still, and say nothing."""
    postgres.freeze()
    try:
        yield
    finally:
        postgres.thaw()


@pytest.mark.slow
def test_a_postgres_that_stands_still_is_told_in_time_and_hides_no_service(tmp_path: Path) -> None:
    with EmbeddedPostgres(tmp_path / "postgres") as postgres, serving() as well:
        migrate.upgrade(postgres.url)
        gone = f"127.0.0.1:{free_port()}"
        endpoints = {"addresses": {"ingest": well, "snapshot": gone}, "key": "", "postgres_url": postgres.url}
        (tmp_path / "endpoints.json").write_text(json.dumps(endpoints))
        with stopped(postgres):
            began = time.monotonic()
            facts = read(postgres.url, endpoints["addresses"])  # type: ignore[arg-type]
            assert time.monotonic() - began < 2.0
            told = command("status", "--data-dir", str(tmp_path))
            as_json = command("status", "--json", "--data-dir", str(tmp_path))
        assert facts.trouble.startswith("Postgres is not available")
        assert told.exit_code == as_json.exit_code == 1
        fits(told.stdout)
        title, ingest, snapshot, *trouble = told.stdout.splitlines()
        assert title == "services"
        assert ingest.split() == ["ingest", well, "SERVING"]
        assert snapshot.split() == ["snapshot", gone, "UNREACHABLE"]
        assert " ".join(line.strip() for line in trouble).startswith("Postgres is not available")
        assert told.stderr.startswith("anabranch: Postgres is not available")
        assert len(told.stderr.splitlines()) == 1
        assert json.loads(as_json.stdout)["services"]["ingest"]["state"] == "SERVING"
        assert command("status", "--data-dir", str(tmp_path)).exit_code == 0, "it is back"


@pytest.fixture
def awkward(conn: Session) -> Session:
    """A database whose tables have every kind of name, and of which four are not synced, or not as they were."""
    create_database(conn, "d" * 63, "app")
    for name in AWKWARD:
        quoted = '"' + name.replace('"', '""') + '"'
        conn.execute(f'create table app.{quoted} (id text primary key, "the ""title""" text, n int)'.encode())
        add_table(conn, "d" * 63, name)
    capture_off(conn, "d" * 63, LONG)
    conn.execute('alter table app."a ""quoted"" name" drop column n')
    conn.execute("update anabranch.synced_tables set torn_ms = 1 where name = '[red]markup[/red]'")
    conn.execute('alter table app."naïve 🦆 emoji" enable row level security')
    # As long as it is known that a table was altered, that is told, and not that it is another one.
    conn.execute("delete from anabranch.captured where type = 4")
    conn.execute(
        "insert into anabranch.nodes (database_id, node_id, name, principal, epoch, token, last_seen_ms, acknowledged) "
        "select id, repeat('0', 26), repeat('n', 64), repeat('p', 60), 'e', '', 5, 5 from anabranch.databases"
    )
    return conn


def fits(text: str) -> None:
    assert "\x1b" not in text, "no control characters where there is no terminal"
    assert max(map(cell_len, text.splitlines())) <= 80


def test_every_name_is_whole_in_eighty_columns_and_what_is_not_synced_says_so(
    awkward: Session, migrated_url: str
) -> None:
    told = command("status", "--postgres-url", migrated_url)
    assert told.exit_code == 0, told.output
    fits(told.stdout)
    words = " ".join(told.stdout.split())
    assert f'NOT SYNCED: table "{LONG}": writes to it by SQL reach no device' in words
    assert 'NOT SYNCED: table "a "quoted" name": column "n" is gone' in words
    assert 'NOT SYNCED: table "[red]markup[/red]": writes to it by SQL could not be brought into the log' in words
    assert 'table "naïve 🦆 emoji": its row-level security says who sees which rows' in words
    assert f"anabranch table capture on \\ {'d' * 63} \\ {LONG}" in words, "a command to be copied"
    for name in ("d" * 63, "n" * 64, "p" * 60, "0" * 26):
        assert name in told.stdout

    listed = command("table", "list", "d" * 63, "--postgres-url", migrated_url)
    assert listed.exit_code == 0, listed.output
    fits(listed.stdout)
    for name in AWKWARD[:3]:
        assert f"table {name}" in listed.stdout
    assert "table with\\nnewline \\x1b[31mred" in listed.stdout, "shown, and not obeyed"
    assert listed.stdout.count("key id  NOT SYNCED") == 3 - 1, "beside its key where there is room"
    assert listed.stdout.count("NOT SYNCED: ") == 3
    assert 'the "title"  text' in listed.stdout


def test_lists_lose_no_name_either(awkward: Session, migrated_url: str) -> None:
    at = ("--postgres-url", migrated_url)
    subject = "s" * 70
    assert command("key", "create", subject, "--database", "d" * 63, *at).exit_code == 0
    for arguments, names in (
        (("database", "list"), ["d" * 63, "app"]),
        (("database", "show", "d" * 63), [LONG, "with\\nnewline \\x1b[31mred", "[red]markup[/red]"]),
        (("key", "list"), [subject, "d" * 63]),
    ):
        told = command(*arguments, *at)
        assert told.exit_code == 0, told.output
        fits(told.stdout)
        for name in names:
            assert name in told.stdout, arguments


def test_what_is_wrong_is_red_on_a_terminal(awkward: Session, migrated_url: str) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, color_system="standard", width=80)
    show(console, shown(read(migrated_url, {"ingest": f"127.0.0.1:{free_port()}"}), 80))
    red = [line for line in screen.getvalue().splitlines() if line.startswith("\x1b[31m")]
    assert sum("NOT SYNCED" in line for line in red) == 3
    assert "UNREACHABLE" in red[0], "services come first"


def test_the_log_waits_for_what_was_written_by_sql_and_status_says_so(conn: Session, migrated_url: str) -> None:
    create_database(conn, "shop", "app")
    conn.execute("create table app.t (id text primary key)")
    add_table(conn, "shop", "t")
    conn.execute("insert into app.t select generate_series(1, 7)::text")
    assert "7 captured" in command("status", "--postgres-url", migrated_url).stdout
    assert not load_database(conn, "shop").uncaptured


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("database", "list"),
        ("table", "list", "d"),
        ("table", "add", "d", "t"),
        ("key", "list"),
        ("retention", "status", "d"),
        ("verify", "--db", "d"),
        ("lake", "rows", "--db", "d", "--table", "t", "--as-of", "1"),
    ],
    ids=" ".join,
)
def test_every_command_says_in_a_line_that_postgres_is_away(arguments: tuple[str, ...]) -> None:
    told = command(*arguments, "--postgres-url", f"postgresql://postgres@127.0.0.1:{free_port()}/x")
    assert told.exit_code in (1, 2), told.output
    lines = told.stderr.splitlines()
    assert len(lines) == 1, told.output
    assert lines[0].startswith("anabranch: Postgres ")


def test_a_schema_that_is_not_there_is_said(databases: object, database_url: str) -> None:
    told = command("status", "--postgres-url", database_url)
    assert told.exit_code == 1
    assert "this Postgres has no schema anabranch" in told.stderr
    with connect(database_url, application_name="test") as conn:
        assert conn.closed is False


def test_changes_of_the_schema_that_wait_and_what_notices_them_are_told(conn: Session, migrated_url: str) -> None:
    conn.execute("create table app.job (id text primary key)")
    create_database(conn, "shop", "app")
    add_table(conn, "shop", "job")
    for (name,) in conn.execute("select evtname from pg_event_trigger").fetchall():
        conn.execute(f'drop event trigger "{name}"'.encode())
    before = " ".join(command("status", "--postgres-url", migrated_url).stdout.split())
    assert "schema version 1 waiting" in before
    assert "no event triggers: DDL is noticed late, by looks" in before
    assert install(conn)
    conn.execute("/* \x1b[31m */ alter table app.job add column title text")
    conn.execute("alter table app.job rename to task")
    told = command("status", "--postgres-url", migrated_url)
    fits(told.stdout)
    words = " ".join(told.stdout.split())
    assert "no event triggers" not in words
    (role,) = conn.execute("select current_user").fetchone() or ("",)
    assert f'ALTERED: table "job" was altered by {role}: no batches are decided until the log has it' in words
    assert "/* \\x1b[31m */ alter table app.job add column title text" in words
    assert f'ALTERED: table "task" was altered by {role}' in words
    schema = json.loads(command("status", "--json", "--postgres-url", migrated_url).stdout)["databases"][0]["schema"]
    assert (schema["version"], schema["changed_ms"], schema["event_triggers"]) == (1, 0, True)
    assert [one["table"] for one in schema["waiting"]] == ["job", "task"]


NEW_TABLES = '{"new_tables": "new*"}'


def test_new_tables_whose_making_was_missed_are_told_with_the_command_that_helps(
    conn: Session, migrated_url: str
) -> None:
    conn.execute("create table app.job (id text primary key)")
    create_database(conn, "shop", "app", {"new_tables": "new*"})
    add_table(conn, "shop", "job")
    conn.execute("alter event trigger anabranch_ddl disable")
    for name in ("new one", "newer", "other"):
        conn.execute(f'create table app."{name}" (id text primary key)'.encode())
    conn.execute("create table app.new_without_key (id text); create table public.new_elsewhere (id text primary key)")
    conn.execute("create unlogged table app.new_unlogged (id text primary key)")
    add_table(conn, "shop", "newer")
    told = command("status", "--postgres-url", migrated_url)
    fits(told.stdout)
    words = " ".join(told.stdout.split())
    assert 'table "new one" is not synced, though the policy new_tables names it' in words
    assert "anabranch table add shop 'new one'" in words
    assert words.count("new_tables") == 1
    conn.execute("alter event trigger anabranch_ddl enable always; create table app.newest (id text primary key)")
    schema = json.loads(command("status", "--json", "--postgres-url", migrated_url).stdout)["databases"][0]["schema"]
    assert schema["left_out"] == ["new one"]
    assert [one["table"] for one in schema["waiting"]] == ["newest"]


def test_a_policy_of_new_tables_says_where_nothing_tells_of_them(conn: Session, migrated_url: str) -> None:
    warning = "warning: new_tables takes effect by event triggers, which are not there"
    at = ("--postgres-url", migrated_url)
    conn.execute("create schema ledger")
    create_database(conn, "shop", "app")
    assert warning not in command("database", "policy", "shop", "--set", NEW_TABLES, *at).stderr
    conn.execute("alter event trigger anabranch_ddl disable")
    assert warning in command("database", "policy", "shop", "--set", NEW_TABLES, *at).stderr
    assert warning not in command("database", "policy", "shop", "--set", '{"new_tables": null}', *at).stderr
    assert warning in command("database", "create", "l", "--schema", "ledger", "--policy", NEW_TABLES, *at).stderr
