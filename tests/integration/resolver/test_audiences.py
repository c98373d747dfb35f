"""Rows of restricted tables are written by those who may; groups record whom rows are for."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.integration.resolver.audiences import AUDIENCES, NAMES, OWN, RULES, TABLES, changes, shown

from anabranch.runtime import metrics
from anabranch.store.audiences import row_audiences
from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.log.conflicts import WantedConflicts, page
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import change_pb2
from anabranch_conflict_resolver.group import cache

INSERT, UPDATE, DELETE = 1, 2, 3


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    """The rig of ``audiences``, whose batches wait for unknown rows for a moment only."""
    made: ResolverRig = make_rig(TABLES, NAMES, policy={"park_ms": 0}, audiences=AUDIENCES, rules=RULES)
    return made


def test_a_row_is_written_by_those_whom_it_is_for_before_and_after(rig: ResolverRig) -> None:
    a, c = rig.node("a", "alice", ["team:1"]), rig.node("c", "carol", ["team:1", "team:2"])
    mine = a.insert("job", {"id": "1", "team_id": "1", "title": "one"})
    other = a.insert("job", {"id": "2", "team_id": "2", "title": "not mine"})
    nobodys = a.insert("job", {"id": "3", "team_id": None, "title": "nobody's"})
    open_one = a.insert("open_to_all", {"id": "1", "title": "for all"})
    rig.drain()
    assert [rig.outcome(one) for one in (mine, other, nobodys, open_one)] == [
        ["APPLIED"],
        "FORBIDDEN",
        "FORBIDDEN",
        ["APPLIED"],
    ]
    c.see()
    away = a.update("job", {"id": "1", "team_id": "2"})
    moved = c.update("job", {"id": "1", "team_id": "2"})
    rig.drain()
    assert (rig.outcome(away), rig.outcome(moved)) == ("FORBIDDEN", ["APPLIED"])
    assert shown(rig, "job") == [("1", INSERT, [], ["team:1"]), ("1", UPDATE, ["team:1"], ["team:2"])]
    assert rig.rows("job", "id", "team_id") == [("1", "2")]


def test_a_row_that_moves_is_logged_whole(rig: ResolverRig) -> None:
    c = rig.node("c", "carol", ["team:1", "team:2"])
    c.insert("job", {"id": "1", "team_id": "1", "title": "one", "note": "long standing"})
    c.update("job", {"id": "1", "title": "two"})
    rig.drain()
    c.update("job", {"id": "1", "team_id": "2"})
    rig.drain()
    rig.sql("update app.job set team_id = '1'")
    rig.drain()
    effects = [
        change_pb2.Effect.FromString(raw)
        for (raw,) in rig.sql(
            "select effect from anabranch.log where table_id = %s order by position, batch_id, ordinal",
            [rig.database.tables["job"].id],
        )
    ]
    assert [sorted(effect.columns) for effect in effects[1:]] == [
        ["id", "title"],
        ["id", "note", "team_id", "title"],
        ["id", "note", "team_id", "title"],
    ]


def test_what_is_not_seen_is_as_if_it_had_never_been(rig: ResolverRig) -> None:
    c = rig.node("c", "carol", ["team:1", "team:2"])
    c.insert("job", {"id": "1", "team_id": "2", "title": "secret", "note": "unique secret"})
    c.insert("job", {"id": "2", "team_id": "2", "title": "secret"})
    rig.drain()
    c.delete("job", {"id": "2"})
    rig.drain()
    a = rig.node("a", "alice", ["team:1"])
    a.see()
    sent = [
        a.update("job", {"id": "1", "title": "guess"}),
        a.update("job", {"id": "2", "title": "guess"}),
        a.update("job", {"id": "unknown", "title": "guess"}),
        a.delete("job", {"id": "1"}),
        a.delete("job", {"id": "unknown"}),
    ]
    over = a.insert("job", {"id": "1", "team_id": "1", "title": "over it"})
    same = a.insert("job", {"id": "3", "team_id": "1", "note": "unique secret"})
    rig.drain()
    assert {str(rig.outcome(one)) for one in sent} == {"ROW_NOT_FOUND"}
    assert (rig.outcome(over), rig.outcome(same)) == ("CONSTRAINT", "CONSTRAINT")
    for one in (*sent, over, same):
        verdict = rig.verdict(one)
        assert verdict is not None
        assert b"secret" not in verdict.SerializeToString().replace(b"unique secret", b"")
        assert not any(mutation.HasField("server_row") for mutation in verdict.mutations)
    assert rig.verdict(sent[0]).message == rig.verdict(sent[2]).message  # type: ignore[union-attr]


def test_a_deleted_row_is_gone_for_those_who_had_seen_it(rig: ResolverRig) -> None:
    c, a = rig.node("c", "carol", ["team:1"]), rig.node("a", "alice", ["team:1"])
    c.insert("job", {"id": "1", "team_id": "1", "title": "one"})
    rig.drain()
    a.see()
    c.delete("job", {"id": "1"})
    late = a.update("job", {"id": "1", "title": "late"})
    rig.drain()
    assert rig.outcome(late) == "ROW_DELETED"
    assert rig.sql("select audience from anabranch.row_versions where key = '1' and tombstone_batch is not null") == [
        (["team:1"],)
    ]


def test_who_reads_without_writing_is_refused_with_the_row_as_it_is(make_rig: Any) -> None:
    rules = {"claims": {"teams": "team"}, "write": {"claims": {"edits": "team"}}}
    rig: ResolverRig = make_rig(TABLES, NAMES, audiences=AUDIENCES, rules=rules)
    c, a = rig.node("c", "carol", ["team:1"]), rig.node("a", "alice", ["team:1"], [])
    c.insert("job", {"id": "1", "team_id": "1", "title": "one"})
    rig.drain()
    a.see()
    refused = a.update("job", {"id": "1", "title": "two"})
    rig.drain()
    assert rig.outcome(refused) == "FORBIDDEN"


@pytest.mark.slow
def test_a_trigger_that_moves_a_row_counts(make_rig: Any) -> None:
    trigger = """
    create function to_two() returns trigger language plpgsql as
        $$ begin if new.title = 'move' then new.team_id := '2'; end if; return new; end $$;
    create trigger to_two before insert or update on job for each row execute function to_two();
    """
    rig: ResolverRig = make_rig(TABLES + trigger, NAMES, audiences=AUDIENCES, rules=RULES)
    a, c = rig.node("a", "alice", ["team:1"]), rig.node("c", "carol", ["team:1", "team:2"])
    fine = a.insert("job", {"id": "0", "team_id": "1", "title": "stays"})
    forbidden = a.insert("job", {"id": "1", "team_id": "1", "title": "move"})
    allowed = c.insert("job", {"id": "2", "team_id": "1", "title": "move"})
    rig.drain()
    assert [rig.outcome(one) for one in (fine, forbidden, allowed)] == [["APPLIED"], "FORBIDDEN", ["APPLIED"]]
    assert shown(rig, "job") == [("0", INSERT, [], ["team:1"]), ("2", INSERT, [], ["team:2"])]


def test_a_column_that_postgres_computes_says_whom_a_row_is_for(make_rig: Any) -> None:
    tables = """
    create table job (
        id text primary key, n bigint, title text, team text generated always as ('team:' || n::text) stored
    );
    """
    rig: ResolverRig = make_rig(tables, {"job": None}, audiences={"job": "team"}, rules={"claims": {"teams": "team"}})
    a, c = rig.node("a", "alice", ["team:1"]), rig.node("c", "carol", ["team:1", "team:2"])
    mine = a.insert("job", {"id": "1", "n": 1, "title": "one"})
    other = a.insert("job", {"id": "2", "n": 2, "title": "two"})
    rig.drain()
    assert (rig.outcome(mine), rig.outcome(other)) == (["APPLIED"], "FORBIDDEN")
    c.see()
    renamed = a.update("job", {"id": "1", "title": "uno"})
    away = a.update("job", {"id": "1", "n": 2})
    moved = c.update("job", {"id": "1", "n": 2})
    rig.drain()
    assert [rig.outcome(one) for one in (renamed, away, moved)] == [["APPLIED"], "FORBIDDEN", ["MERGED"]]
    assert shown(rig, "job") == [
        ("1", INSERT, [], ["team:1"]),
        ("1", UPDATE, ["team:1"], ["team:1"]),
        ("1", UPDATE, ["team:1"], ["team:2"]),
    ]


def test_a_row_is_known_to_be_for_some_when_that_is_not_kept_any_more(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_audiences, "KEPT", 2)
    teams = [f"team:{number}" for number in range(9)]
    c = rig.node("c", "carol", teams)
    for number in range(4):
        c.insert("job", {"id": str(number), "team_id": str(number), "title": "before"})
    rig.drain()
    c.see()
    sent = [c.update("job", {"id": "0", "title": "after"})]
    sent += [c.update("job", {"id": str(number), "team_id": str(number + 4)}) for number in range(1, 3)]
    sent += [c.delete("job", {"id": "3"})]
    assert rig.group() == 4
    assert [rig.outcome(one) for one in sent] == [["APPLIED"]] * 4
    assert shown(rig, "job")[4:] == [
        ("0", UPDATE, ["team:0"], ["team:0"]),
        ("1", UPDATE, ["team:1"], ["team:5"]),
        ("2", UPDATE, ["team:2"], ["team:6"]),
        ("3", DELETE, ["team:3"], []),
    ]


def test_rows_of_several_audiences_count_under_each(rig: ResolverRig) -> None:
    a = rig.node("a", "alice", ["user:alice", "org:1", "org:2"])
    a.insert("note", {"id": "1", "owner": "alice", "org": "1", "body": "x"})
    a.insert("note", {"id": "2", "owner": "alice", "org": None, "body": "x"})
    rig.drain()
    a.update("note", {"id": "1", "org": "2"})
    rig.drain()
    rig.sql("update app.note set owner = 'bob', body = 'y' where id = '1'; delete from app.note where id = '2'")
    rig.drain()
    assert shown(rig, "note") == [
        ("1", INSERT, [], ["org:1", "user:alice"]),
        ("2", INSERT, [], ["user:alice"]),
        ("1", UPDATE, ["org:1", "user:alice"], ["org:2", "user:alice"]),
        ("1", UPDATE, ["org:2", "user:alice"], ["org:2", "user:bob"]),
        ("2", DELETE, ["user:alice"], []),
    ]


def test_a_membership_counts_from_the_group_that_has_it(rig: ResolverRig) -> None:
    a = rig.node("a", "alice")
    early = a.insert("job", {"id": "1", "team_id": "1"})
    rig.drain()
    assert rig.outcome(early) == "FORBIDDEN"
    rig.sql("insert into app.membership values ('m1', 'alice', '1'), ('m2', 'bob', '1')")
    made = a.insert("job", {"id": "2", "team_id": "1"})
    rig.drain()
    assert rig.outcome(made) == ["APPLIED"]
    queued = a.update("job", {"id": "2", "title": "still"})
    rig.sql("delete from app.membership where id = 'm1'")
    rig.drain()
    assert rig.outcome(queued) == "ROW_NOT_FOUND"
    assert changes(rig) == [("alice", ["team:1"], []), ("alice", [], ["team:1"])]
    assert rig.sql("select principal, memberships from anabranch.principals") == [("alice", ["user:alice"])]


def test_a_device_that_writes_a_membership_changes_sets_with_the_same_group(rig: ResolverRig) -> None:
    b = rig.node("b", "bob")
    b.insert("note", {"id": "0", "owner": "bob"})
    rig.drain()
    a = rig.node("a", "alice", ["user:bob"])
    a.insert("membership", {"id": "m", "user_id": "bob", "team_id": "9"})
    rig.drain()
    assert changes(rig) == [("bob", ["team:9"], [])]
    [(position,)] = rig.sql("select position from anabranch.audience_changes")
    assert position == rig.head


@pytest.mark.parametrize("traced", [True, False])
def test_only_those_whom_changed_rows_concern_are_evaluated(make_rig: Any, traced: bool) -> None:
    # A name with its schema can't be shadowed by the rows that changed.
    table = "membership" if traced else "app.membership"
    of_teams = f"select 'team:' || team_id from {table} where user_id = :principal"
    rules = {"memberships": [of_teams, OWN]}
    rig: ResolverRig = make_rig(TABLES, NAMES, audiences=AUDIENCES, rules=rules)
    for name in ("alice", "bob", "carol"):
        rig.node(name, name).insert("note", {"id": name, "owner": name})
    rig.drain()
    # The set that stands there of others shows whether they were evaluated.
    rig.sql("update anabranch.principals set memberships = '{stale}' where principal <> 'bob'")
    rig.sql("insert into app.membership values ('m', 'bob', '1')")
    rig.drain()
    found = dict(rig.sql("select principal, memberships from anabranch.principals"))
    assert found["bob"] == ["team:1", "user:bob"]
    assert (found["alice"] == ["stale"]) is traced


def test_of_two_joined_tables_both_may_change_at_once(make_rig: Any) -> None:
    tables = """
    create table member (id text primary key, user_id text, team_id text);
    create table room (id text primary key, team_id text);
    create table message (id text primary key, room_id text, body text);
    """
    query = "select 'room:' || r.id from member m join room r using (team_id) where m.user_id = :principal"
    names = {"member": None, "room": None, "message": None}
    audiences = {"message": "'room:' || room_id"}
    rig: ResolverRig = make_rig(tables, names, audiences=audiences, rules={"memberships": [query]})
    a = rig.node("a", "alice")
    a.insert("message", {"id": "0", "room_id": "none"})
    rig.drain()
    rig.sql("insert into app.member values ('m', 'alice', '1'); insert into app.room values ('r', '1')")
    rig.drain()
    rig.sql("begin; delete from app.member; delete from app.room; commit")
    rig.drain()
    assert changes(rig) == [("alice", ["room:r"], []), ("alice", [], ["room:r"])]


@pytest.mark.slow
def test_a_large_transaction_is_logged_with_whom_its_rows_are_for(rig: ResolverRig) -> None:
    a = rig.node("a", "alice")
    a.insert("note", {"id": "0", "owner": "alice"})
    rig.drain()
    rig.sql(
        "insert into app.membership "
        "select 'm' || i, case when i = 5000 then 'alice' else 'user' || i end, 't' || i % 7 "
        "from generate_series(1, 6000) i"
    )
    rig.drain()
    assert changes(rig) == [("alice", ["team:t2"], [])]
    rig.sql("update app.membership set user_id = 'alice' where id < 'm2'")
    rig.drain()
    assert [one[0] for one in changes(rig)] == ["alice", "alice"]
    rig.sql("delete from app.membership")
    rig.drain()
    assert rig.sql("select principal, memberships from anabranch.principals") == [("alice", ["user:alice"])]


def test_a_cascade_says_whom_its_rows_were_for(make_rig: Any) -> None:
    tables = """
    create table team (id text primary key);
    create table job (id text primary key, team_id text references team (id) on delete cascade);
    """
    audiences = {"job": "'team:' || team_id"}
    rules = {"claims": {"teams": "team"}}
    rig: ResolverRig = make_rig(tables, {"team": None, "job": None}, audiences=audiences, rules=rules)
    a = rig.node("a", "alice", ["team:1"])
    a.insert("team", {"id": "1"})
    a.insert("job", {"id": "j", "team_id": "1"})
    rig.drain()
    gone = a.delete("team", {"id": "1"})
    rig.drain()
    assert rig.outcome(gone) == ["APPLIED"]
    assert shown(rig, "job") == [("j", INSERT, [], ["team:1"]), ("j", DELETE, ["team:1"], [])]


def test_a_value_that_lost_says_whom_its_row_was_for(rig: ResolverRig) -> None:
    a, b = rig.node("a", "alice", ["team:1", "team:2"]), rig.node("b", "bob", ["team:1", "team:2"])
    a.insert("job", {"id": "1", "team_id": "1", "title": "first"})
    rig.drain()
    b.see()
    a.see()
    a.update("job", {"id": "1", "title": "of a"})
    b.update("job", {"id": "1", "title": "of b", "team_id": "2"})
    rig.drain()
    found = rig.sql("select column_name, audience_before, audience_after from anabranch.conflicts")
    assert found == [("title", ["team:1"], ["team:2"])]


def test_values_that_lost_are_listed_for_those_who_had_seen_them(rig: ResolverRig) -> None:
    a, b = rig.node("a", "alice", ["team:1"]), rig.node("b", "bob", ["team:1"])
    rig.node("l", "late").insert("note", {"id": "0", "owner": "late"})
    a.insert("job", {"id": "1", "team_id": "1", "title": "first"})
    rig.drain()
    a.see()
    b.see()
    a.update("job", {"id": "1", "title": "of a"})
    b.update("job", {"id": "1", "title": "of b"})
    rig.drain()

    def listed(principal: str, audiences: list[str], claimed: list[str]) -> int:
        wanted = WantedConflicts(
            rig.database.id,
            [rig.database.tables["job"].id],
            principal=principal,
            audiences=audiences,
            claimed=claimed,
            restricted=[rig.database.tables["job"].id],
        )
        return len(page(rig.conn, wanted, None, items=10, max_bytes=10_000).lost)

    assert listed("bob", ["team:1"], ["team:1"]) == 1
    assert listed("bob", ["team:2"], ["team:2"]) == 0
    rig.sql("insert into app.membership values ('m', 'late', '1')")
    rig.drain()
    # A principal that comes later sees the row, and not what was in it before.
    assert listed("late", ["team:1"], []) == 0
    b.see()
    a.update("job", {"id": "1", "title": "of a again"})
    rig.drain()
    assert (listed("late", ["team:1"], []), listed("bob", ["team:1"], ["team:1"])) == (1, 2)
    rig.sql("delete from app.membership")
    rig.drain()
    assert listed("late", [], []) == 0
    rig.sql("insert into app.membership values ('m', 'late', '1')")
    rig.drain()
    assert listed("late", ["team:1"], []) == 1


def test_a_query_that_fails_holds_up_nobody(rig: ResolverRig, capsys: pytest.CaptureFixture[str]) -> None:
    known, new = rig.node("a", "alice", ["team:1"]), rig.node("n", "new", ["team:1"])
    known.insert("note", {"id": "1", "owner": "alice"})
    rig.drain()
    # Division by zero for every principal: the query was fine for the rows that were there.
    query = "select 'team:' || (1 / (length(team_id) - 3)) from membership where user_id = :principal"
    set_audience_rules(rig.conn, rig.name, {**RULES, "memberships": [query, OWN]})
    rig.sql("insert into app.membership values ('m', 'alice', 'one'), ('n', 'new', 'one')")
    sent = [known.insert("note", {"id": "2", "owner": "alice"}), known.insert("open_to_all", {"id": "1"})]
    sent += [new.insert("note", {"id": "3", "owner": "new"}), new.insert("job", {"id": "1", "team_id": "1"})]
    rig.drain()
    # A set that was known counts on, and so do claims; nobody has what the query would have given.
    assert [rig.outcome(one) for one in sent] == [["APPLIED"], ["APPLIED"], "FORBIDDEN", ["APPLIED"]]
    assert "a membership query fails" in capsys.readouterr().out
    assert metrics._totals["anabranch_membership_query_failures"][(rig.name,)] >= 1
    set_audience_rules(rig.conn, rig.name, RULES)
    made = new.insert("note", {"id": "4", "owner": "new"})
    rig.drain()
    assert rig.outcome(made) == ["APPLIED"]


def test_what_a_failing_query_missed_counts_once_its_rows_are_mended(rig: ResolverRig) -> None:
    query = "select 'team:' || (10 / (length(team_id) - 3)) from membership where user_id = :principal"
    set_audience_rules(rig.conn, rig.name, {**RULES, "memberships": [query]})
    rig.sql("insert into app.membership values ('m', 'alice', '1'), ('n', 'bob', '1')")
    for name in ("alice", "bob"):
        rig.node(name[0], name, ["team:x"]).insert("note", {"id": name, "owner": name})
    rig.drain()

    def given(principal: str) -> list[str]:
        [(found,)] = rig.conn.execute("select memberships from anabranch.principals where principal = %s", (principal,))
        return list(found)

    assert (given("alice"), given("bob")) == (["team:-5"], ["team:-5"])
    # Alice is removed by the group whose other row lets the query fail.
    rig.sql("delete from app.membership where id = 'm'; insert into app.membership values ('x', 'bob', 'one')")
    rig.drain()
    assert given("alice") == ["team:-5"]
    rig.sql("delete from app.membership where id = 'x'")
    rig.drain()
    assert (given("alice"), given("bob")) == ([], ["team:-5"])
    # From then on only those are looked at whom a group concerns.
    assert rig.conn.execute("select count(*) from anabranch.audiences_missed").fetchone() == (0,)


@pytest.mark.slow
def test_a_query_that_fails_for_one_holds_up_no_revocation_of_another(rig: ResolverRig) -> None:
    rig.sql("create index on app.membership (user_id)")
    query = "select 'team:' || (10 / (length(team_id) - 3)) from membership where user_id = :principal"
    set_audience_rules(rig.conn, rig.name, {**RULES, "memberships": [query]})
    rig.sql("insert into app.membership select 'u' || i, 'user' || i, '1' from generate_series(1, 2000) i")
    rig.sql("insert into app.membership values ('m', 'alice', '1'), ('n', 'bob', '1')")
    rig.sql("analyze app.membership")
    for name in ("alice", "bob"):
        rig.node(name[0], name, ["team:x"]).insert("note", {"id": name, "owner": name})
    rig.drain()
    rig.sql("insert into app.membership values ('x', 'bob', 'one')")
    rig.drain()
    rig.sql("delete from app.membership where id = 'm'")
    rig.drain()
    [(alice, bob)] = rig.conn.execute(
        "select (select memberships from anabranch.principals where principal = 'alice'),"
        " (select memberships from anabranch.principals where principal = 'bob')"
    )
    assert (alice, bob) == ([], ["team:-5"])


def test_one_who_may_not_write_a_row_does_not_learn_whether_its_key_is_taken(make_rig: Any) -> None:
    """Where the audience's column is part of the key, nothing tells of a row that is not seen."""
    table = "create table ticket (id text, team_id text, title text, primary key (id, team_id))"
    audiences = {"ticket": "'team:' || team_id"}
    rig: ResolverRig = make_rig(table, {"ticket": None}, audiences=audiences, rules={"claims": {"teams": "team"}})
    rig.sql("insert into app.ticket values ('taken', '2', 'of others')")
    rig.drain()
    alice = rig.node("a", "alice", ["team:1"])
    sent = [alice.insert("ticket", {"id": one, "team_id": "2", "title": "x"}) for one in ("taken", "free")]
    mine = alice.insert("ticket", {"id": "taken", "team_id": "1", "title": "x"})
    rig.drain()
    assert [rig.outcome(one) for one in sent] == ["FORBIDDEN", "FORBIDDEN"]
    taken, free = (rig.verdict(one) for one in sent)
    assert taken is not None
    assert free is not None
    assert taken.message == free.message
    for verdict in (taken, free):
        verdict.ClearField("batch_id")
        verdict.mutations[0].ClearField("key")
    assert taken == free, "nothing else tells them apart"
    assert rig.outcome(mine) == ["APPLIED"]


