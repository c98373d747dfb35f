"""Changes that others make by SQL enter the log with the group that finds them: in order, whole transactions, judged
like another node's."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.merge import SERVER_NODE
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.v1 import change_pb2

TODO = "create table todo (id text primary key, title text, done boolean)"


def log_of(rig: ResolverRig) -> list[tuple[Any, ...]]:
    """Node, key, type and changed columns of the log's rows, in its order."""
    return [
        ("server" if node == SERVER_NODE else "device", key, change_pb2.EffectType.Name(kind)[12:], changed)
        for node, key, kind, changed in rig.sql(
            "select node_id, key, type, changed from anabranch.log where database_id = %s"
            " order by position, batch_id, ordinal",
            [rig.database.id],
        )
    ]


def waiting(rig: ResolverRig) -> int:
    """How many captured rows wait."""
    [(count,)] = rig.sql("select count(*) from anabranch.captured")
    return int(count)


def test_a_transaction_is_one_batch_with_a_readable_origin(rig: ResolverRig) -> None:
    with rig.session() as somebody:
        somebody.execute("insert into app.todo values ('a', 'milk', false), ('b', 'eggs', false)")
        somebody.execute("update app.todo set done = true where id = 'a'")
        somebody.execute("delete from app.todo where id = 'b'")
        (xid,) = somebody.execute("select pg_current_xact_id()::text").fetchone() or ("",)
    rig.drain()
    assert log_of(rig) == [
        ("server", "a", "INSERT", []),
        ("server", "b", "INSERT", []),
        ("server", "a", "UPDATE", ["done"]),
        ("server", "b", "DELETE", []),
    ]
    [(batch_id, node, principal, status)] = rig.sql(
        "select batch_id, node_id, principal, status from anabranch.batches"
    )
    assert (node, principal, status) == ("server", "sql:postgres", 1)
    verdict = rig.verdict(batch_id)
    assert verdict is not None
    assert verdict.message == f"written by SQL: role postgres, application somebody-else, transaction {xid}"
    assert waiting(rig) == 0


def test_a_group_has_captured_changes_first_and_its_own_batches_after(rig: ResolverRig) -> None:
    node = rig.node("a")
    rig.sql("insert into app.todo values ('x', 'milk', false)")
    rig.drain()
    node.see()
    rig.sql("update app.todo set title = 'milk!' where id = 'x'")
    made = node.send(node.make(("update", "todo", [{"id": "x", "done": True}])))
    rig.drain()
    assert rig.outcome(made) == ["MERGED"]
    assert rig.rows("todo") == [("x", "milk!", True)]
    assert log_of(rig)[1:] == [("server", "x", "UPDATE", ["title"]), ("device", "x", "UPDATE", ["done"])]
    [(groups,)] = rig.sql("select count(*) from anabranch.groups")
    assert groups == 2


def test_a_stale_batch_loses_to_what_was_written_by_sql(rig: ResolverRig) -> None:
    node = rig.node("a")
    rig.sql("insert into app.todo values ('x', 'milk', false), ('y', 'eggs', false)")
    rig.drain()
    node.see()
    rig.sql("update app.todo set title = title || ' (backend)'")
    deleted = node.send(node.make(("delete", "todo", [{"id": "y"}])))
    overwrote = node.send(node.make(("update", "todo", [{"id": "x", "title": "cheese"}])))
    rig.drain()
    assert rig.outcome(deleted) == "CONCURRENT_UPDATE"
    assert rig.outcome(overwrote) == ["OVERWROTE"]
    assert rig.losers() == [("todo", "x", "title", "milk (backend)")]


def test_server_batches_stand_before_every_device(rig: ResolverRig) -> None:
    node = rig.node("a")
    old = node.send(node.make(("insert", "todo", [{"id": "o", "title": "t"}])))
    rig.sql("insert into app.todo values ('s', 'milk', false)")
    rig.sql("insert into app.todo values ('t', 'milk', false)")
    rig.drain()
    ids = [row[0] for row in rig.sql("select batch_id from anabranch.log order by position, batch_id")]
    assert ids[2] == old
    assert ids == sorted(ids)


def test_a_rolled_back_transaction_and_savepoint_leave_nothing(rig: ResolverRig) -> None:
    with rig.session() as somebody:
        somebody.execute("insert into app.todo values ('a', 'kept', false)")
        somebody.execute("savepoint s")
        somebody.execute("update app.todo set title = 'undone' where id = 'a'")
        somebody.execute("rollback to savepoint s")
        somebody.execute("update app.todo set done = true where id = 'a'")
    with rig.session() as somebody:
        somebody.execute("insert into app.todo values ('b', 'never', false)")
        somebody.rollback()
    rig.drain()
    assert log_of(rig) == [("server", "a", "INSERT", []), ("server", "a", "UPDATE", ["done"])]


