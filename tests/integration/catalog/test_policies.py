"""Policies changed by command: what is laid over, what is refused and by which name, and who learns of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from anabranch.cli.app import app
from anabranch.store.catalog import databases, registration
from anabranch.store.session.engine import Session
from anabranch.testkit.merge_functions import install

TABLES = "create table app.notes (id text primary key, body text, n int, tags text[], seen timestamptz, x float8)"


@pytest.fixture
def notes(conn: Session, migrated_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Session:
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.syspath_prepend(install(tmp_path))
    conn.execute(TABLES.encode())
    registration.create_database(conn, "gates", "app", {"order": "edit"})
    registration.add_table(conn, "gates", "notes", {"columns": {"n": "counter"}})
    conn.commit()
    return conn


def command(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--postgres-url", url])


def done(url: str, *arguments: str) -> Any:
    result = command(url, *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_databases_policy_is_shown_and_changed_key_by_key(notes: Session, migrated_url: str) -> None:
    assert done(migrated_url, "database", "policy", "gates")["order"] == "edit"
    before = databases.load_database(notes, "gates").schema_version
    notes.commit()
    changed = done(migrated_url, "database", "policy", "gates", "--set", '{"park_ms": 5000, "order": null}')
    assert (changed["park_ms"], changed["order"]) == (5000, "server")
    after = databases.load_database(notes, "gates")
    assert after.policy.given() == {"park_ms": 5000}
    assert after.schema_version == before + 1


def test_a_tables_policy_is_laid_over_column_by_column(notes: Session, migrated_url: str) -> None:
    given = '{"delete": "wins", "columns": {"tags": "union", "body": "function:join"}}'
    columns = {"n": "counter", "tags": "union", "body": "function:join"}
    assert done(migrated_url, "table", "policy", "gates", "notes", "--set", given) == {
        "delete": "wins",
        "columns": columns,
    }
    del columns["n"]
    done(migrated_url, "table", "policy", "gates", "notes", "--set", '{"columns": {"n": null}}')
    assert done(migrated_url, "table", "policy", "gates", "notes")["columns"] == columns
    table = databases.load_database(notes, "gates").tables["notes"]
    assert {c.name: c.policy for c in table.columns if c.policy != "lww"} == columns


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("database", "policy", "gates", "--set", '{"columns": {"n": "max"}}'), "columns is no policy"),
        (("database", "policy", "gates", "--set", '{"park_ms": -1}'), "park_ms"),
        (("database", "policy", "nowhere", "--set", '{"park_ms": 1}'), "UNKNOWN_DATABASE"),
        (("database", "policy", "nowhere"), "UNKNOWN_DATABASE"),
        (("table", "policy", "gates", "nothing", "--set", '{"delete": "wins"}'), "NOT_SYNCED"),
        (("table", "policy", "gates", "nothing"), "NOT_SYNCED"),
        (("table", "policy", "gates", "notes", "--set", '{"delete": "loses"}'), "INVALID_POLICY"),
        (("table", "policy", "gates", "notes", "--set", '{"columns": {"n": "sum"}}'), "lww, reject, counter, max"),
        (
            ("table", "policy", "gates", "notes", "--set", '{"columns": {"body": "union"}}'),
            'does not fit column "body"',
        ),
        (("table", "policy", "gates", "notes", "--set", '{"columns": {"tags": "max"}}'), "of type text[]"),
        (("table", "policy", "gates", "notes", "--set", '{"columns": {"x": "counter"}}'), "of type double precision"),
        (("table", "policy", "gates", "notes", "--set", '{"columns": {"id": "max"}}'), "which no update writes"),
        (("table", "policy", "gates", "notes", "--set", '{"columns": {"y": "max"}}'), "which the table lacks"),
        (("table", "policy", "gates", "notes", "--set", '{"columns": {"body": "function:odder"}}'), '"odder"'),
        (("table", "policy", "gates", "notes", "--set", "{"), "no JSON"),
    ],
)
def test_what_can_not_be_is_refused_by_name_and_changes_nothing(
    notes: Session, migrated_url: str, arguments: tuple[str, ...], told: str
) -> None:
    result = command(migrated_url, *arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert told in line
    found = databases.load_database(notes, "gates")
    assert found.policy.given() == {"order": "edit"}
    assert found.table_policies["notes"].given() == {"columns": {"n": "counter"}}
