"""The changes that a batch's own statements cause (cascades, actions of foreign keys, triggers) are effects of that
batch."""

from __future__ import annotations

from typing import Any

from anabranch.merge import SERVER_NODE
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import change_pb2

LISTS = """
create table list (id text primary key, name text, touched bigint);
create table todo (id text primary key, list_id text references list (id) on delete cascade, title text);
create table pin (id text primary key, list_id text references list (id) on delete set null, label text)
"""
NAMES = {"list": None, "todo": None, "pin": None}
TOUCH = """;
create function touch() returns trigger language plpgsql as $f$ begin
    update app.list set touched = coalesce(touched, 0) + 1 where id = new.list_id;
    new.title := upper(new.title);
    return new;
end $f$;
create trigger touch before insert or update on todo for each row execute function touch()
"""


def log_of(rig: ResolverRig, batch_id: str) -> list[tuple[str, str, str]]:
    """Table, key and type of what a batch did, in its order."""
    return [
        (rig.database.tables_by_id[table].name, key, change_pb2.EffectType.Name(kind)[12:])
        for table, key, kind in rig.sql(
            "select table_id, key, type from anabranch.log where batch_id = %s order by ordinal", [batch_id]
        )
    ]


def by_server(rig: ResolverRig) -> int:
    """How many batches the server has."""
    [(count,)] = rig.sql("select count(*) from anabranch.batches where node_id = %s", [SERVER_NODE])
    return int(count)


def test_a_delete_that_cascades(make_rig: Any) -> None:
    rig = make_rig(LISTS, NAMES)
    rig.sql("insert into app.list values ('l', 'l', 0), ('m', 'm', 0)")
    rig.sql("insert into app.todo values ('t', 'l', 'milk'), ('u', 'm', 'eggs')")
    rig.sql("insert into app.pin values ('p', 'l', 'p')")
    rig.drain()
    node = rig.node("a")
    node.see()
    made = node.send(node.make(("delete", "list", [{"id": "l"}])))
    before = by_server(rig)
    rig.drain()
    assert log_of(rig, made)[0] == ("list", "l", "DELETE")
    assert sorted(log_of(rig, made)[1:]) == [("pin", "p", "UPDATE"), ("todo", "t", "DELETE")]
    assert by_server(rig) == before
    [(tombstone, last)] = rig.sql("select tombstone_batch, last_node from anabranch.row_versions where key = 't'")
    assert (tombstone, last) == (made, node.id)
    [(stamps,)] = rig.sql("select stamps from anabranch.row_versions where key = 'p'")
    assert stamps["list_id"][1:3] == [made, node.id]


def test_several_batches_in_a_group_each_have_what_they_caused(make_rig: Any) -> None:
    rig = make_rig(LISTS, NAMES)
    rig.sql("insert into app.list select 'l' || i, 'l', 0 from generate_series(1, 5) i")
    rig.sql("insert into app.todo select 't' || i, 'l' || i, 'milk' from generate_series(1, 5) i")
    rig.drain()
    nodes = [rig.node(str(i)) for i in range(1, 6)]
    made = {}
    for i, node in enumerate(nodes, 1):
        node.see()
        made[i] = node.send(node.make(("delete", "list", [{"id": f"l{i}"}])))
    rig.drain()
    for i in made:
        assert log_of(rig, made[i]) == [("list", f"l{i}", "DELETE"), ("todo", f"t{i}", "DELETE")]


def test_a_trigger_that_changes_another_row_and_its_own(make_rig: Any) -> None:
    rig = make_rig(LISTS + TOUCH, NAMES)
    node = rig.node("a")
    made = node.send(
        node.make(
            ("insert", "list", [{"id": "l", "name": "l", "touched": 0}, {"id": "m", "name": "m", "touched": 0}]),
            (
                "insert",
                "todo",
                [{"id": "t", "list_id": "l", "title": "milk"}, {"id": "u", "list_id": "m", "title": "x"}],
            ),
            ("insert", "pin", [{"id": "p", "list_id": "l", "label": "p"}]),
        )
    )
    rig.drain()
    assert rig.outcome(made) == ["APPLIED"] * 3
    assert rig.rows("list") == [("l", "l", 1), ("m", "m", 1)]
    assert rig.rows("todo", "title") == [("MILK",), ("X",)]
    assert sorted(log_of(rig, made)[5:]) == [("list", "l", "UPDATE"), ("list", "m", "UPDATE")]
    other = rig.node("b")
    other.see()
    gone = other.send(other.make(("delete", "list", [{"id": "l"}])))
    rig.drain()
    assert sorted(log_of(rig, gone)[1:]) == [("pin", "p", "UPDATE"), ("todo", "t", "DELETE")]


