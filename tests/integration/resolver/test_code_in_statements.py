"""Wherever Postgres runs a function within our own statements, what that writes to synced tables is in the log, once,
as an effect of the batch that caused it."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import change_pb2

TABLES = """
create table counter (id text primary key, n bigint);
insert into counter values ('c', 0), ('d', 0);
create table unsynced (id bigint generated always as identity primary key);
create function onward() returns trigger language plpgsql as $f$ begin
    update app.counter set n = n + 1 where id = 'c'; return null; end $f$;
create trigger onward after insert on unsynced for each row execute function onward();
create table list (id text primary key, parent text references list (id) on delete cascade);
create table item (id text primary key, list_id text references list (id) on delete cascade);
insert into list values ('l', null), ('l2', 'l'), ('l3', 'l2');
insert into item values ('i', 'l'), ('i2', 'l3');
"""
DOC = "create table doc (id text primary key, title text{more});"
EFFECTS = {
    "another table": "update app.counter set n = n + 1 where id = 'c'",
    "the same table": "insert into app.doc (id, title) select 'made', 'x' where not exists "
    "(select from app.doc where id = 'made')",
    "a table with a trigger": "insert into app.unsynced default values",
    "truncate": "truncate app.counter",
    "a delete that cascades": "delete from app.list where id = 'l'",
    "there and back": "update app.counter set n = n + 1 where id = 'c'; "
    "update app.counter set n = n - 1 where id = 'c'; insert into app.counter values ('e', 1) "
    "on conflict (id) do update set n = counter.n + 1",
    "in a statement of its own": "with w as (update app.counter set n = n + 1 where id = 'c' returning n) "
    "insert into app.counter select 'w' || (select n from w), 1 on conflict do nothing",
}

ACT = """
create or replace function app.act() returns void language plpgsql as $f$ begin
    if coalesce(current_setting('app.within', true), '') <> '' then return; end if;
    perform set_config('app.within', 'yes', true);
    {effect};
    perform set_config('app.within', '', true);
