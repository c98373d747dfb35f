"""Rows stay for those whom they were for, and are written by the same, where tables and columns are renamed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.integration.resolver.audiences import AUDIENCES, NAMES, OF_TEAMS, OWN, TABLES, changes, shown
from tests.integration.resolver.renamed import Renamed

from anabranch.store.audiences.principals import evaluate
from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.registration import remove_table
from anabranch.store.session.steps import run
from anabranch.testkit.renaming import Names
from anabranch.testkit.resolver_rig import ResolverRig

INSERT, UPDATE, DELETE = 1, 2, 3
UNTRACED = "select 'many:' || count(*) from membership where user_id = :principal"
RULES: Mapping[str, Any] = {"claims": {"teams": "team"}, "memberships": [OF_TEAMS, OWN, UNTRACED]}
# Columns that no expression reads; those that one reads keep their names.
RENAMES = {
    "odd": {
        "job": Names('Job "1"', {"id": "Id", "title": "n o t e", "note": "title"}),
        "note": Names(columns={"body": "B"}),
    },
    "swapped": {
        "job": Names("note", {"title": "note", "note": "id", "id": "title"}),
        "note": Names("job", {"id": "body", "body": "id"}),
    },
}
MEMBERS = {
    "odd": {"membership": Names('Member "s"', {"user_id": "User", "id": "key"})},
    "swapped": {
        "membership": Names("job", {"user_id": "team_id", "team_id": "user_id"}),
        "job": Names("membership", {"id": "user_id"}),
    },
}


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    # Memberships are open: an expression that reads a column is written anew where that is renamed.
    audiences = {name: one for name, one in AUDIENCES.items() if name != "membership"}
    made: ResolverRig = make_rig(TABLES, NAMES, policy={"park_ms": 0}, audiences=audiences, rules=RULES)
    return made


@pytest.mark.parametrize("names", list(RENAMES))
def test_rows_are_for_whom_they_were(rig: ResolverRig, names: str) -> None:
    a = rig.node("a", "alice", ["team:1"])
    a.insert("job", {"id": "1", "team_id": "1", "title": "one"})
    rig.drain()
    renamed = Renamed(rig, RENAMES[names])
    a.see()
    mine = a.update("job", {"id": "1", "title": "two"})
    other = a.insert("job", {"id": "2", "team_id": "2", "title": "not mine"})
    rig.drain()
    assert (rig.outcome(mine), rig.outcome(other)) == (["APPLIED"], "FORBIDDEN")
    verdict = rig.verdict(other)
    assert verdict is not None
    assert f'the row of table "{rig.database.tables["job"].sql_name}"' in verdict.message
    renamed.sql("update {table} set {team_id} = '2' where {id} = '1'", "job")
    renamed.sql("insert into {table} ({id}, {owner}, {org}, {body}) values ('n', 'bob', 'o', 'b')", "note")
    rig.drain()
    assert shown(rig, "job") == [
        ("1", INSERT, [], ["team:1"]),
        ("1", UPDATE, ["team:1"], ["team:1"]),
        ("1", UPDATE, ["team:1"], ["team:2"]),
    ]
    assert shown(rig, "note") == [("n", INSERT, [], ["org:o", "user:bob"])]


def given(rig: ResolverRig, principal: str) -> frozenset[str]:
    database = load_database(rig.conn, rig.name)
    return run(rig.conn, evaluate(database, [principal]))[principal].read


@pytest.mark.parametrize("names", list(MEMBERS))
@pytest.mark.parametrize("anew", [False, True])
def test_membership_queries_go_on_under_the_names_that_they_were_given_with(
    rig: ResolverRig, names: str, *, anew: bool
) -> None:
    """Of tables that were renamed: what queries give, whom a changed row concerns. ``anew``: they are given again when
    the tables have other names, and these are taken back."""
    rig.sql("insert into app.membership values ('m', 'alice', '1')")
    alice = rig.node("alice", "alice")
    alice.insert("job", {"id": "1", "team_id": "1", "title": "one"})
    rig.drain()
    renamed = Renamed(rig, MEMBERS[names])
    if anew:
        table, team, user = (
            renamed.table("membership"),
            renamed.column("membership", "team_id"),
            renamed.column("membership", "user_id"),
        )
        where = f'from {table.partition(".")[2]} where "{user}" = :principal'
        queries = [f"select 'team:' || \"{team}\" {where}", OWN, f"select 'many:' || count(*) {where}"]
        set_audience_rules(rig.conn, rig.name, {**RULES, "memberships": queries})
        back = {name: Names(name, {column: column for column in one.columns}) for name, one in MEMBERS[names].items()}
        renamed = Renamed(rig, back)
        [of_team, _, of_count] = rig.database.audience_rules.memberships
        assert (of_team.tables, [*of_team.traced], [*of_count.traced]) == (("membership",), ["membership"], [])
    assert given(rig, "alice") == {"team:1", "user:alice", "many:1"}
    before = len(changes(rig))
    renamed.sql("insert into {table} ({id}, {user_id}, {team_id}) values ('m2', 'alice', '2')", "membership")
    rig.drain()
    renamed.sql("delete from {table} where {id} = 'm'", "membership")
    rig.drain()
    assert changes(rig)[before:] == [
        ("alice", ["many:2", "team:2"], ["many:1"]),
        ("alice", ["many:1"], ["many:2", "team:1"]),
    ]
    assert not rig.sql("select from anabranch.audiences_missed")


def test_a_query_goes_on_where_one_of_its_tables_is_synced_no_longer(rig: ResolverRig) -> None:
    both = "select 'job:' || j.id from job j join membership m on m.team_id = j.team_id where m.user_id = :principal"
    set_audience_rules(rig.conn, rig.name, {**RULES, "memberships": [both]})
    alice = rig.node("alice", "alice", ["team:1"])
    alice.insert("job", {"id": "1", "team_id": "1", "title": "one"})
    rig.drain()
    remove_table(rig.conn, rig.name, "job")
    rig.sql("insert into app.membership values ('m', 'alice', '1')")
    rig.drain()
    assert changes(rig) == [("alice", ["job:1"], [])]