def test_an_after_trigger_that_changes_the_row_again(make_rig: Any) -> None:
    after = """;
    create function again() returns trigger language plpgsql as $f$ begin
        if new.title not like '%!' then update app.todo set title = title || '!' where id = new.id; end if;
        return null;
    end $f$;
    create trigger again after insert or update on todo for each row execute function again()
    """
    rig = make_rig("create table todo (id text primary key, title text)" + after, {"todo": None})
    node = rig.node("a")
    made = node.send(node.make(("insert", "todo", [{"id": "t", "title": "milk"}])))
    rig.drain()
    assert log_of(rig, made) == [("todo", "t", "INSERT"), ("todo", "t", "UPDATE")]
    rig.sql("update app.todo set title = 'eggs'")
    rig.sql("insert into app.todo values ('u', 'bread')")
    rig.drain()
    kinds = [kind for (kind,) in rig.sql("select type from anabranch.log where key = 'u' order by ordinal")]
    assert kinds == [int(change_pb2.EFFECT_TYPE_INSERT), int(change_pb2.EFFECT_TYPE_UPDATE)]
    last = rig.sql("select effect from anabranch.log where key = 't' order by position, batch_id, ordinal desc limit 9")
    shown = [change_pb2.Effect.FromString(effect).values[1].string_value for (effect,) in last]
    assert shown[-2:] == ["eggs!", "eggs"], "the trigger's change came after the statement's"


def test_a_trigger_that_takes_a_change_back(make_rig: Any) -> None:
    back = """;
    create function back() returns trigger language plpgsql as $f$ begin
        if new.n < 0 then update app.item set n = old.n where id = new.id; end if;
        return null;
    end $f$;
    create trigger back after update on item for each row execute function back()
    """
    rig = make_rig("create table item (id text primary key, n bigint)" + back, {"item": None})
    rig.sql("insert into app.item values ('i', 1)")
    rig.drain()
    rig.sql("update app.item set n = -5")
    rig.drain()
    shown = [
        change_pb2.Effect.FromString(effect).values[1].int64_value
        for (effect,) in rig.sql("select effect from anabranch.log order by position, batch_id, ordinal")
    ]
    assert shown == [1, -5, 1]
    node = rig.node("a")
    node.see()
    made = node.send(node.make(("update", "item", [{"id": "i", "n": -7}])))
    rig.drain()
    assert [kind for _, _, kind in log_of(rig, made)] == ["UPDATE", "UPDATE"]
    assert rig.rows("item") == [("i", 1)]


def test_a_batch_behind_a_cascade_of_its_group_meets_what_is_left(make_rig: Any) -> None:
    rig = make_rig(LISTS, NAMES)
    rig.sql("insert into app.list values ('l', 'l', 0)")
    rig.sql("insert into app.todo values ('t', 'l', 'milk')")
    rig.drain()
    first, second = rig.node("a"), rig.node("b")
    first.see()
    second.see()
    gone = first.send(first.make(("delete", "list", [{"id": "l"}])))
    late = second.send(second.make(("update", "todo", [{"id": "t", "title": "eggs"}])))
    rig.group()
    assert rig.outcome(gone) == ["APPLIED"]
    assert rig.outcome(late) == "ROW_DELETED"