def test_an_operator_that_somebody_makes_later_says_of_no_row_whose_it_is(make_rig: Any) -> None:
    """Of values that Postgres gives back, the expression is evaluated between the application's own statements, which
    find an operator of just these types before the system's that takes any."""
    table = (
        "create table ticket (id text primary key, teams text[], title text);"
        "create function with_all() returns trigger language plpgsql as"
        " $$ begin new.teams := array_append(new.teams, 'team:all'); return new; end $$;"
        "create trigger with_all before insert on ticket for each row execute function with_all()"
    )
    audiences = {"ticket": "teams || array['team:' || id]"}
    rig: ResolverRig = make_rig(table, {"ticket": None}, audiences=audiences, rules={"claims": {"teams": "team"}})
    rig.sql(
        "create function app.both(text[], text[]) returns text[] language plpgsql immutable as"
        " $$ begin raise 'run with the rights of the services'; end $$;"
        "create operator app.|| (function = app.both, leftarg = text[], rightarg = text[])"
    )
    alice = rig.node("a", "alice", ["team:mine"])
    sent = alice.insert("ticket", {"id": "1", "teams": ["team:mine"], "title": "x"})
    rig.drain()
    assert rig.outcome(sent) == ["APPLIED"]
    assert shown(rig, "ticket") == [("1", INSERT, [], ["team:1", "team:all", "team:mine"])]


