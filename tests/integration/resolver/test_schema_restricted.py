"""Restricted tables that are altered: whom a row is for stays as it is, and so do the sums of audiences."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.resolver.altering import alter, lost, settle, told, versions
from tests.integration.resolver.audiences import AUDIENCES, NAMES, RULES, TABLES, shown

from anabranch.testkit.resolver_rig import ResolverRig


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, NAMES, audiences=AUDIENCES, rules=RULES)
    made.sql("insert into app.membership values ('m1', 'alice', 't1'), ('m2', 'bob', 't2')")
    made.sql("insert into app.job values ('1', 't1', 'one', 'a'), ('2', 't2', 'two', 'b'), ('3', null, 'three', 'c')")
    settle(made)
    return made


def test_values_are_told_to_whom_their_rows_are_for(rig: ResolverRig) -> None:
    before = len(shown(rig, "job"))
    alter(rig, "alter table job add column length integer generated always as (length(title)) stored")
    settle(rig)
    assert sorted(shown(rig, "job")[before:]) == [
        ("1", 2, ["team:t1"], ["team:t1"]),
        ("2", 2, ["team:t2"], ["team:t2"]),
        ("3", 2, [], []),
    ]


def test_a_row_of_the_old_shape_is_for_whom_it_was(rig: ResolverRig) -> None:
    before = len(shown(rig, "job"))
    alter(
        rig,
        "insert into job values ('4', 't1', 'four', 'd')",
        "update job set team_id = 't2' where id = '1'",
        "alter table job drop column note",
        "alter table job rename column title to subject",
        "update job set team_id = 't1' where id = '2'",
    )
    settle(rig)
    assert shown(rig, "job")[before:] == [
        ("4", 1, [], ["team:t1"]),
        ("1", 2, ["team:t1"], ["team:t2"]),
        ("2", 2, ["team:t2"], ["team:t1"]),
    ]


def test_a_lost_value_is_for_whom_the_row_is_for(rig: ResolverRig) -> None:
    a = rig.node("a", "alice", read=["team:t1"])
    a.see()
    made = a.make(("update", "job", [{"id": "1", "title": "offline", "note": "gone"}]))
    alter(rig, "alter table job drop column note")
    settle(rig)
    sent = a.send(made)
    settle(rig)
    assert rig.outcome(sent) == ["APPLIED"]
    assert lost(rig) == [("1", "note", "gone", 1)]
    whom = rig.sql("select audience_before, audience_after from anabranch.conflicts where cause = 1")
    assert whom == [(["team:t1"], ["team:t1"])]


def test_a_renamed_column_that_the_expression_reads_changes_nothing(rig: ResolverRig) -> None:
    alter(rig, "alter table job rename column team_id to team")
    settle(rig)
    rig.sql("update app.job set team = 't2' where id = '1'")
    a = rig.node("a", "bob", read=["team:t2"])
    a.see()
    sent = a.update("job", {"id": "2", "title": "by bob"})
    settle(rig)
    assert rig.outcome(sent) == ["APPLIED"]
    assert shown(rig, "job")[-2:] == [("1", 2, ["team:t1"], ["team:t2"]), ("2", 2, ["team:t2"], ["team:t2"])]


def test_an_expression_that_reads_a_column_which_is_gone_stops_its_table_alone(rig: ResolverRig, capsys: Any) -> None:
    head = rig.head
    alter(rig, "alter table job drop column team_id", "alter table open_to_all add column x text")
    assert rig.commit is not None
    for _ in range(5):
        rig.commit(rig.database.id, 1_000, 0)
    a = rig.node("a", "alice", read=["team:t1"])
    refused, applied = a.insert("job", {"id": "9", "title": "x"}), a.insert("open_to_all", {"id": "1", "x": "x"})
    for _ in range(5):
        rig.commit(rig.database.id, 1_000, 0)
    assert rig.outcome(refused) == "TABLE_CHANGED"
    assert rig.outcome(applied) == ["APPLIED"]
    assert [table for table, _, _, _ in told(rig, head)] == ["open_to_all"]
    assert len(versions(rig)) == 1


def test_a_membership_query_over_an_altered_table_is_asked_anew(rig: ResolverRig) -> None:
    """No row changes, and whom a query gives what may be others all the same."""
    known = "select memberships from anabranch.principals where principal = 'alice'"
    rig.node("a", "alice").insert("membership", {"id": "m3", "user_id": "alice", "team_id": "t3"})
    settle(rig)
    assert rig.sql(known) == [(["team:t1", "team:t3", "user:alice"],)]
    alter(rig, "alter table membership alter column team_id type varchar using 'x' || team_id")
    settle(rig)
    assert rig.sql(known) == [(["team:xt1", "team:xt3", "user:alice"],)]
    [(_, position)] = versions(rig)
    gained = rig.sql("select gained, lost from anabranch.audience_changes where position = %s", [position])
    assert gained == [(["team:xt1", "team:xt3"], ["team:t1", "team:t3"])]
