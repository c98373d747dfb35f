"""``anabranch schema log``: versions, what they changed, and the nodes on each."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from typer.testing import CliRunner, Result

from anabranch.cli.app import app
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import add_table, create_database
from anabranch.store.log.schema_versions import table_to_json
from anabranch.store.session.engine import Session
from anabranch.v1 import snapshot_pb2
from anabranch.values import Column, Kind

CHANGE = """
insert into anabranch.schema_changes
    (database_id, version, position, noticed_ms, role, application, command, change, tables)
select id, %s, %s, %s, 'migrator', 'alembic', %s, %s, %s from anabranch.databases where name = 'shop'
"""
NODE = """
insert into anabranch.nodes
    (database_id, node_id, name, principal, epoch, token, last_seen_ms, acknowledged, app_version)
select id, %s, '', 'p', epoch, '', 1, %s, %s from anabranch.databases where name = 'shop'
"""


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL", raising=False)


@pytest.fixture
def shop(conn: Session) -> Session:
    """A database with two schema changes, and nodes on all versions."""
    conn.execute("create table app.job (id text primary key, title text)")
    create_database(conn, "shop", "app")
    add_table(conn, "shop", "job")
    first = load_database(conn, "shop").tables["job"]
    second = replace(first, columns=(*first.columns, Column("note", Kind.STRING, "text", initial=(None,))))
    third = replace(second, renamed="task")
    told: list[tuple[Any, ...]] = [
        (2, 1_000, first, second, 'column "note" (text) was added: rows that were there have NULL', ()),
        (3, 2_000, second, third, 'table "job" is called "task"', ("job",)),
    ]
    for version, position, was, now, text, pulled in told:
        kept = {str(first.id): {"before": table_to_json(was), "after": table_to_json(now), "texts": [text]}}
        message = snapshot_pb2.SchemaChange(version=version, pulled=pulled).SerializeToString()
        command = "alter table job\n  add column note text /* \x1b[31m */" + " -- long" * 100
        conn.execute(CHANGE, (version, position, position + 5, command, message, Jsonb(kept)))
    conn.execute("update anabranch.databases set ddl_version = 3 where name = 'shop'")
    for number, (acknowledged, app_version) in enumerate([(0, 1), (999, 0), (1_000, 2), (1_999, 0), (2_500, 5)]):
        conn.execute(NODE, (f"{number:026}", acknowledged, app_version))
    return conn


def command(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["schema", *arguments, "--postgres-url", url])


def test_each_version_is_told_with_its_nodes(shop: Session, migrated_url: str) -> None:
    told = command(migrated_url, "log")
    assert told.exit_code == 0, told.output
    assert max(map(len, told.stdout.splitlines())) <= 80
    words = " ".join(told.stdout.split())
    third, second, first = words.split("version ")[1:4]
    assert third.startswith("3 1970-01-01 00:00:02Z ")
    assert "by migrator with alembic" in third
    assert 'table "job" is called "task" table "task" is pulled anew' in third
    assert "1 node on it 4 before it" in third
    assert "app" not in third.split("on it")[1]
    assert 'column "note" (text) was added: rows that were there have NULL of table "job"' in second
    assert "alter table job add column note text /* \\x1b[31m */" in second
    assert "…" in second
    assert "2 nodes on it 2 before it 1 app built for it" in second
    assert first == "1 as registered 2 nodes on it 1 app built for it 1 node with an app built for "
    assert words.endswith("version 5, which is not there yet")


def test_json_has_all_of_it(shop: Session, migrated_url: str) -> None:
    rows = list(map(json.loads, command(migrated_url, "log", "--db", "shop", "--json").stdout.splitlines()))
    assert [(row["version"], row["position"], row["nodes"], row["nodes_before"], row["apps"]) for row in rows] == [
        (3, 2_000, 1, 4, 0),
        (2, 1_000, 2, 2, 1),
        (1, 0, 2, 0, 1),
    ]
    assert (rows[0]["role"], rows[0]["application"], rows[0]["pulled"]) == ("migrator", "alembic", ["job"])
    assert len(rows[0]["command"]) > 800
    assert rows[2]["changes"] == []


def test_a_database_has_to_be_named_where_there_are_several(conn: Session, migrated_url: str) -> None:
    none = command(migrated_url, "log")
    assert (none.exit_code, "there are 0 databases: give one with --db (NAME_A_DATABASE)" in none.stderr) == (2, True)
    create_database(conn, "shop", "app")
    assert command(migrated_url, "log").stdout.split() == ["version", "1", "as", "registered", "0", "nodes", "on", "it"]
    missing = command(migrated_url, "log", "--db", "nowhere")
    assert (missing.exit_code, "UNKNOWN_DATABASE" in missing.stderr) == (2, True)