def test_a_caused_change_waits_for_an_earlier_one_that_is_not_drained(make_rig: Any, monkeypatch: Any) -> None:
    """A cascade reaches a row that somebody changed after the group had drained."""
    from anabranch_conflict_resolver.group import attempt

    rig = make_rig(LISTS, NAMES)
    rig.sql("insert into app.list values ('l', 'l', 0)")
    rig.sql("insert into app.todo values ('t', 'l', 'milk')")
    rig.drain()
    node = rig.node("a")
    node.see()
    made = node.send(node.make(("delete", "list", [{"id": "l"}])))
    load = attempt._load
    loads: list[int] = []

    def and_then_somebody_writes(*arguments: Any) -> Any:
        view = load(*arguments)
        if not loads:
            rig.sql("update app.todo set title = 'eggs' where id = 't'")
        loads.append(1)
        return view

    monkeypatch.setattr(attempt, "_load", and_then_somebody_writes)
    rig.group()
    assert len(loads) > 1, "the group started again from the locks"
    assert rig.outcome(made) == ["APPLIED"]
    of_row = rig.sql("select node_id, type from anabranch.log where key = 't' order by position, batch_id, ordinal")
    assert of_row[1:] == [(SERVER_NODE, 2), (node.id, 3)]


def test_a_trigger_that_came_later_is_noticed(make_rig: Any) -> None:
    rig = make_rig(LISTS, NAMES)
    rig.sql("insert into app.list values ('l', 'l', 0), ('m', 'm', 0)")
    rig.drain()
    nodes = [rig.node("a"), rig.node("b")]
    for number, node in enumerate(nodes):
        node.send(node.make(("insert", "todo", [{"id": f"x{number}", "list_id": "l", "title": "x"}])))
    rig.drain()
    rig.sql("set search_path to app" + TOUCH)
    rig.sql("reset search_path")
    made = [
        node.send(node.make(("insert", "todo", [{"id": f"t{number}", "list_id": "lm"[number], "title": "x"}])))
        for number, node in enumerate(nodes)
    ]
    rig.drain()
    assert log_of(rig, made[0]) == [("todo", "t0", "INSERT"), ("list", "l", "UPDATE")]
    assert log_of(rig, made[1]) == [("todo", "t1", "INSERT"), ("list", "m", "UPDATE")]


def test_a_constraint_trigger_that_waits_belongs_to_its_batch(make_rig: Any) -> None:
    deferred = """;
    create function count_todo() returns trigger language plpgsql as $f$ begin
        update app.list set touched = coalesce(touched, 0) + 1 where id = new.list_id;
        return null;
    end $f$;
    create constraint trigger count_todo after insert on todo deferrable initially deferred
        for each row execute function count_todo()
    """
    rig = make_rig(LISTS + deferred, NAMES)
    rig.sql("insert into app.list values ('l', 'l', 0), ('m', 'm', 0)")
    rig.drain()
    nodes = [rig.node("a"), rig.node("b")]
    made = [
        node.send(node.make(("insert", "todo", [{"id": f"t{number}", "list_id": "lm"[number], "title": "x"}])))
        for number, node in enumerate(nodes)
    ]
    rig.drain()
    assert log_of(rig, made[0]) == [("todo", "t0", "INSERT"), ("list", "l", "UPDATE")]
    assert log_of(rig, made[1]) == [("todo", "t1", "INSERT"), ("list", "m", "UPDATE")]


def test_what_a_batch_causes_goes_before_what_one_with_a_higher_id_writes(make_rig: Any) -> None:
    rig = make_rig(LISTS, NAMES)
    rig.sql("insert into app.list values ('l', 'l', 0), ('hot', 'h', 0)")
    rig.sql("insert into app.todo values ('t', 'l', 'milk')")
    rig.drain()
    first, deleting, later = nodes = [rig.node(name) for name in "abc"]
    for node in nodes:
        node.see()
    first.update("list", {"id": "hot", "name": "one"})
    # Behind the hot row it would have its turn in a later wave than the batch below, which has a higher id.
    gone = deleting.write(("update", "list", [{"id": "hot", "name": "two"}]), ("delete", "list", [{"id": "l"}]))
    late = later.update("todo", {"id": "t", "title": "eggs"})
    rig.drain()
    assert log_of(rig, gone) == [("list", "hot", "UPDATE"), ("list", "l", "DELETE"), ("todo", "t", "DELETE")]
    assert rig.outcome(late) == "ROW_DELETED"
    assert log_of(rig, late) == []


