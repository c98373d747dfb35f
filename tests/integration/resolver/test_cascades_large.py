"""A batch causes more than is held: it is logged piece by piece, and belongs to the batch all the same."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.merge import SERVER_NODE
from anabranch.runtime.errors import CallError
from anabranch.store.capture import captured
from anabranch.store.group.chain import next_link
from anabranch.store.inbox.claim import session_options
from anabranch.store.log.seal import EMPTY_CHAIN
from anabranch.testkit.oracle import read_server, replay
from anabranch.testkit.resolver_rig import Made, ResolverRig, RigNode
from anabranch.v1 import batch_pb2, change_pb2, errors_pb2, resolver_pb2
from anabranch_conflict_resolver.captured import pieces
from anabranch_conflict_resolver.explain import DryRuns
from anabranch_conflict_resolver.functions.child import Functions
from anabranch_conflict_resolver.group import attempt
from anabranch_conflict_resolver.loop.seal_keys import SealKeys
from anabranch_conflict_resolver.loop.sessions import Sessions
from anabranch_conflict_resolver.loop.writers import Writers
from anabranch_conflict_resolver.question import Question
from anabranch_conflict_resolver.side_effects import cascades, large

TABLES = """
create table list (id text primary key, name text, touched bigint);
create table todo (id text primary key, list_id text references list (id) on delete cascade, title text);
create table note (id text primary key, todo_id text references todo (id) on delete cascade, body text);
create table pin (id text primary key, note_id text references note (id) on delete set null, label text)
"""
NAMES: dict[str, Any] = {"list": None, "todo": None, "note": None, "pin": None}
COUNTING = """;
create function count_down() returns trigger language plpgsql as $f$ begin
    update app.list set touched = coalesce(touched, 0) + 1 where id = 'other';
    return old;
end $f$;
create trigger count_down after delete on note for each row execute function count_down()
"""
KINDS = {int(number): name[12:] for name, number in change_pb2.EffectType.items()}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little is held."""
    monkeypatch.setattr(cascades, "MOST_HELD", 10)
    monkeypatch.setattr(pieces, "PIECE_ROWS", 15)
    monkeypatch.setattr(pieces, "BUCKET_ROWS", 15)
    monkeypatch.setattr(large, "PIECE_ROWS", 7)


def check(rig: ResolverRig) -> None:
    """The log leads to the rows and to the chain, its ordinals have no gap, and nothing captured is left."""
    rig.check()
    server = read_server(rig.conn, rig.database)
    assert replay(server, {}) == server.rows
    assert rig.sql("select count(*) from anabranch.captured") == [(0,)]
    link = EMPTY_CHAIN
    for position, chain, changes in rig.sql("select position, chain, changes from anabranch.groups order by 1"):
        batches: dict[str, list[bytes]] = {}
        for batch_id, ordinal, effect_hash in rig.sql(
            "select batch_id, ordinal, effect_hash from anabranch.log where position = %s order by 1, 2", [position]
        ):
            assert ordinal == len(batches.setdefault(batch_id, []))
            batches[batch_id].append(bytes(effect_hash))
        assert sum(map(len, batches.values())) == changes
        link = next_link(link, position, list(batches.items()))
        assert link == bytes(chain)
    versions = rig.sql(
        "select t.name, v.key from anabranch.row_versions v join anabranch.synced_tables t on t.id = v.table_id"
        " where v.tombstone_batch is null"
    )
    rows = {(table, row[0]) for table in NAMES for row in rig.rows(table, "id")}
    assert set(versions) <= rows, "a row that is gone has a tombstone"


def fill(rig: ResolverRig, todos: int = 40) -> None:
    """A list with so many todos, each with a note, each with a pin; and another one beside it."""
    rig.sql("insert into app.list values ('l', 'large', 0), ('other', 'other', 0)")
    rig.sql(f"insert into app.todo select 't' || i, 'l', 'milk' from generate_series(1, {todos}) i")
    rig.sql(f"insert into app.note select 'n' || i, 't' || i, 'text' from generate_series(1, {todos}) i")
    rig.sql(f"insert into app.pin select 'p' || i, 'n' || i, 'label' from generate_series(1, {todos}) i")
    rig.drain()


def filled(make_rig: Any) -> tuple[ResolverRig, RigNode]:
    """A rig so filled, and a node that has read all of it."""
    rig: ResolverRig = make_rig(TABLES, NAMES)
    fill(rig)
    node = rig.node("a")
    node.see()
    return rig, node


