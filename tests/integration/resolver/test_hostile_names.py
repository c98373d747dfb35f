"""A name in the database can't move an admin's cursor, forge a line or turn a text around: every command that prints
names escapes them, and JSON gives them exactly."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anabranch.cli.app import app
from anabranch.store.catalog import registration
from anabranch.store.cells.binary_cells import quote
from anabranch.store.nodes import key_administration
from anabranch.testkit.resolver_rig import ResolverRig

EVIL = "a\x1b[2J\x1b]0;owned\x07\nroot# \r\u202eb\x9b31m\u2066\x7f[red]c"
"""Texts that a terminal obeys: clearing the screen, its title, a second line, overwriting one, text from right to left,
the one-byte form of an escape, an isolate, delete; and the markup of a library that draws tables."""
SHOWN = "\\u202eb\\x9b31m\\u2066\\x7f[red]c"
"""Its end, which no line breaks at a blank."""
SQL = EVIL.replace("'", "''")
TABLES = f"""
create type {quote("e" + EVIL)} as enum ('{SQL}', 'ok');
create table {quote(EVIL)} (id text primary key, {quote(EVIL)} text, e {quote("e" + EVIL)}, n int);
create table refused (id text, {quote("x" + EVIL)} text);
insert into {quote(EVIL)} values ('{SQL}', '{SQL}', '{SQL}', 1);
"""


@pytest.fixture
def rig(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> ResolverRig:
    monkeypatch.setenv("COLUMNS", "500")
    rig: ResolverRig = make_rig(TABLES, {EVIL: None})
    a, b = rig.node(EVIL), rig.node("b" + EVIL, principal=EVIL)
    a.insert(EVIL, {"id": EVIL + "2", EVIL: "x", "n": 1})
    rig.drain()
    a.see()
    b.see()
    a.update(EVIL, {"id": EVIL + "2", EVIL: EVIL})
    rig.drain()
    b.update(EVIL, {"id": EVIL + "2", EVIL: "won"})
    rig.drain()
    rig.sql(f"create schema {quote(EVIL)}")
    # A database's own name is checked; its schema's is whatever Postgres takes.
    registration.create_database(rig.conn, "evil", EVIL)
    key_administration.create(rig.conn, subject=EVIL, role="device", database="evil", now_ms=1)
    return rig


COMMANDS: dict[str, tuple[list[str], int]] = {
    "status": (["status"], 0),
    "database list": (["database", "list"], 0),
    "database show": (["database", "show", "app"], 0),
    "table list": (["table", "list", "app"], 0),
    "database create": (["database", "create", EVIL], 2),
    "database of a schema": (["database", "show", "evil"], 0),
    "table add of none": (["table", "add", "evil", "--all"], 0),
    "table add": (["table", "add", "app", "refused", "no such " + EVIL], 2),
    "node list": (["node", "list", "app"], 0),
    "node forget": (["node", "forget", "app", EVIL, "--yes", "--force"], 0),
    "conflicts list": (["conflicts", "list", "app"], 0),
    "schema log": (["schema", "log", "--db", "app"], 0),
    "key list": (["key", "list"], 0),
    "key create": (["key", "create", "x", "--database", "no " + EVIL], 1),
    "verify": (["verify", "--db", "app"], 0),
    "verify of none": (["verify", "--db", "app", "--table", "no " + EVIL], 2),
    "retention status": (["retention", "status", "app"], 0),
    "unknown database": (["database", "show", "no " + EVIL], 2),
    "policy": (["table", "policy", "app", "no " + EVIL], 2),
    "lake": (["lake", "rows", "--db", "app", "--table", EVIL, "--as-of", "2026-01-01"], 2),
    "table capture off": (["table", "capture", "off", "app", EVIL], 0),
    "table remove": (["table", "remove", "app", EVIL], 0),
}
WITHOUT_NAMES = {"retention status", "key create", "table add of none", "lake", "schema log"}


@pytest.mark.slow
def test_no_command_prints_what_a_terminal_obeys(rig: ResolverRig) -> None:
    for name, (arguments, code) in COMMANDS.items():
        result = CliRunner().invoke(app, [*arguments, "--postgres-url", rig.url])
        assert result.exit_code == code, f"{name}: {result.output} {result.exception!r}"
        written = result.stdout + result.stderr
        bad = [line for line in written.split("\n") if not line.isprintable()]
        assert bad == [], name
        if name not in WITHOUT_NAMES:
            assert SHOWN in written, f"{name} shows no name: {written}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--json"],
        ["node", "list", "app", "--json"],
        ["conflicts", "list", "app", "--json"],
        ["key", "list", "--json"],
    ],
    ids=lambda given: " ".join(given[:2]),
)
def test_json_is_exact_and_harmless(rig: ResolverRig, arguments: list[str]) -> None:
    result = CliRunner().invoke(app, [*arguments, "--postgres-url", rig.url])
    assert result.exit_code == 0, result.output
    assert [line for line in result.stdout.split("\n") if not line.isprintable()] == []
    whole = arguments[0] in ("status", "key")
    content = [json.loads(result.stdout)] if whole else [json.loads(line) for line in result.stdout.splitlines()]
    assert EVIL in _texts(content)


def _texts(content: Any) -> set[str]:
    if isinstance(content, str):
        return {content}
    if isinstance(content, dict):
        return {key for key in content if isinstance(key, str)} | _texts(list(content.values()))
    return set().union(*map(_texts, content)) if isinstance(content, list) else set()


@pytest.mark.slow
def test_a_file_of_another_program_is_refused_in_a_line(rig: ResolverRig, tmp_path: Path) -> None:
    file = tmp_path / f"no device {EVIL.replace('/', '')}"
    with sqlite3.connect(file) as made:
        made.execute("create table x (y)")
    made.close()
    result = CliRunner().invoke(app, ["verify", "--db", "app", "--device", str(file), "--postgres-url", rig.url])
    assert result.exit_code == 2, result.output
    assert [line for line in (result.stdout + result.stderr).split("\n") if not line.isprintable()] == []
