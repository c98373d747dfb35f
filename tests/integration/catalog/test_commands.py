from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from anabranch.cli.app import app
from anabranch.store import revisions
from anabranch.store.catalog.databases import load_database, load_databases
from anabranch.store.session.engine import Session

TABLES = """
create table app.planes (id text primary key, seats int);
create table app.flights (id text primary key, plane text references app.planes, delay int);
create table app."Order" (id text primary key, "[red]" text);
create table app.broken (n float primary key, plane text references app.planes on delete cascade);
insert into app.planes values ('N1', 100), ('N2', 50);
"""


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL", raising=False)


def command(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(app, arguments, env=env)


def done(*arguments: str) -> str:
    result = command(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    result = command(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


@pytest.mark.slow
def test_a_database_from_nothing_to_synced_tables(conn: Session, migrated_url: str) -> None:
    at = ("--postgres-url", migrated_url)
    conn.execute(TABLES)
    assert "was already at revision" in done("database", "migrate", *at)
    assert 'database "gates"' in done(
        "database", "create", "gates", "--schema", "app", "--policy", '{"order":"edit"}', *at
    )
    result = command("table", "add", "gates", "flights", "planes", "Order", *at)
    assert result.exit_code == 0, result.output
    assert 'table "planes" is synced: 2 rows' in result.stdout
    # flights points to planes, which is synced by the same command.
    assert result.stderr == ""
    assert load_database(conn, "gates").table_order == ("Order", "planes", "flights")

    listed = done("table", "list", "gates", *at)
    assert "[red]" in listed
    assert listed.index("planes") < listed.index("flights")
    assert "gates" in done("database", "list", *at)
    shown = done("database", "show", "gates", *at)
    assert "edit" in shown
    assert "changed since" not in shown

    conn.execute("alter table app.flights drop column delay")
    assert 'changed since it was added: "flights": column "delay" is gone' in done("database", "show", "gates", *at)

    assert "no longer synced" in done("table", "remove", "gates", "flights", "Order", *at)
    assert set(load_database(conn, "gates").tables) == {"planes"}


ROW_SECURITY = """
create table app.rooms (id text primary key, owner text);
alter table app.rooms enable row level security;
create policy own on app.rooms using (owner = current_user);
create table app."no ""key" (n int);
"""


@pytest.mark.slow
def test_all_that_is_refused_is_told_at_once_each_with_what_helps(conn: Session, migrated_url: str) -> None:
    at = ("--postgres-url", migrated_url)
    conn.execute(TABLES + ROW_SECURITY)
    done("database", "create", "gates", "--schema", "app", *at)
    result = command("table", "add", "gates", "--all", *at)
    assert (result.exit_code, result.stdout) == (2, "")
    broken, no_key, rooms = result.stderr.splitlines()
    assert broken.startswith('anabranch: table "broken" can\'t be synced: key column "n" is ')
    helps = 'SQL: alter table "app"."broken" alter column COLUMN type text, or give it another primary key'
    assert broken.endswith(f"(KEY_TYPE). {helps}")
    assert no_key == (
        'anabranch: table "no "key" can\'t be synced: the table has no primary key (NO_PRIMARY_KEY). '
        'SQL: alter table "app"."no ""key" add primary key (COLUMN)'
    )
    assert rooms == (
        'anabranch: table "rooms" can\'t be synced: its row-level security says who sees which rows, and every device '
        "would see every row (ROW_SECURITY_OF_OTHERS). add --audience to say who sees which rows, or "
        "--every-device-sees-every-row if that is meant, or SQL: "
        'alter table "app"."rooms" disable row level security; nothing was added: --skip-refused adds the other 3'
    )
    assert load_database(conn, "gates").tables == {}

    # The command that is said to help does help, and then the good tables are added.
    conn.execute('alter table "app"."no ""key" add primary key (n)')
    result = command("table", "add", "gates", "--all", "--skip-refused", "--every-device-sees-every-row", *at)
    assert result.exit_code == 0
    assert set(load_database(conn, "gates").tables) == {"planes", "flights", "Order", 'no "key', "rooms"}
    assert [line[:25] for line in result.stderr.splitlines()] == ['anabranch: table "broken"']
    assert refused("table", "add", "gates", "--all", *at).startswith('anabranch: table "broken" can\'t be synced')
    conn.execute("drop table app.broken")
    assert done("table", "add", "gates", "--all", *at) == 'every table of schema "app" is synced already\n'


def test_tables_are_named_or_all_of_them(migrated_url: str) -> None:
    for arguments in (("gates",), ("gates", "planes", "--all")):
        result = command("table", "add", *arguments, "--postgres-url", migrated_url)
        assert result.exit_code == 2
        assert "name tables, or give --all" in result.stderr


def test_several_tables_are_added_together_or_not_at_all(conn: Session, migrated_url: str) -> None:
    conn.execute(TABLES)
    done("database", "create", "gates", "--schema", "app", "--postgres-url", migrated_url)
    line = refused("table", "add", "gates", "planes", "broken", "--postgres-url", migrated_url)
    assert line.startswith('anabranch: table "broken" can\'t be synced: ')
    assert "(KEY_TYPE)" in line
    assert load_database(conn, "gates").tables == {}


def test_an_unsynced_target_is_a_warning(conn: Session, migrated_url: str) -> None:
    conn.execute(TABLES)
    done("database", "create", "gates", "--schema", "app", "--postgres-url", migrated_url)
    result = command("table", "add", "gates", "flights", "--postgres-url", migrated_url)
    assert result.exit_code == 0
    assert result.stderr.startswith('warning: foreign key "flights_plane_fkey" points to "planes"')


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["database", "show", "nope"], "UNKNOWN_DATABASE"),
        (["table", "list", "nope"], "UNKNOWN_DATABASE"),
        (["table", "add", "nope", "t"], "UNKNOWN_DATABASE"),
        (["database", "create", "a b"], "INVALID_NAME"),
        (["database", "create", "d", "--schema", "nowhere"], "UNKNOWN_SCHEMA"),
        (["database", "create", "d", "--policy", "{"], "INVALID_POLICY"),
        (["database", "create", "d", "--policy", "[]"], "INVALID_POLICY"),
        (["database", "create", "d", "--policy", '{"ordr": "edit"}'], "INVALID_POLICY"),
    ],
)
def test_a_wrong_command_is_one_line_with_its_reason(
    conn: Session, migrated_url: str, arguments: list[str], reason: str
) -> None:
    assert refused(*arguments, "--postgres-url", migrated_url).endswith(f"({reason})")
    assert load_databases(conn) == {}


