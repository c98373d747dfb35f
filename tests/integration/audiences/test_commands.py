"""The commands that set and show audiences, and those that compare and keep them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.integration.audiences.conftest import expected_sums, kept_sums
from typer.testing import CliRunner, Result

from anabranch.cli.app import app
from anabranch.store.audiences.principals import learn
from anabranch.store.catalog.databases import load_database
from anabranch.store.cells.binary_cells import Row
from anabranch.store.session.engine import Session
from anabranch.store.session.steps import run

TEAM = "'team:' || team_id"
TEAMS = "select 'team:' || team_id from membership where user_id = :principal"
REST: Row = [None] * 7


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("ANABRANCH_POSTGRES_URL", raising=False)


class Commands:
    def __init__(self, url: str) -> None:
        self.at = ("--postgres-url", url)

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, *self.at])

    def done(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def refused(self, *arguments: str) -> str:
        result = self.run(*arguments)
        assert result.exit_code == 2, result.output
        (line,) = result.stderr.splitlines()
        return line


@pytest.fixture
def commands(migrated_url: str) -> Commands:
    return Commands(migrated_url)


@pytest.mark.slow
def test_a_table_is_added_with_an_audience_listed_and_changed(conn: Session, commands: Commands) -> None:
    conn.execute("insert into app.job (id, team_id) values ('1', 't1'), ('2', null)")
    assert "is not immutable" in commands.refused("table", "add", "d", "job", "--audience", "'at:' || at")
    assert "has type integer, and not text or text[] (AUDIENCE_TYPE). cast it: (…)::text" in commands.refused(
        "table", "add", "d", "job", "--audience", "n"
    )
    assert commands.run("table", "add", "d", "job", "membership", "--audience", TEAM).exit_code == 2
    assert commands.run("table", "add", "d", "--all", "--audience", TEAM).exit_code == 2
    assert "2 rows" in commands.done("table", "add", "d", "job", "--audience", TEAM)
    assert "audience ('team:'::text || team_id)" in commands.done("table", "list", "d")
    assert commands.done("table", "audience", "d", "job") == "audience ('team:'::text || team_id)\n"
    changed = commands.done("table", "audience", "d", "job", "--set", "'everyone'")
    assert changed.splitlines() == ['table "job" is registered anew: 2 rows', "audience 'everyone'::text"]
    assert "every device sees every row" in commands.done("table", "audience", "d", "job", "--open")
    assert load_database(conn, "d").restricted == {}
    assert "NOT_SYNCED" in commands.refused("table", "audience", "d", "membership")
    assert commands.run("table", "audience", "d", "job", "--open", "--set", "'a'").exit_code == 2


@pytest.mark.slow
def test_rules_are_set_and_shown_with_what_is_traced(conn: Session, commands: Commands, tmp_path: Path) -> None:
    del conn
    assert commands.done("database", "audiences", "d") == '{\n  "claims": {},\n  "memberships": []\n}\n'
    commands.done("table", "add", "d", "membership", "job")
    counted = "select 'n:' || count(*) from membership m join job on job.team_id = m.team_id where user_id = :principal"
    rules = {"claims": {"teams": "team"}, "memberships": [TEAMS, counted, "select 'user:' || :principal"]}
    file = tmp_path / "rules.json"
    file.write_text(json.dumps(rules))
    result = commands.run("database", "audiences", "d", "--set", f"@{file}")
    assert (result.exit_code, json.loads(result.stdout)) == (0, rules)
    assert result.stderr.splitlines() == [
        f"membership query {TEAMS}",
        "  traced, a changed row concerns the principals that it names: membership",
        f"membership query {counted}",
        "  not traced, any change has every principal evaluated anew: job, membership",
        "membership query select 'user:' || :principal",
        "  it reads no table: what it gives never changes",
    ]
    assert json.loads(commands.done("database", "audiences", "d")) == rules
    for given, reason in [
        ("{", "AUDIENCE_RULES"),
        ("[]", "AUDIENCE_RULES"),
        ("@/nowhere/rules.json", "AUDIENCE_RULES"),
        ('{"memberships": ["select id from unsynced"]}', "MEMBERSHIP_TABLE"),
    ]:
        assert reason in commands.refused("database", "audiences", "d", "--set", given)
    assert "warning" in commands.run("table", "remove", "d", "membership").stderr


@pytest.mark.slow
def test_a_principals_audiences_are_shown(conn: Session, commands: Commands) -> None:
    conn.execute("insert into app.membership values ('1', 'alice', 't1')")
    commands.done("table", "add", "d", "membership")
    rules = {"claims": {"org.teams": "team"}, "memberships": [TEAMS], "write": {"claims": {"role": "role"}}}
    commands.done("database", "audiences", "d", "--set", json.dumps(rules))
    of = ("database", "audiences", "d", "--of", "alice")
    claims = json.dumps({"org": {"teams": ["t2", 3]}, "role": "owner"})
    assert json.loads(commands.done(*of, "--claims", claims)) == {
        "read": ["team:3", "team:t1", "team:t2"],
        "write": ["role:owner"],
    }
    run(conn, learn(load_database(conn, "d"), ["alice"], 1))
    conn.execute("delete from app.membership")
    assert json.loads(commands.done(*of)) == {
        "read": [],
        "write": [],
        "memberships of the last group": {"read": ["team:t1"], "write": []},
    }
    assert "INVALID_CLAIMS" in commands.refused(*of, "--claims", "3")


@pytest.mark.slow
def test_the_sums_of_audiences_are_verified_and_adopted(conn: Session, commands: Commands) -> None:
    conn.execute("insert into app.job (id, team_id) values ('1', 't1'), ('2', 't2'), ('3', 't2')")
    commands.done("table", "add", "d", "job", "--audience", TEAM)
    assert "3 rows are those of the log" in commands.done("verify", "--db", "d")
    conn.execute("update anabranch.audience_sums set row_count = 7 where audience = 'team:t2'")
    conn.execute(
        "insert into anabranch.audience_sums"
        " select table_id, 'team:t0', 0, 1, row_hash from anabranch.audience_sums limit 1"
    )
    result = commands.run("verify", "--db", "d")
    assert result.exit_code == 1
    assert "  audience team:t0: 0 rows, 1 logged" in result.stdout
    assert "  audience team:t2: 2 rows, 7 logged" in result.stdout
    assert "team:t1" not in result.stdout
    commands.done("verify", "--db", "d", "--adopt")
    rows: dict[str, list[Row]] = {
        "team:t1": [["1", "t1", None, *REST]],
        "team:t2": [["2", "t2", None, *REST], ["3", "t2", None, *REST]],
    }
    assert kept_sums(conn, "job") == expected_sums(conn, "job", rows) | {"team:t0": (0, bytes(16))}
    # A change behind the triggers' back is in both sums.
    conn.execute("alter table app.job disable trigger all; update app.job set team_id = 't1' where id = '2'")
    result = commands.run("verify", "--db", "d")
    assert result.exit_code == 1
    assert "audience team:t1: 2 rows, 1 logged" in result.stdout