def test_a_row_that_another_batch_of_the_group_has_caused_to_go_is_deleted_and_not_swallowed(make_rig: Any) -> None:
    rig = make_rig(LISTS, NAMES)
    rig.sql("insert into app.list values ('l', 'l', 0)")
    rig.sql("insert into app.todo values ('t', 'l', 'milk')")
    rig.drain()
    first, deleting, later = nodes = [rig.node(name) for name in "abc"]
    for node in nodes:
        node.see()
    # The row is hot: the last batch has its turn in the second wave, and the delete in the first.
    kept = first.update("todo", {"id": "t", "title": "eggs"})
    gone = deleting.delete("list", {"id": "l"})
    late = later.update("todo", {"id": "t", "title": "bread"})
    rig.drain()
    assert rig.outcome(kept) == ["APPLIED"]
    assert log_of(rig, gone) == [("list", "l", "DELETE"), ("todo", "t", "DELETE")]
    assert rig.outcome(late) == "ROW_DELETED"


def test_a_batch_is_not_overtaken_by_what_one_with_a_higher_id_causes(make_rig: Any) -> None:
    rig = make_rig(LISTS, NAMES)
    rig.sql("insert into app.list values ('l', 'l', 0)")
    rig.sql("insert into app.todo values ('t', 'l', 'milk')")
    rig.drain()
    first, second, deleting = nodes = [rig.node(name) for name in "abc"]
    for node in nodes:
        node.see()
    made = [node.update("todo", {"id": "t", "title": node.name}) for node in (first, second)]
    gone = deleting.delete("list", {"id": "l"})
    rig.drain()
    assert [rig.outcome(one) for one in made] == [["APPLIED"], ["OVERWROTE"]]
    assert log_of(rig, gone) == [("list", "l", "DELETE"), ("todo", "t", "DELETE")]


def test_the_same_where_the_group_is_searched_for_a_bad_batch(make_rig: Any) -> None:
    tag = "; create table tag (id text primary key, list_id text references list (id))"
    rig = make_rig(LISTS + tag, {**NAMES, "tag": None})
    rig.sql("insert into app.list values ('l', 'l', 0)")
    rig.sql("insert into app.todo values ('t', 'l', 'milk')")
    rig.sql("insert into app.tag values ('g', 'l')")
    rig.drain()
    deleting, later, bad = nodes = [rig.node(name) for name in "abc"]
    for node in nodes:
        node.see()
    gone = deleting.write(("delete", "tag", [{"id": "g"}]), ("delete", "list", [{"id": "l"}]))
    late = later.update("todo", {"id": "t", "title": "eggs"})
    refused = bad.insert("tag", {"id": "h", "list_id": "nowhere"})
    rig.drain()
    assert rig.outcome(refused) == "CONSTRAINT"
    assert ("todo", "t", "DELETE") in log_of(rig, gone)
    assert rig.outcome(late) == "ROW_DELETED"


def test_whose_write_a_cascade_overtakes_is_kept_where_the_rules_ask_for_it(make_rig: Any) -> None:
    rig = make_rig(LISTS, {**NAMES, "todo": {"delete": "wins"}})
    rig.sql("insert into app.list values ('l', 'l', 0)")
    rig.sql("insert into app.todo values ('t', 'l', 'milk')")
    rig.drain()
    writer, deleter = rig.node("a"), rig.node("b")
    writer.see()
    late = writer.make(("delete", "todo", [{"id": "t"}]))
    writer.update("todo", {"id": "t", "title": "eggs"})
    rig.drain()
    deleter.see()
    gone = deleter.delete("list", {"id": "l"})
    rig.drain()
    assert log_of(rig, gone) == [("list", "l", "DELETE"), ("todo", "t", "DELETE")]
    # A step in between of what its own node wrote later, and not a delete of a row that others had deleted.
    writer.send(late)
    rig.drain()
    assert rig.outcome(late.id) == ["SUPERSEDED"]
