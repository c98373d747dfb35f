"""Principals: their memberships at the head, and at earlier positions."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.store.audiences import principals
from anabranch.store.audiences.principals import Change, Given, current, evaluate, learn
from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.audiences.viewing import memberships_now, read_changes, read_memberships
from anabranch.store.catalog.databases import Database
from anabranch.store.session.engine import Session, aconnect
from anabranch.store.session.steps import arun, run

TEAMS = "select 'team:' || team_id from membership where user_id = :principal"
RULES = {"memberships": [TEAMS, "select 'user:' || :principal"]}


def given(*audiences: str) -> Given:
    return Given(frozenset(audiences), frozenset(audiences))


@pytest.fixture
def ruled(conn: Session, synced: Database) -> Database:
    del synced
    conn.execute(
        "insert into app.membership values ('1', 'alice', 't1'), ('2', 'alice', 't2'), ('3', 'bob', 't1'),"
        " ('4', 'bob', null), ('5', 'carol', repeat('x', 1000)), ('6', 'alice', 't1')"
    )
    return set_audience_rules(conn, "d", RULES)


def test_queries_are_run_for_some_principals_at_once(conn: Session, ruled: Database) -> None:
    found = run(conn, evaluate(ruled, ["alice", "bob", "carol", 'it\'s "dave" % :principal', "alice"]))
    assert found == {
        "alice": given("user:alice", "team:t1", "team:t2"),
        "bob": given("user:bob", "team:t1"),
        "carol": given("user:carol"),
        'it\'s "dave" % :principal': given('user:it\'s "dave" % :principal'),
    }
    assert conn.execute("show search_path").fetchone() == ("pg_catalog,pg_temp",)
    assert run(conn, evaluate(ruled, [])) == {}


def test_the_search_path_is_put_back_in_a_transaction_of_the_callers(conn: Session, ruled: Database) -> None:
    with conn.transaction():
        conn.execute("set local search_path to app")
        run(conn, evaluate(ruled, ["alice"]))
        assert conn.execute("show search_path").fetchone() == ("app",)


def test_rules_for_writing_have_memberships_of_their_own(conn: Session, synced: Database) -> None:
    del synced
    conn.execute("insert into app.membership values ('1', 'alice', 't1')")
    database = set_audience_rules(conn, "d", {**RULES, "write": {"memberships": [TEAMS]}})
    found = run(conn, learn(database, ["alice"], 5))
    assert found == {"alice": Given(frozenset({"user:alice", "team:t1"}), frozenset({"team:t1"}))}
    assert run(conn, current(database.id, ["alice", "bob"])) == found
    nothing = set_audience_rules(conn, "d", {**RULES, "write": {}})
    assert run(conn, current(nothing.id, ["alice"]))["alice"].write == frozenset()
    as_read = set_audience_rules(conn, "d", RULES)
    assert run(conn, current(as_read.id, ["alice"])) == {"alice": given("user:alice", "team:t1")}


def test_a_principal_is_learned_once_and_kept(conn: Session, ruled: Database) -> None:
    assert run(conn, current(ruled.id, ["alice"])) == {}
    assert memberships_now(conn, ruled.id, "alice") is None
    learned = run(conn, learn(ruled, ["alice", "bob", "alice"], 77))
    assert learned == {"alice": given("user:alice", "team:t1", "team:t2"), "bob": given("user:bob", "team:t1")}
    conn.execute("delete from app.membership")
    assert run(conn, learn(ruled, ["alice", "carol"], 99)) == {
        "alice": learned["alice"],
        "carol": given("user:carol"),
    }
    seen = conn.execute("select principal, seen_ms from anabranch.principals order by 1").fetchall()
    assert seen == [("alice", 77), ("bob", 77), ("carol", 99)]


def test_one_that_is_learned_anew_has_none_of_its_changes_of_before(conn: Session, ruled: Database) -> None:
    """Retention forgets a principal, and not how groups have changed it: what came between was noted for nobody."""
    run(conn, learn(ruled, ["alice", "bob"], 1))
    conn.execute(
        "insert into anabranch.audience_changes values (%(db)s, 10, 'alice', '{team:t9}', '{}'),"
        " (%(db)s, 10, 'bob', '{team:t9}', '{}')",
        {"db": ruled.id},
    )
    conn.execute("delete from anabranch.principals where principal = 'alice'")
    run(conn, learn(ruled, ["alice", "bob"], 2))
    assert conn.execute("select principal from anabranch.audience_changes").fetchall() == [("bob",)]


def test_a_principal_is_not_learned_before_the_head(conn: Session, ruled: Database) -> None:
    """Also where the clock was set back: of changes behind that time all are known."""
    conn.execute(
        "insert into anabranch.groups (database_id, position, batches, chain, sums, changes, claimed)"
        " values (%s, 500, 1, %s, '{}', 0, true)",
        (ruled.id, bytes(16)),
    )
    run(conn, learn(ruled, ["alice"], 77))
    run(conn, learn(ruled, ["bob"], 600))
    seen = conn.execute("select principal, seen_ms from anabranch.principals order by 1").fetchall()
    assert seen == [("alice", 500), ("bob", 600)]


def test_without_membership_queries_nobody_is_kept(conn: Session, synced: Database) -> None:
    del synced
    database = set_audience_rules(conn, "d", {"claims": {"teams": "team"}})
    assert run(conn, learn(database, ["alice"], 1)) == {"alice": Given()}
    assert run(conn, evaluate(database, ["alice"])) == {"alice": Given()}
    assert conn.execute("select count(*) from anabranch.principals").fetchone() == (0,)


def test_earlier_memberships_are_those_of_the_head_with_later_changes_undone(
    conn: Session, ruled: Database, migrated_url: str
) -> None:
    run(conn, learn(ruled, ["alice", "bob"], 1))
    conn.execute(
        "insert into anabranch.audience_changes values (%(db)s, 10, 'alice', '{team:t2}', '{team:t0}'),"
        " (%(db)s, 20, 'alice', '{}', '{team:t3}'), (%(db)s, 30, 'alice', '{team:t1}', '{team:t2}'),"
        " (%(db)s, 40, 'alice', '{team:t2}', '{}'), (%(db)s, 20, 'bob', '{team:t1}', '{}')",
        {"db": ruled.id},
    )
    user = "user:alice"

    async def look() -> None:
        async with await aconnect(migrated_url, application_name="test", autocommit=True) as session:
            for position, expected in [
                (40, {user, "team:t1", "team:t2"}),
                (39, {user, "team:t1"}),
                (29, {user, "team:t2"}),
                (19, {user, "team:t2", "team:t3"}),
                (0, {user, "team:t0", "team:t3"}),
            ]:
                found = await read_memberships(session, ruled.id, "alice", position)
                assert found is not None
                assert found.audiences == expected, position
                assert found.at_head == {user, "team:t1", "team:t2"}
            assert await read_changes(session, ruled.id, 10, 30) == {
                20: {
                    "alice": Change(frozenset(), frozenset({"team:t3"})),
                    "bob": Change(frozenset({"team:t1"}), frozenset()),
                },
                30: {"alice": Change(frozenset({"team:t1"}), frozenset({"team:t2"}))},
            }

    asyncio.run(look())
    assert memberships_now(conn, ruled.id, "alice") == frozenset({user, "team:t1", "team:t2"})


def test_an_asynchronous_session_runs_the_same_steps(ruled: Database, migrated_url: str) -> None:
    async def steps() -> None:
        async with await aconnect(migrated_url, application_name="test", autocommit=True) as session:
            assert await arun(session, learn(ruled, ["bob"], 3)) == {"bob": given("user:bob", "team:t1")}
            assert await arun(session, current(ruled.id, ["bob"])) == {"bob": given("user:bob", "team:t1")}

    asyncio.run(steps())


def test_more_audiences_than_may_be_are_cut_in_their_order(
    conn: Session, ruled: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(principals, "MOST_GIVEN", 2)
    assert run(conn, evaluate(ruled, ["alice"])) == {"alice": given("team:t1", "team:t2")}