def log_of(rig: ResolverRig, batch_id: str) -> list[tuple[str, str, str]]:
    """Table, key and type of what a batch did, in its order."""
    return [
        (rig.database.tables_by_id[table].name, key, KINDS[kind])
        for table, key, kind in rig.sql(
            "select table_id, key, type from anabranch.log where batch_id = %s order by ordinal", [batch_id]
        )
    ]


@pytest.mark.parametrize("triggers", ["", COUNTING], ids=["cascades", "and a trigger that counts"])
def test_a_delete_that_cascades_three_deep_is_one_batch_of_one_group(make_rig: Any, triggers: str) -> None:
    rig = make_rig(TABLES + triggers, NAMES)
    fill(rig)
    node = rig.node("a")
    node.see()
    made = node.send(node.make(("delete", "list", [{"id": "l"}])))
    rig.group()
    assert rig.outcome(made) == ["APPLIED"]
    logged = log_of(rig, made)
    assert logged[0] == ("list", "l", "DELETE")
    expected = [("todo", f"t{i}", "DELETE") for i in range(1, 41)]
    expected += [("note", f"n{i}", "DELETE") for i in range(1, 41)]
    expected += [("pin", f"p{i}", "UPDATE") for i in range(1, 41)]
    expected += [("list", "other", "UPDATE")] if triggers else []
    assert sorted(logged[1:]) == sorted(expected), "each row has one effect, whatever was changed how often"
    assert rig.sql("select distinct position from anabranch.log where batch_id = %s", [made]) == [(rig.head,)]
    stamps = rig.sql("select stamps from anabranch.row_versions where key = 'p7'")[0][0]
    assert stamps["note_id"][1:3] == [made, node.id]
    check(rig)


def test_batches_beside_it_and_behind_it_meet_what_is_left(make_rig: Any) -> None:
    rig = make_rig(TABLES, NAMES)
    fill(rig)
    nodes = [rig.node(name) for name in "abcd"]
    for node in nodes:
        node.see()
    gone = nodes[0].delete("list", {"id": "l"})
    late = nodes[1].update("todo", {"id": "t7", "title": "eggs"})
    beside = nodes[2].update("list", {"id": "other", "name": "o"})
    bad = nodes[3].insert("todo", {"id": "x", "list_id": "nowhere", "title": "t"})
    rig.group()
    assert [rig.outcome(one) for one in (gone, late, beside, bad)] == [
        ["APPLIED"],
        "ROW_DELETED",
        ["APPLIED"],
        "CONSTRAINT",
    ]
    check(rig)


def test_a_batch_that_goes_on_after_what_it_caused(make_rig: Any) -> None:
    rig, node = filled(make_rig)
    made = node.write(
        ("update", "list", [{"id": "other", "name": "before"}]),
        ("delete", "list", [{"id": "l"}]),
        ("insert", "list", [{"id": "l", "name": "anew"}]),
        ("insert", "todo", [{"id": "new", "list_id": "l", "title": "anew"}]),
        ("delete", "list", [{"id": "other"}]),
    )
    rig.group()
    outcome = rig.outcome(made)
    logged = log_of(rig, made)
    assert outcome == ["APPLIED"] * 5
    assert [one for one in logged if one[1] in ("l", "new")] == [
        ("list", "l", "DELETE"),
        ("list", "l", "INSERT"),
        ("todo", "new", "INSERT"),
    ]
    assert logged.index(("pin", "p7", "UPDATE")) < logged.index(("list", "l", "INSERT"))
    assert (logged[0], logged[-1]) == (("list", "other", "UPDATE"), ("list", "other", "DELETE"))
    assert len(logged) == 125
    assert rig.rows("todo") == [("new", "l", "anew")]
    check(rig)