def test_a_server_that_is_away_is_one_line_with_its_reason() -> None:
    for arguments in (("database", "list"), ("database", "migrate"), ("table", "list", "d")):
        assert refused(*arguments, "--postgres-url", "postgresql://127.0.0.1:1/x").endswith("(UNAVAILABLE)")
        assert refused(*arguments, "--postgres-url", "no url").endswith("(INVALID_URL)")


def test_a_schema_that_is_not_there_is_told_with_what_to_do(database_url: str) -> None:
    line = refused("database", "list", "--postgres-url", database_url)
    assert "anabranch database migrate" in line
    assert line.endswith("(SCHEMA_NOT_CURRENT)")
    assert f"is now at revision {revisions.head()}" in done("database", "migrate", "--postgres-url", database_url)
    done("database", "list", "--postgres-url", database_url)


def test_the_server_is_found_by_folder_and_environment(conn: Session, migrated_url: str, tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text(json.dumps({"postgres_url": migrated_url}))
    done("database", "create", "one", "--data-dir", str(tmp_path))
    result = command("database", "create", "two", "--schema", "app", env={"ANABRANCH_POSTGRES_URL": migrated_url})
    assert result.exit_code == 0
    assert set(load_databases(conn)) == {"one", "two"}
    assert command("database", "list").exit_code != 0


def test_capture_rests_for_a_load_and_the_sum_is_made_anew(conn: Session, migrated_url: str) -> None:
    conn.execute(TABLES)
    at = ("--postgres-url", migrated_url)
    done("database", "create", "gates", "--schema", "app", *at)
    done("table", "add", "gates", "planes", *at)
    assert "are not captured until" in done("table", "capture", "off", "gates", "planes", *at)
    assert load_database(conn, "gates").uncaptured == {"planes"}
    assert "changed since" not in done("database", "show", "gates", *at)
    conn.execute("insert into app.planes select 'L' || i from generate_series(1, 100) i; truncate anabranch.captured")
    conn.execute("update app.planes set seats = 1")
    assert conn.execute("select count(*) from anabranch.captured").fetchone() == (0,)
    assert "are captured: 102 rows" in done("table", "capture", "on", "gates", "planes", *at)
    database = load_database(conn, "gates")
    assert database.uncaptured == frozenset()
    assert conn.execute("select row_count from anabranch.table_sums").fetchall() == [(102,)]
    conn.execute("delete from app.planes where id = 'L1'")
    captured = conn.execute("select table_id, type from anabranch.captured").fetchall()
    assert captured == [(database.tables["planes"].id, 3)]