def test_a_principal_that_retention_has_forgotten_is_learned_anew(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_LOOK_S", 0.0)
    rig.sql("insert into app.membership values ('m', 'alice', '1')")
    rig.drain()
    alice = rig.node("a", "alice", [])
    alice.insert("job", {"id": "1", "team_id": "1"})
    rig.drain()
    rig.sql("delete from anabranch.principals where principal = 'alice'")
    rig.sql("delete from app.membership where id = 'm'")
    rig.drain()
    late = alice.insert("job", {"id": "2", "team_id": "1"})
    rig.drain()
    assert rig.outcome(late) == "FORBIDDEN"


@pytest.mark.slow
def test_a_grant_among_ten_thousand_principals_costs_what_one_does(make_rig: Any) -> None:
    members = TABLES + (
        "create index on membership (user_id);"
        "insert into membership select 'm' || i, 'user' || i % 10000, i / 100 from generate_series(1, 100000) i;"
    )
    rig: ResolverRig = make_rig(members, NAMES, audiences=AUDIENCES, rules=RULES)
    rig.sql(
        "insert into anabranch.principals (database_id, principal, memberships, seen_ms) "
        "select %s, 'user' || i, array(select distinct 'team:' || team_id from app.membership "
        "where user_id = 'user' || i) || ('user:user' || i), 0 from generate_series(0, 9999) i",
        [rig.database.id],
    )
    rig.sql("analyze")
    rig.sql("insert into app.open_to_all values ('warm', '')")
    rig.drain()
    commit = rig.commit
    assert commit is not None

    def group_s(statement: str) -> float:
        rig.sql(statement)
        began = time.perf_counter()
        commit(rig.database.id, 100, 0)
        return time.perf_counter() - began

    plain = min(group_s(f"insert into app.open_to_all values ('{i}', '')") for i in range(10))
    granted = min(group_s(f"insert into app.membership values ('new{i}', 'user{i}', 'new')") for i in range(10))
    assert [(one[0], one[1]) for one in changes(rig)] == [(f"user{i}", ["team:new"]) for i in range(10)]
    # A look at every principal, or at every membership, takes a tenth of a second and more.
    assert granted < plain + 0.05, (plain, granted)
