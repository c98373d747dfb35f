"""A membership query is judged by Postgres: one SELECT of one text column over synced tables."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from anabranch.store.audiences.affected import ChangedRows, affected
from anabranch.store.audiences.principals import evaluate, learn
from anabranch.store.audiences.queries import PRINCIPAL, PRINCIPALS, for_principals
from anabranch.store.audiences.query_judging import judge_query
from anabranch.store.audiences.rules import AudienceRules, Membership, SetRules
from anabranch.store.audiences.set_rules import set_audience_rules
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.catalog.refusals import TableRefusal
from anabranch.store.catalog.registration import add_table
from anabranch.store.session.engine import Session
from anabranch.store.session.steps import run

M = "from membership where user_id = :principal"
TAKEN = [
    (f"select 'team:' || team_id {M}", "membership", "membership"),
    (f"select 'team:' || team_id {M};", "membership", "membership"),
    (f"select distinct 'team:' || team_id {M} order by 1 -- those of it", "membership", "membership"),
    ("select 'user:' || :principal", "", ""),
    # Over changed rows nothing of the application's but tables is found by its name alone.
    (f"select team_id {M} and null::job is null", "membership", ""),
    ("select 'everyone'", "", ""),
    ("select ':principal' || $$:principal$$ || \":principal\" from (select 'a' as \":principal\") s", "", ""),
    ("select 'team:' || team_id from app.membership where user_id = :principal", "membership", ""),
    (
        "select 'job:' || j.id from job j join membership m on m.team_id = j.team_id where m.user_id = :principal",
        "job membership", "job membership",
    ),
    (
        "select 'job:' || id from job where exists (select from membership m"
        " where m.team_id = job.team_id and m.user_id = :principal)",
        "job membership", "job membership",
    ),
    (f"select 'a:' || id from job where team_id in (select team_id {M})", "job membership", "job membership"),
    (f"select 'a:' || team_id {M} union select 'user:' || :principal", "membership", "membership"),
    (f"with mine as (select team_id {M}) select 'a:' || team_id from mine", "membership", "membership"),
    (f"select 'a:' || team_id {M} group by team_id", "membership", "membership"),
    (f"select format('%s:%I', 'a', team_id) {M} and team_id like 't%'", "membership", "membership"),
    # More rows may give less, or one row changes what others give.
    (f"select 'n:' || count(*) {M}", "membership", ""),
    (f"select 'a:' || team_id {M} limit 1", "membership", ""),
    (f"select distinct on (user_id) team_id {M} order by user_id, team_id", "membership", ""),
    (f"select 'a:' || id from job where team_id not in (select team_id {M})", "job membership", ""),
    (
        "select 'a:' || id from job where not exists"
        " (select from membership m where m.team_id = job.team_id and user_id = :principal)",
        "job membership", "",
    ),
    (f"select 'a:' || id from job except select 'a:' || team_id {M}", "job membership", ""),
    (
        "select 'a:' || coalesce(j.id, '') from membership m left join job j on j.team_id = m.team_id"
        " where m.user_id = :principal",
        "job membership", "",
    ),
    (
        "select 'a:' || o.user_id from membership m join membership o on o.team_id = m.team_id"
        " where m.user_id = :principal",
        "membership", "",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("query", "tables", "traced"), TAKEN, ids=[one[0] for one in TAKEN])
def test_a_query_is_taken_with_its_tables_and_those_that_are_traced(
    conn: Session, synced: Database, query: str, tables: str, traced: str
) -> None:
    found = judge_query(conn, synced, query)
    assert isinstance(found, Membership), found
    assert found.query == query.removesuffix(";")
    assert (found.tables, found.traced) == (tuple(tables.split()), frozenset(traced.split()))
    assert conn.execute("select count(*) from pg_class where relpersistence = 't'").fetchone() == (0,)


REFUSED = [
    ("delete from membership returning id", TableRefusal.MEMBERSHIP_QUERY, "syntax error"),
    ("with d as (delete from job returning id) select id from d", TableRefusal.MEMBERSHIP_QUERY, "data-modifying"),
    ("select 'a'; select 'b'", TableRefusal.MEMBERSHIP_QUERY, "multiple commands"),
    ("select 'a' as a, 'b' as b", TableRefusal.MEMBERSHIP_QUERY, "not one column"),
    ("select 1", TableRefusal.MEMBERSHIP_QUERY, "gives (integer)"),
    ("select array['a']", TableRefusal.MEMBERSHIP_QUERY, "gives (text[])"),
    ("select team_id from membership where user_id = :other", TableRefusal.MEMBERSHIP_QUERY, "syntax error"),
    ("select team_id from membership where user_id = $1", TableRefusal.MEMBERSHIP_QUERY, "parameter"),
    ("select team_id from nowhere", TableRefusal.MEMBERSHIP_QUERY, "nowhere"),
    ("select id from unsynced where user_id = :principal", TableRefusal.MEMBERSHIP_TABLE, '"app"."unsynced"'),
    ("select id from mine where user_id = :principal", TableRefusal.MEMBERSHIP_TABLE, 'reads view "app"."mine"'),
    ("select id from kept", TableRefusal.MEMBERSHIP_TABLE, '"app"."kept"'),
    ("select rolname::text from pg_authid", TableRefusal.MEMBERSHIP_TABLE, "pg_authid"),
    ("select 'r' || random()", TableRefusal.MEMBERSHIP_QUERY, "random, which is volatile"),
    ("select reads(:principal)", TableRefusal.MEMBERSHIP_QUERY, "reads, which is not the system's own"),
    ("select team_id &&& id from membership", TableRefusal.MEMBERSHIP_QUERY, "g, which is not the system's own"),
    ("select team_id::label from membership", TableRefusal.MEMBERSHIP_QUERY, "domain"),
    ("select team_id from membership where now() > '2020-01-01'", TableRefusal.MEMBERSHIP_QUERY, "function now"),
    ("select team_id from membership where current_date > '2020-01-01'", TableRefusal.MEMBERSHIP_QUERY, "the time"),
    ("select current_setting('a.b')", TableRefusal.MEMBERSHIP_QUERY, "current_setting"),
    ("select 'a:' || current_user", TableRefusal.MEMBERSHIP_QUERY, "the session"),
    ("select team_id from membership for update", TableRefusal.MEMBERSHIP_QUERY, "locks rows"),
    ("select 'a:' || n from job where n = :principal::int", TableRefusal.MEMBERSHIP_QUERY, "invalid input syntax"),
    ("", TableRefusal.MEMBERSHIP_QUERY, "syntax error"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "reason", "text"), REFUSED, ids=[one[0] for one in REFUSED])
def test_a_query_is_refused_with_the_reason(
    conn: Session, synced: Database, query: str, reason: TableRefusal, text: str
) -> None:
    conn.execute(
        "create view app.mine as select * from app.membership; create domain app.label as text check (value <> 'x');"
        "create function app.g(text, text) returns text immutable language sql as $$ select $1 $$;"
        "create operator app.&&& (leftarg = text, rightarg = text, function = app.g);"
        "create materialized view app.kept as select * from app.membership;"
        "create function app.reads(text) returns text stable language sql as"
        " $$ select id from app.unsynced where user_id = $1 $$"
    )
    found = judge_query(conn, synced, query)
    assert isinstance(found, list)
    assert reason in [one.reason for one in found]
    assert text in "; ".join(one.text for one in found)
    assert conn.execute("select 1").fetchone() == (1,)


def test_names_that_need_quotes_are_traced(conn: Session) -> None:
    conn.execute('create table app."Who ""is"" in" (id text primary key, "user" text, "Team" text)')
    add_table(conn, "d", 'Who "is" in')
    query = 'select "Team" from "Who ""is"" in" where "user" = :principal'
    found = judge_query(conn, load_database(conn, "d"), query)
    assert isinstance(found, Membership)
    assert (found.tables, found.traced) == (('Who "is" in',), frozenset({'Who "is" in'}))


def test_what_is_run_has_every_name_in_full(conn: Session, synced: Database) -> None:
    query = "select lower('team:' || team_id) from membership where user_id = :principal and team_id <> ':principal'"
    found = judge_query(conn, synced, query)
    assert isinstance(found, Membership)
    assert "FROM app.membership" in found.printed
    assert len(found.printed.split(":principal")) == 3
    # A function that fits better, made later by whoever owns the schema, is not taken.
    conn.execute(
        "insert into app.membership values ('1', 'alice', 'T1');"
        "create function app.lower(text) returns text language sql as $$ select 'everything' $$;"
        "create function public.lower(text) returns text language sql as $$ select 'everything' $$"
    )
    database = replace(synced, audience_rules=AudienceRules(SetRules({}, (found,))))
    with conn.transaction():
        conn.execute("set local search_path to app, public")
        assert run(conn, evaluate(database, ["alice"]))["alice"].read == {"team:t1"}
        assert conn.execute("show search_path").fetchone() == ("app, public",)


TRACED = [(query.removesuffix(";"), tables.split(), traced.split()) for query, tables, traced in TAKEN if traced]


def given(conn: Session, query: str, shadow: str = "") -> set[tuple[str, str]]:
    """Principal and audience, of some principals, as the query gives them now."""
    conn.execute("set search_path to app")
    rows = conn.execute(
        f"{shadow}select {PRINCIPAL}, given.audience from unnest('{{u0,u1,u2,u3}}'::text[]) as {PRINCIPALS} (principal)"
        f" cross join lateral ({for_principals(query)}\n) as given (audience)".encode()
    ).fetchall()
    conn.execute("set search_path to pg_catalog, pg_temp")
    return set(rows)


@pytest.mark.slow
@pytest.mark.parametrize(("query", "tables", "traced"), TRACED, ids=[one[0] for one in TRACED])
def test_a_changed_row_of_a_traced_table_tells_whom_it_concerns(
    conn: Session, synced: Database, query: str, tables: list[str], traced: list[str]
) -> None:
    """The query gives over the changed rows alone, as they were and as they are, all that a change gives or takes."""
    del synced, tables
    random = Random(query)
    concerned = 0
    for number in range(60):
        for table, change in [
            ("membership", f"('m{random.randrange(6)}', 'u{random.randrange(4)}', 't{random.randrange(3)}')"),
            ("job", f"('j{random.randrange(4)}', 't{random.randrange(3)}')"),
        ]:
            columns = "id, user_id, team_id" if table == "membership" else "id, team_id"
            before = given(conn, query)
            conn.execute(f"create temp table changed as select * from app.{table} limit 0".encode())
            conn.execute(
                f"with v ({columns}) as (values {change}), d as (delete from app.{table} t using v"
                " where t.id = v.id returning t.*) insert into changed select * from d".encode()
            )
            if random.random() < 0.7:
                conn.execute(
                    f"with n as (insert into app.{table} ({columns}) values {change} returning *)"
                    " insert into changed select * from n".encode()
                )
            moved = before ^ given(conn, query)
            if table in traced:
                shadow = f"with {table} as materialized (select * from pg_temp.changed) "
                assert moved <= given(conn, query, shadow), number
                concerned += len(moved)
            conn.execute("drop table changed")
    assert concerned


def test_a_function_that_somebody_makes_later_takes_no_part(conn: Session, synced: Database) -> None:
    """Postgres takes a function of just these types before the system's own that needs a cast."""
    query = "select 'team:' || j.team_id from job j where lower(j.code) = :principal"
    database = set_audience_rules(conn, "d", {"memberships": [query]})
    [membership] = database.audience_rules.memberships
    assert membership.traced == {"job"}
    conn.execute("insert into app.job (id, team_id, code) values ('1', 't1', 'BOB')")
    assert run(conn, learn(database, ["bob", "eve"], 1))["bob"].read == {"team:t1"}
    conn.execute(
        "create function app.lower(char) returns text language plpgsql as"
        " $$ begin raise 'run with the rights of the services'; end $$"
    )
    row = [
        None
        if column.name not in ("id", "team_id", "code")
        else {"id": "1", "team_id": "t1", "code": "BOB "}[column.name]
        for column in synced.tables["job"].columns
    ]
    changed = ChangedRows()
    changed.add("job", row, None)
    with conn.transaction():
        assert affected(conn, database, changed) == ["bob"]
    assert run(conn, evaluate(database, ["bob"]))["bob"].read == {"team:t1"}
