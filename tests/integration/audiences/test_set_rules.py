"""Where principals have their audiences from: set, refused, and evaluated anew."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from anabranch.store.audiences.principals import current, evaluate, learn
from anabranch.store.audiences.rules import AudienceRules, Membership, SetRules
from anabranch.store.audiences.set_rules import MOST_RULES, given_rules, set_audience_rules
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.catalog.judging import RegistrationError
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.registration import RegistrationLimits, add_table, remove_table
from anabranch.store.session.channels import CATALOG_CHANNEL
from anabranch.store.session.engine import Session, connect
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.store.session.steps import run

TEAMS = "select 'team:' || team_id from membership where user_id = :principal"
NOTED = "insert into anabranch.audience_changes values (%s, 3, 'alice', '{team:t0}', '{}')"


def number(conn: Session, table: str) -> int:
    row = conn.execute(f"select count(*) from anabranch.{table}".encode()).fetchone()
    assert row is not None
    return int(row[0])


def test_rules_are_kept_as_they_were_judged_and_move_the_schema_version(conn: Session, synced: Database) -> None:
    conn.execute(f"listen {CATALOG_CHANNEL}".encode())
    given = {"claims": {"teams": "team"}, "memberships": [TEAMS + ";"], "write": {"claims": {"admin": "admin"}}}
    database = set_audience_rules(conn, "d", given)
    [membership] = database.audience_rules.read.memberships
    assert membership == Membership(TEAMS, ("membership",), frozenset({"membership"}), membership.printed)
    assert database.audience_rules.read.claims == {"teams": "team"}
    assert database.audience_rules.write == SetRules({"admin": "admin"})
    assert database == load_database(conn, "d")
    assert database.schema_version == synced.schema_version + 1
    assert [one.payload for one in conn.notifies(timeout=1, stop_after=1)] == [str(database.id)]
    again = given_rules(database.audience_rules)
    assert set_audience_rules(conn, "d", again).audience_rules == database.audience_rules
    assert set_audience_rules(conn, "d", {}).audience_rules == AudienceRules()
    assert conn.execute("select audience_rules from anabranch.databases").fetchone() == ({},)


WRONG: list[tuple[Any, str]] = [
    ({"claim": {}}, "claim is no rule"),
    ({"claims": ["teams"]}, "claims maps"),
    ({"claims": {"teams": 5}}, "claims maps"),
    ({"claims": {"teams": ""}}, "claims maps"),
    ({"claims": {f"c{i}": "c" for i in range(MOST_RULES + 1)}}, "more than"),
    ({"memberships": TEAMS}, "memberships is a list"),
    ({"memberships": [None]}, "memberships is a list"),
    ({"memberships": ["select 'a'"] * (MOST_RULES + 1)}, "more than"),
    ({"memberships": [f"select '{'a' * 10_000}'"]}, "bytes"),
    ({"write": []}, "write. is no object"),
    ({"write": {"write": {}}}, "write.write is no rule"),
]


@pytest.mark.parametrize(("given", "text"), WRONG, ids=[text for _, text in WRONG])
def test_what_is_no_rule_is_refused(conn: Session, synced: Database, given: Any, text: str) -> None:
    with pytest.raises(RegistrationError) as caught:
        set_audience_rules(conn, "d", given)
    assert caught.value.reasons == [TableRefusal.AUDIENCE_RULES]
    assert text in str(caught.value)
    assert load_database(conn, "d") == synced


def test_every_query_that_is_refused_is_told(conn: Session, synced: Database) -> None:
    given = {"memberships": ["select id from unsynced", TEAMS], "write": {"memberships": ["select 1"]}}
    with pytest.raises(RegistrationError) as caught:
        set_audience_rules(conn, "d", given)
    assert caught.value.reasons == [TableRefusal.MEMBERSHIP_TABLE, TableRefusal.MEMBERSHIP_QUERY]
    assert load_database(conn, "d") == synced
    with pytest.raises(RegistrationError) as caught:
        set_audience_rules(conn, "nowhere", {})
    assert caught.value.reasons == [TableRefusal.UNKNOWN_DATABASE]


def test_other_rules_evaluate_everybody_anew_and_forget_how_it_was(conn: Session, synced: Database) -> None:
    conn.execute("insert into app.membership select 'm' || i, 'u' || i, 't' || i % 7 from generate_series(1, 2100) i")
    database = set_audience_rules(conn, "d", {"memberships": [TEAMS]})
    names = [f"u{i}" for i in range(1, 2_101)]
    run(conn, learn(database, names, 1))
    conn.execute(NOTED, (synced.id,))
    database = set_audience_rules(conn, "d", {"memberships": ["select 'user:' || :principal"], "write": {}})
    found = run(conn, current(database.id, names))
    assert all((one.read, one.write) == (frozenset({f"user:{name}"}), frozenset()) for name, one in found.items())
    assert len(found) == 2_100
    assert number(conn, "audience_changes") == 0
    set_audience_rules(conn, "d", {"claims": {"teams": "team"}})
    assert number(conn, "principals") == 0


def test_a_query_that_fails_for_somebody_is_refused(conn: Session, synced: Database) -> None:
    del synced
    conn.execute("insert into app.membership values ('1', 'alice', 'x')")
    database = set_audience_rules(conn, "d", {"memberships": [TEAMS]})
    run(conn, learn(database, ["alice"], 1))
    failing = "select 'n:' || team_id::int from membership where user_id = :principal"
    with pytest.raises(RegistrationError) as caught:
        set_audience_rules(conn, "d", {"memberships": [failing]})
    assert caught.value.reasons == [TableRefusal.MEMBERSHIP_QUERY]
    assert load_database(conn, "d") == database


def test_rules_wait_for_the_group_that_is_under_way(conn: Session, synced: Database, migrated_url: str) -> None:
    with connect(migrated_url, application_name="resolver") as resolver:
        wait_for_claim(resolver, synced.id)
        with pytest.raises(RegistrationError) as caught:
            set_audience_rules(conn, "d", {}, limits=RegistrationLimits(lock_timeout_ms=100))
        assert caught.value.reasons == [TableRefusal.BUSY]


def test_a_table_that_a_query_reads_is_evaluated_when_it_is_added_again(conn: Session, synced: Database) -> None:
    del synced
    conn.execute("insert into app.membership values ('1', 'alice', 't1')")
    database = set_audience_rules(conn, "d", {"memberships": [TEAMS]})
    run(conn, learn(database, ["alice"], 1))
    remove_table(conn, "d", "membership")
    conn.execute("update app.membership set team_id = 't2'")
    assert run(conn, current(database.id, ["alice"]))["alice"].read == {"team:t1"}
    add_table(conn, "d", "membership")
    assert run(conn, current(database.id, ["alice"]))["alice"].read == {"team:t2"}


def test_a_table_that_a_query_no_longer_fits_is_not_added(conn: Session, synced: Database) -> None:
    del synced
    database = set_audience_rules(conn, "d", {"memberships": [TEAMS]})
    run(conn, learn(database, ["alice"], 1))
    conn.execute("alter table app.membership rename team_id to team")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        run(conn, evaluate(database, ["alice"]))
    # Other rules can be given as long as the table is registered, drifted or not.
    remove_table(conn, "d", "membership")
    with pytest.raises(RegistrationError) as caught:
        add_table(conn, "d", "membership")
    assert caught.value.reasons == [TableRefusal.MEMBERSHIP_QUERY]
    set_audience_rules(conn, "d", {})
    add_table(conn, "d", "membership")
    set_audience_rules(conn, "d", {"memberships": [TEAMS.replace("team_id", "team")]})