end $f$;
"""
FUNCTIONS = """
create function ok(value text) returns boolean language plpgsql as $f$ begin perform app.act(); return true; end $f$;
create function same(value text) returns text language plpgsql immutable as $f$
begin perform app.act(); return value; end $f$;
create function given() returns text language sql volatile as $f$ select app.act(); select 'given' $f$;
"""
"""``same`` says that it is immutable, and is not: what it calls may write all the same."""

PLACES = {
    "column default": DOC.format(more=", extra text default given()"),
    "check of a column": DOC.format(more=" check (ok(title))"),
    "check of a table": DOC.format(more=", constraint counted check (ok(title) and id <> '')"),
    "default of a domain": "create domain word as text default given(); " + DOC.format(more=", extra word"),
    "check of a domain": "create domain word as text check (ok(value)); "
    "create table doc (id text primary key, title word);",
    "check of a key's domain": "create domain word as text check (ok(value)); "
    "create table doc (id word primary key, title text);",
    "check of an array's domain": "create domain word as text check (ok(value)); "
    + DOC.format(more=", extra word[] default array['w']::word[]"),
    "check of an attribute's domain": "create domain word as text check (ok(value)); create type pair as (a word); "
    + DOC.format(more=", extra pair default row('x')::pair"),
    "check of a domain over a domain": "create domain inner_word as text check (ok(value)); "
    "create domain word as inner_word; create table doc (id text primary key, title word);",
    "generated column": DOC.format(more=", extra text generated always as (same(title)) stored"),
    "index expression": DOC.format(more="") + "create index on doc (same(title));",
    "index predicate": DOC.format(more="") + "create index on doc (title) where same(title) = 'one';",
    "exclusion": DOC.format(more=", exclude using btree (same(id) with =)"),
    "condition of a trigger": DOC.format(more="")
    + "create function nothing() returns trigger language plpgsql as $f$ begin return new; end $f$;"
    "create trigger asked before insert or update on doc for each row when (ok(new.title)) execute function nothing();",
    "condition of an after trigger": DOC.format(more="")
    + "create function nothing() returns trigger language plpgsql as $f$ begin return new; end $f$;"
    "create trigger asked after insert or update on doc for each row when (ok(new.title)) execute function nothing();",
    "row trigger": DOC.format(more="")
    + "create function acts() returns trigger language plpgsql as $f$ begin perform app.act(); return new; end $f$;"
    "create trigger acts before insert or update on doc for each row execute function acts();",
    "statement trigger": DOC.format(more="")
    + "create function acts() returns trigger language plpgsql as $f$ begin perform app.act(); return null; end $f$;"
    "create trigger acts after insert or update on doc for each statement execute function acts();",
    "deferred constraint trigger": DOC.format(more="")
    + "create function acts() returns trigger language plpgsql as $f$ begin perform app.act(); return null; end $f$;"
    "create constraint trigger acts after insert or update on doc deferrable initially deferred "
    "for each row execute function acts();",
    "cast of a default": DOC.format(more="")
    + "create type boxed as (t text); create function boxed(value text) returns boxed language plpgsql as $f$ "
    "begin perform app.act(); return row(value)::app.boxed; end $f$; "
    "create cast (text as boxed) with function boxed(text) as assignment; "
    "alter table doc add extra boxed; alter table doc alter extra set default given()::boxed;",
    "comparison of a user's operator": DOC.format(more="")
    + "create function alike(a text, b text) returns boolean language plpgsql as $f$ "
    "begin perform app.act(); return true; end $f$; "
    "create operator === (leftarg = text, rightarg = text, function = alike); "
    "alter table doc add constraint like_it check (title operator(app.===) 'x');",
}
RESTORE = """
insert into app.counter values ('c', 0), ('d', 0) on conflict do nothing;
insert into app.list values ('l', null), ('l2', 'l'), ('l3', 'l2') on conflict do nothing;
insert into app.item values ('i', 'l'), ('i2', 'l3') on conflict do nothing
"""
EVERY_TIME = {"another table", "a table with a trigger", "there and back"}
"""Effects that change something each time, so that each batch has its own."""
NAMES = {"counter": None, "list": None, "item": None, "doc": None}


BY_SERVER = "select count(*) from anabranch.batches where node_id = 'server'"
BY_BATCH = "select count(*) from anabranch.log where batch_id = %s and (table_id, key) <> (%s, %s)"


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_what_a_function_writes_is_an_effect_of_the_batch(make_rig: Any, place: str) -> None:
    """The rig compares sums and tables after each group."""
    rig: ResolverRig = make_rig(TABLES + ACT.format(effect="null") + FUNCTIONS + place, NAMES)
    rig.drain()
    doc = rig.database.tables["doc"].id
    for number, (name, effect) in enumerate(EFFECTS.items()):
        rig.sql(ACT.format(effect=effect))
        rig.sql(RESTORE)
        rig.drain()
        by_server = rig.sql(BY_SERVER)
        nodes = [rig.node(f"{name} {i}") for i in range(3)]
        for node in nodes:
            node.see()
        keys = [f"{number} {i}" for i in range(3)]
        made = [node.insert("doc", {"id": key, "title": "one"}) for node, key in zip(nodes, keys, strict=True)]
        rig.drain()
        for node in nodes:
            node.see()
        changed = [
            node.send(node.make(("update", "doc", [{"id": key, "title": "two"}])))
            for node, key in zip(nodes, keys, strict=True)
        ]
        rig.drain()
        assert [rig.outcome(one) for one in made + changed] == [["APPLIED"]] * 6, name
        assert rig.sql("select count(*) from anabranch.captured") == [(0,)], name
        assert rig.sql(BY_SERVER) == by_server, f"{name}: what a batch caused is taken for somebody else's"
        of_batches = [rig.sql(BY_BATCH, [one, doc, key])[0][0] for one, key in zip(made, keys, strict=True)]
        if name in EVERY_TIME:
            assert all(of_batches), f"{name}: {of_batches}"
        else:
            assert sum(of_batches), name


def test_several_rows_and_batches_have_each_what_they_caused(make_rig: Any) -> None:
    """A number handed out by a default: each batch has its own step of the counter."""
    number = """
    create table counter (id text primary key, n bigint);
    insert into counter values ('c', 0);
    create function next_no() returns bigint language sql as
    $f$ update app.counter set n = n + 1 where id = 'c' returning n $f$;
    create table doc (id text primary key, no bigint default next_no());
    """
    rig: ResolverRig = make_rig(number, {"counter": None, "doc": None})
    rig.drain()
    nodes = [rig.node(str(i)) for i in range(5)]
    made = [node.send(node.make(("insert", "doc", [{"id": f"{node.name}-{i}"} for i in range(3)]))) for node in nodes]
    rig.drain()
    assert rig.rows("counter") == [("c", 15)]
    assert sorted(no for (no,) in rig.rows("doc", "no")) == list(range(1, 16))
    counter = rig.database.tables["counter"].id
    for place, batch_id in enumerate(made):
        found = rig.sql("select effect from anabranch.log where batch_id = %s and table_id = %s", [batch_id, counter])
        assert [change_pb2.Effect.FromString(raw).values[1].int64_value for (raw,) in found] == [3 * place + 3]


def test_a_refused_batch_leaves_nothing_of_what_it_caused(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        TABLES
        + ACT.format(effect="update app.counter set n = n + 1 where id = 'c'")
        + FUNCTIONS
        + DOC.format(more=" check (ok(title)), constraint short check (length(title) < 5)"),
        NAMES,
    )
    rig.drain()
    nodes = [rig.node(name) for name in "abcd"]
    titles = ["one", "too long", "two", "far too long"]
    made = [node.insert("doc", {"id": node.name, "title": title}) for node, title in zip(nodes, titles, strict=True)]
    rig.drain()
    assert [rig.outcome(one) for one in made] == [["APPLIED"], "CONSTRAINT", ["APPLIED"], "CONSTRAINT"]
    assert rig.rows("counter") == [("c", 2), ("d", 0)], "a check that writes is asked once for each row that stays"


def test_code_that_comes_later_is_noticed(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        TABLES + ACT.format(effect=EFFECTS["another table"]) + FUNCTIONS + DOC.format(more=""), NAMES
    )
    rig.drain()
    rig.node("a").insert("doc", {"id": "a", "title": "one"})
    rig.drain()
    rig.sql("alter table app.doc add constraint later check (app.ok(title)) not valid")
    for name in "bcd":
        rig.node(name).insert("doc", {"id": name, "title": "one"})
    rig.drain()
    assert rig.rows("counter")[0] == ("c", 3)


def test_direct_sql_has_its_nested_statements_captured_once(make_rig: Any) -> None:
    rig: ResolverRig = make_rig(
        TABLES
        + ACT.format(effect=EFFECTS["another table"])
        + FUNCTIONS
        + DOC.format(more=" check (ok(title)), extra text default given()"),
        NAMES,
    )
    rig.drain()
    counter = rig.database.tables["counter"].id
    rig.sql("insert into app.doc (id, title) values ('x', 'one'), ('y', 'two')")
    assert rig.sql("select count(*) from anabranch.captured where table_id = %s", [counter]) == [(4,)]
    rig.drain()
    assert rig.rows("counter")[0] == ("c", 4)
