"""The guide's set-ups work as they are printed: their SQL, their rules, their commands."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import create_database
from anabranch.store.session.engine import Session, connect

GUIDE = (Path(__file__).resolve().parents[3] / "docs" / "guides" / "audiences.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(section: str) -> list[tuple[str, str]]:
    """The blocks of a section, each with its language."""
    [found] = re.findall(rf"^## {section}\n(.*?)(?=^## )", GUIDE, re.MULTILINE | re.DOTALL)
    return _BLOCK.findall(found)


def set_up(conn: Session, url: str, section: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Do what a section says, in its order."""
    monkeypatch.chdir(folder)
    conn.execute("create schema shop")
    create_database(conn, "shop", "shop")
    for language, text in blocks(section):
        if language == "sql":
            conn.execute(f"set search_path to shop; {text}; set search_path to pg_catalog, pg_temp".encode())
        elif language == "json":
            Path("rules.json").write_text(text)
        else:
            for line in text.splitlines():
                command = shlex.split(line.partition("     #")[0])[1:]
                result = CliRunner().invoke(app, [*command, "--postgres-url", url])
                assert result.exit_code == 0, (line, result.output)


@pytest.fixture
def session(migrated_url: str, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL", raising=False)
    return connect(migrated_url, application_name="test", autocommit=True)


def of(url: str, principal: str, claims: object = None) -> list[str]:
    """The read set that the command shows."""
    more = () if claims is None else ("--claims", json.dumps(claims))
    arguments = ["database", "audiences", "shop", "--of", principal, *more, "--postgres-url", url]
    found: list[str] = json.loads(CliRunner().invoke(app, arguments).stdout)["read"]
    return found


def uses_index(conn: Session, table: str) -> bool:
    """Whether a read of the rows of some audiences goes by the index."""
    audience = load_database(conn, "shop").restricted[table]
    statement = f"select id from shop.{table} where {audience.meets('array[$1]::text[]')}".replace("$1", "'user:a'")
    with conn.transaction():
        conn.execute("set local enable_seqscan to off")
        plan = "\n".join(line for (line,) in conn.execute(f"explain {statement}".encode()))
    return f"{table}_audience" in plan


@pytest.mark.slow
def test_only_the_owner(session: Session, migrated_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_up(session, migrated_url, "Only the owner", monkeypatch, tmp_path)
    assert set(load_database(session, "shop").restricted) == {"note", "photo"}
    assert uses_index(session, "note")
    assert uses_index(session, "photo")
    assert of(migrated_url, "alice") == ["user:alice"]


def test_teams_by_claim(session: Session, migrated_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    set_up(session, migrated_url, "Teams by claim", monkeypatch, tmp_path)
    database = load_database(session, "shop")
    assert set(database.restricted) == {"job"}
    assert set(database.tables) == {"job", "product"}
    assert uses_index(session, "job")
    assert of(migrated_url, "alice", {"teams": ["t1", "t2"]}) == ["team:t1", "team:t2"]
    # The rules that come behind are taken, too.
    arguments = ["database", "audiences", "shop", "--set", "@rules.json", "--postgres-url", migrated_url]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert load_database(session, "shop").audience_rules.write is not None


@pytest.mark.slow
def test_rooms_by_membership(
    session: Session, migrated_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_up(session, migrated_url, "Rooms by membership", monkeypatch, tmp_path)
    database = load_database(session, "shop")
    assert set(database.restricted) == {"room", "member", "message"}
    assert [one.traced for one in database.audience_rules.memberships] == [{"member"}]
    assert all(uses_index(session, table) for table in database.restricted)
    session.execute("insert into shop.room values ('r1', 'one'); insert into shop.member values ('m1', 'r1', 'alice')")
    assert of(migrated_url, "alice") == ["room:r1"]
    assert of(migrated_url, "bob") == []
