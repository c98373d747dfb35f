"""Others commit between the moment in which a group drained and its own statements, and these lean on it: on a parent
that came, on children and a unique value that went. In the log such a change stands before the batch that leans on it,
or else a reader up to that batch has rows that no constraint would let stand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group import attempt

TABLES = """
create table list (id text primary key, name text, code text unique);
create table todo (id text primary key, list_id text references list (id), title text);
create table pin (id text primary key, list_id text references list (id) on delete cascade);
create table tag (id text primary key, code text references list (code))
"""
NAMES = {"list": None, "todo": None, "pin": None, "tag": None}


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[ResolverRig, str], list[int]]:
    """Has SQL committed right after the next group, which has something to drain, has drained; gives a list that grows
    each time the group begins with the locks."""

    def prepare(rig: ResolverRig, statement: str) -> list[int]:
        load = attempt._load
        loads: list[int] = []

        def and_then_somebody_writes(*arguments: Any) -> Any:
            view = load(*arguments)
            if not loads:
                rig.sql(statement)
            loads.append(1)
            return view

        monkeypatch.setattr(attempt, "_load", and_then_somebody_writes)
        rig.sql("update app.list set name = 'something to drain' where id = 'other'")
        return loads

    return prepare


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, NAMES)
    made.sql("insert into app.list values ('l', 'l', 'c'), ('other', 'o', 'o')")
    made.sql("insert into app.todo values ('t', 'l', 'milk'), ('u', 'other', 'eggs')")
    made.sql("insert into app.pin values ('p', 'l')")
    made.drain()
    return made


def finish(rig: ResolverRig) -> None:
    """Commit groups until nothing is left, and look at the rig only then: what came between waits for a while."""
    assert rig.commit is not None
    for _ in range(20):
        if not rig.commit(rig.database.id, 1_000, 0):
            break
    rig.group()


def logged(rig: ResolverRig) -> list[tuple[str, str]]:
    """Table and key of all that is in the log, in its order."""
    return [
        (rig.database.tables_by_id[table].name, key)
        for table, key in rig.sql("select table_id, key from anabranch.log order by position, batch_id, ordinal")
    ]


def test_a_parent_that_somebody_else_brought_stands_before_its_child(rig: ResolverRig, between: Any) -> None:
    node = rig.node("a")
    node.see()
    made = node.insert("todo", {"id": "n", "list_id": "new", "title": "of the new list"})
    loads = between(rig, "insert into app.list values ('new', 'new', null)")
    finish(rig)
    assert rig.outcome(made) == ["APPLIED"]
    order = logged(rig)
    assert order.index(("list", "new")) < order.index(("todo", "n"))
    assert len(loads) > 1, "the group started again from the locks"


def test_the_same_for_a_row_that_is_moved_to_it(rig: ResolverRig, between: Any) -> None:
    node = rig.node("a")
    node.see()
    made = node.update("todo", {"id": "t", "list_id": "new"})
    between(rig, "insert into app.list values ('new', 'new', null)")
    finish(rig)
    assert rig.outcome(made) == ["APPLIED"]
    order = logged(rig)
    assert order.index(("list", "new")) < len(order) - 1 - order[::-1].index(("todo", "t"))


def test_the_same_for_a_reference_to_another_column_than_the_key(rig: ResolverRig, between: Any) -> None:
    node = rig.node("a")
    node.see()
    made = node.insert("tag", {"id": "g", "code": "z"})
    between(rig, "update app.list set code = 'z' where id = 'other'")
    finish(rig)
    assert rig.outcome(made) == ["APPLIED"]
    assert logged(rig)[-2:] == [("list", "other"), ("tag", "g")]


def test_children_that_somebody_else_removed_go_before_their_parent(rig: ResolverRig, between: Any) -> None:
    node = rig.node("a")
    node.see()
    made = node.delete("list", {"id": "l"})
    between(rig, "delete from app.todo where id = 't'; update app.pin set list_id = 'other'")
    finish(rig)
    assert rig.outcome(made) == ["APPLIED"]
    assert logged(rig)[-3:] == [("todo", "t"), ("pin", "p"), ("list", "l")]


def test_a_unique_value_that_somebody_else_gave_up_is_free_before_it_is_taken(rig: ResolverRig, between: Any) -> None:
    node = rig.node("a")
    node.see()
    made = node.insert("list", {"id": "n", "name": "n", "code": "c"})
    between(rig, "update app.list set code = null where id = 'l'")
    finish(rig)
    assert rig.outcome(made) == ["APPLIED"]
    assert logged(rig)[-2:] == [("list", "l"), ("list", "n")]


def test_what_nothing_leans_on_waits_for_the_next_group(rig: ResolverRig, between: Any) -> None:
    node = rig.node("a")
    node.see()
    made = node.write(
        ("insert", "todo", [{"id": "n", "list_id": "other"}]),
        ("delete", "todo", [{"id": "t"}]),
        ("delete", "pin", [{"id": "p"}]),
        ("delete", "list", [{"id": "l"}]),
    )
    between(
        rig,
        "insert into app.list values ('new', 'new', 'n'); insert into app.todo values ('v', 'new', 'v');"
        " update app.todo set title = 'more eggs' where id = 'u'",
    )
    finish(rig)
    assert rig.outcome(made) == ["APPLIED"] * 4
    [(position,)] = rig.sql("select position from anabranch.batches where batch_id = %s", [made])
    assert position < rig.head, "what came is drained by the next group"