def test_a_slow_transaction_comes_when_it_commits_and_is_not_skipped(rig: ResolverRig) -> None:
    """O01, O03: numbers given out early and committed late, or never."""
    slow, never = rig.session(), rig.session()
    slow.execute("insert into app.todo values ('slow', 'milk', false)")
    never.execute("insert into app.todo values ('never', 'milk', false)")
    rig.sql("insert into app.todo values ('quick', 'eggs', false)")
    rig.drain()
    assert [row[1] for row in log_of(rig)] == ["quick"]
    never.rollback()
    slow.commit()
    rig.drain()
    assert [row[1] for row in log_of(rig)] == ["quick", "slow"]
    slow.close()
    never.close()


def test_the_second_writer_of_a_row_comes_second_whoever_began_first(rig: ResolverRig) -> None:
    rig.sql("insert into app.todo values ('r', 'none', false), ('other', 'none', false)")
    rig.drain()
    second, first = rig.session(), rig.session()
    second.execute("update app.todo set title = 'second' where id = 'other'")
    first.execute("update app.todo set title = 'first' where id = 'r'")
    first.commit()
    second.execute("update app.todo set title = 'second' where id = 'r'")
    second.commit()
    rig.drain()
    titles = [
        change_pb2.Effect.FromString(effect).values[1].string_value
        for (effect,) in rig.sql(
            "select effect from anabranch.log where key = 'r' order by position, batch_id, ordinal"
        )
    ]
    assert titles[1:] == ["first", "second"]
    first.close()
    second.close()


def test_a_key_that_is_updated_is_another_row(rig: ResolverRig) -> None:
    rig.sql("insert into app.todo values ('a', 'milk', false)")
    rig.drain()
    rig.sql("update app.todo set id = 'b'")
    rig.drain()
    assert log_of(rig)[1:] == [("server", "a", "DELETE", []), ("server", "b", "INSERT", [])]


def test_keys_that_change_places_do(make_rig: Any) -> None:
    rig = make_rig("create table todo (id int, title text, primary key (id) deferrable initially deferred)")
    rig.sql("insert into app.todo values (1, 'one'), (2, 'two')")
    rig.drain()
    rig.sql("update app.todo set id = 3 - id")
    rig.drain()
    assert rig.rows("todo") == [(1, "two"), (2, "one")]
    for key in ("1", "2"):
        assert [kind for _, k, kind, _ in log_of(rig) if k == key] == ["INSERT", "DELETE", "INSERT"]


def test_an_update_that_changes_nothing_is_nothing(rig: ResolverRig) -> None:
    rig.sql("insert into app.todo values ('a', 'milk', false)")
    rig.drain()
    head = rig.head
    rig.sql("update app.todo set title = title")
    rig.drain()
    assert rig.head == head
    assert waiting(rig) == 0


def test_truncate_deletes_every_row_and_late_inserts_stay(rig: ResolverRig) -> None:
    """O13: TRUNCATE, in a transaction that stays open while groups are committed."""
    rig.sql("insert into app.todo select 'n' || i, 't', false from generate_series(1, 10) i")
    rig.drain()
    with rig.session() as somebody:
        somebody.execute("truncate app.todo")
        somebody.execute("insert into app.todo values ('n11', 'new', false)")
        assert rig.commit is not None
        rig.commit(rig.database.id, 100, 0)
        assert len(log_of(rig)) == 10
    rig.drain()
    assert {key for _, key, kind, _ in log_of(rig) if kind == "DELETE"} == {f"n{i}" for i in range(1, 11)}
    assert rig.rows("todo", "id") == [("n11",)]


@pytest.mark.slow
def test_what_is_captured_while_a_group_runs_is_in_the_next(rig: ResolverRig) -> None:
    node = rig.node("a")
    rig.sql("insert into app.todo values ('x', 'milk', false)")
    rig.drain()
    node.see()
    writer = rig.session()
    writer.execute("update app.todo set title = 'held' where id = 'x'")
    made = node.send(node.make(("update", "todo", [{"id": "x", "title": "mine"}])))
    rig.drain()
    assert rig.outcome(made) == "PENDING", "the row is somebody else's"
    writer.commit()
    writer.close()
    for _ in range(50):
        rig.drain()
        if rig.outcome(made) != "PENDING":
            break
    assert rig.outcome(made) == ["OVERWROTE"]
    assert rig.losers() == [("todo", "x", "title", "held")]