def test_who_changed_a_caused_row_before_stands_before_it(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, node = filled(make_rig)
    made = node.delete("list", {"id": "l"})
    loads = after_the_locks(monkeypatch, lambda: rig.sql("update app.todo set title = 'eggs' where id = 't7'"))
    rig.group()
    assert len(loads) == 1, "nothing was begun again"
    of_row = rig.sql("select position, node_id, type from anabranch.log where key = 't7' order by position, batch_id")
    assert of_row[1:] == [(rig.head, SERVER_NODE, 2), (rig.head, node.id, 3)]
    assert rig.outcome(made) == ["APPLIED"]
    check(rig)


def test_who_made_a_row_that_the_group_inserts_has_it_begin_again(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig(TABLES, NAMES)
    fill(rig)
    nodes = [rig.node("a"), rig.node("b")]
    nodes[0].see()
    gone = nodes[0].delete("list", {"id": "l"})
    new = nodes[1].insert("todo", {"id": "new", "list_id": "other", "title": "device"})

    def comes_and_goes() -> None:
        rig.sql("insert into app.todo values ('new', 'other', 'sql')")
        rig.sql("delete from app.todo where id = 'new'")

    loads = after_the_locks(monkeypatch, comes_and_goes)
    rig.group()
    assert len(loads) > 1
    assert (rig.outcome(gone), rig.outcome(new)) == (["APPLIED"], "ROW_DELETED")
    check(rig)


def test_too_much_of_others_has_the_group_begin_again(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascades, "MOST_ARRIVED", 5)
    rig, node = filled(make_rig)
    made = node.delete("list", {"id": "l"})
    loads = after_the_locks(
        monkeypatch, lambda: rig.sql("insert into app.list select 's' || i, 'sql', 0 from generate_series(1, 9) i")
    )
    rig.group()
    assert len(loads) > 1
    assert rig.outcome(made) == ["APPLIED"]
    check(rig)


def test_what_was_logged_of_a_batch_that_fails_later_is_undone(make_rig: Any) -> None:
    rig, node = filled(make_rig)
    bad = node.write(
        ("delete", "list", [{"id": "l"}]), ("insert", "todo", [{"id": "x", "list_id": "nowhere", "title": "t"}])
    )
    rig.group()
    assert rig.outcome(bad) == "CONSTRAINT"
    assert log_of(rig, bad) == []
    assert len(rig.rows("pin")) == 40
    check(rig)


def test_a_dry_run_says_what_it_cannot_show_and_tells_a_rejection_all_the_same(make_rig: Any) -> None:
    rig, node = filled(make_rig)
    nowhere = ("insert", "todo", [{"id": "x", "list_id": "nowhere", "title": "t"}])
    options = session_options(statement_timeout_ms=10_000, lock_timeout_ms=250, idle_timeout_ms=5_000)
    runs = DryRuns(Sessions(Writers(rig.url), options), Functions(1_000), SealKeys(rig.url))

    def explain(made: Made) -> resolver_pb2.ExplainResponse:
        envelope = batch_pb2.Envelope(payload=made.payload, basis=made.basis)
        return runs.explain(Question(rig.database.id, node.principal, node.id, envelope), rig.time_ms, 0)

    try:
        with pytest.raises(CallError) as told:
            explain(node.make(("delete", "list", [{"id": "l"}])))
        # It will be so however often it is asked.
        assert told.value.reason == errors_pb2.REASON_LIMIT_EXCEEDED
        rejected = explain(node.make(("delete", "list", [{"id": "l"}]), nowhere))
        assert rejected.verdict.reason == errors_pb2.REASON_CONSTRAINT
    finally:
        runs.close()
    check(rig)


@pytest.mark.parametrize("bytes_of_both", [1_000, 20_000])
def test_what_others_wrote_meanwhile_is_looked_at_by_its_bytes(
    make_rig: Any, monkeypatch: pytest.MonkeyPatch, bytes_of_both: int
) -> None:
    """Few changes of large rows are more than is held beside: the group begins again, and drains them first."""
    monkeypatch.setattr(captured, "MOST_BYTES", 10_000)
    rig, node = filled(make_rig)
    made = node.delete("list", {"id": "l"})
    sizes: list[int] = []
    real = captured.read_arrived

    def measured(*arguments: Any) -> Any:
        rows = real(*arguments)
        sizes.append(captured.size(rows))
        return rows

    monkeypatch.setattr(captured, "read_arrived", measured)
    insert = "insert into app.list select 's' || i, repeat('x', %s), 0 from generate_series(1, 10) i"
    loads = after_the_locks(monkeypatch, lambda: rig.sql(insert, [bytes_of_both // 10]))
    rig.group()
    rig.drain()
    assert (len(loads) > 1) == (bytes_of_both > 10_000)
    assert max(sizes) < 10_000 + 2_200
    assert rig.outcome(made) == ["APPLIED"]
    check(rig)


def after_the_locks(monkeypatch: pytest.MonkeyPatch, act: Any) -> list[int]:
    """Have something happen once, after a group has locked its rows and drained; how often it has loaded them."""
    load = attempt._load
    loads: list[int] = []

    def and_then(*arguments: Any) -> Any:
        view = load(*arguments)
        if not loads:
            act()
        loads.append(1)
        return view

    monkeypatch.setattr(attempt, "_load", and_then)
    return loads
