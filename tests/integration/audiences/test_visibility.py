"""``anabranch verify --visibility`` names what audiences show and policies hide; rules name a role that can be acted
as."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.integration.audiences.test_commands import Commands

from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog.judging import RegistrationError
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.registration import add_table
from anabranch.store.session.engine import Session

ROLE = "anabranch_test_reader"


@pytest.fixture
def commands(migrated_url: str, conn: Session) -> Iterator[Commands]:
    """The command; table job has a policy of its own, and audiences that are laxer for team t2."""
    conn.execute(f"drop role if exists {ROLE}; create role {ROLE}".encode())
    conn.execute(
        f"alter table app.job enable row level security; grant usage on schema app to {ROLE};"
        f"grant select on app.job to {ROLE};"
        f"create policy p on app.job to {ROLE} using (team_id <> 't2' and"
        " (current_setting('request.jwt.claims')::json ->> 'sub') = title)".encode()
    )
    conn.execute("insert into app.job (id, team_id, title) values ('1', 't1', 'alice'), ('2', 't2', 'alice')")
    add_table(conn, "d", "job", audience="array['team:' || team_id, 'user:' || title]")
    yield Commands(migrated_url)
    conn.execute(f"drop owned by {ROLE}; drop role {ROLE}".encode())


def test_the_first_row_that_a_policy_hides_is_named(commands: Commands, conn: Session) -> None:
    set_audience_rules(conn, "d", {"claims": {"teams": "team"}, "rls": ROLE})
    of_one, of_two = json.dumps({"sub": "alice", "teams": ["t1"]}), json.dumps({"sub": "alice", "teams": ["t1", "t2"]})
    same = commands.done("verify", "--db", "d", "--visibility", of_one, "--visibility", "bob")
    assert "job: policies hide nothing from alice that audiences show" in same
    assert "job: policies hide nothing from bob that audiences show" in same
    differs = commands.run("verify", "--db", "d", "--visibility", of_two)
    assert differs.exit_code == 1
    assert "job: row 2 is SHOWN to alice by its audiences, and a policy hides it" in differs.stdout


def test_without_a_role_there_is_nothing_to_compare(commands: Commands) -> None:
    assert "NO_RLS_ROLE" in commands.refused("verify", "--db", "d", "--visibility", "alice")


def test_claims_that_name_nobody_are_refused(commands: Commands, conn: Session) -> None:
    set_audience_rules(conn, "d", {"rls": ROLE})
    for wrong in ('{"teams": []}', "{"):
        assert "INVALID_CLAIMS" in commands.refused("verify", "--db", "d", "--visibility", wrong)


@pytest.mark.parametrize(
    ("attribute", "text"),
    [("superuser", "it is a superuser"), ("bypassrls", "bypasses them"), ("", "")],
)
def test_a_role_is_one_for_which_policies_hold(commands: Commands, conn: Session, attribute: str, text: str) -> None:
    conn.execute(f"alter role {ROLE} {attribute or 'nosuperuser'}".encode())
    if not text:
        assert set_audience_rules(conn, "d", {"rls": ROLE}).audience_rules.rls_role == ROLE
        return
    with pytest.raises(RegistrationError, match=text) as caught:
        set_audience_rules(conn, "d", {"rls": ROLE})
    assert caught.value.reasons == [TableRefusal.RLS_ROLE]


def test_a_role_that_is_not_there_is_refused(conn: Session) -> None:
    with pytest.raises(RegistrationError, match='there is no role "nobody_at_all"'):
        set_audience_rules(conn, "d", {"rls": "nobody_at_all"})
