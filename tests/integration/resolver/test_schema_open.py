"""A type is altered, which takes no lock of a table: transactions that wrote to its tables before may still be open,
and commit at any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.resolver.altering import alter, change, settle, told

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.waiting import until
from anabranch_conflict_resolver.schema import group, rewriting

ALL_HAVE_ENDED = """
select bool_and((shape ->> 'until')::xid8 <= pg_snapshot_xmin(pg_current_snapshot())) from anabranch.captured_shapes
"""
RENAME = "alter type state rename value 'in_prgs' to 'in_progress'"


@pytest.fixture
def tasks(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(
        "create type state as enum ('open', 'in_prgs'); create table task (id text primary key, n int, st app.state)",
        {"task": None},
    )
    made.sql("insert into app.task values ('1', 1, 'in_prgs'), ('2', 1, 'open'), ('3', 1, 'in_prgs')")
    settle(made)
    return made


@pytest.fixture
def before_telling(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something done once, when a group has drained all that it found, and is about to tell values."""

    def prepare(act: Callable[[], None]) -> None:
        tell, done = rewriting.tell_values, [False]

        def and_somebody_acts(*arguments: Any, **more: Any) -> None:
            if done and not done.pop():
                act()
            tell(*arguments, **more)

        monkeypatch.setattr(group, "tell_values", and_somebody_acts)

    return prepare


def end(session: Any) -> None:
    session.commit()
    session.close()


def torn(rig: ResolverRig) -> list[str]:
    return [name for (name,) in rig.sql("select name from anabranch.synced_tables where torn_ms is not null")]


def test_a_writer_that_commits_while_a_renamed_label_is_taken_blanks_nothing(
    tasks: ResolverRig, before_telling: Any
) -> None:
    head = tasks.head
    slow = tasks.session()
    slow.execute("update app.task set n = 2 where id = '1'")
    slow.execute("insert into app.task values ('4', 4, 'in_prgs')")
    slow.execute("delete from app.task where id = '3'")
    alter(tasks, RENAME)
    before_telling(lambda: end(slow))
    settle(tasks)
    assert tasks.rows("task", "id", "n", "st") == [
        ("1", 2, "in_progress"),
        ("2", 1, "open"),
        ("4", 4, "in_progress"),
    ]
    assert ("task", "1", "UPDATE", {"id": "1", "st": "in_progress"}) in told(tasks, head)
    assert [key for _, key, kind, _ in told(tasks, head) if kind == "DELETE"] == ["3"]
    assert torn(tasks) == []


TYPES = """
create type state as enum ('open', 'in_prgs');
create type addr as (street text, no int);
create type site as (name text, at app.addr, st app.state);
create domain home as app.addr check ((value).no > 0);
"""
COLUMNS = {
    "row": ("app.addr", "row('x', 1)", ["alter type addr add attribute zip text"], "(x,1,)"),
    "row that loses": ("app.addr", "row('x', 1)", ["alter type addr drop attribute street"], "(1)"),
    "row of another name": ("app.addr", "row('x', 1)", ["alter type addr rename to address"], "(x,1)"),
    "row that is exchanged": (
        "app.addr",
        "row('x', 1)",
        ["alter type addr drop attribute street", "alter type addr add attribute zip text"],
        "(1,)",
    ),
    "rows": ("app.addr[]", "array[row('x', 1), null]::app.addr[]", ["alter type addr add attribute z int"], None),
    "row in a row": ("app.site", "row('n', row('x', 1), 'open')", ["alter type addr add attribute z int"], None),
    "label in a row": (
        "app.site",
        "row('n', row('x', 1), 'in_prgs')",
        ["alter type state rename value 'in_prgs' to 'in_progress'"],
        '(n,"(x,1)",in_progress)',
    ),
    "labels": (
        "app.state[]",
        "array['in_prgs', 'open']::app.state[]",
        ["alter type state rename value 'in_prgs' to 'in_progress'"],
        None,
    ),
    "domain of rows": ("app.home", "row('x', 1)", ["alter type addr add attribute zip text"], "(x,1,)"),
}


@pytest.fixture
def of_type(make_rig: Any) -> Callable[[str, str], ResolverRig]:
    """Makes a table with a column of a type, and two rows that have a value in it."""

    def make(kind: str, value: str) -> ResolverRig:
        rig: ResolverRig = make_rig(
            f"{TYPES} create table p (id text primary key, n int, a {kind}); create table other (id text primary key)",
            {"p": None, "other": None},
        )
        rig.sql(f"insert into app.p values ('1', 1, {value}), ('2', 1, {value}), ('3', 1, {value})")
        settle(rig)
        return rig

    return make


def write(session: Any, value: str) -> None:
    session.execute("update app.p set n = 2 where id = '1'")
    session.execute(f"insert into app.p values ('4', 4, {value})")
    session.execute("delete from app.p where id = '3'")


def check_written(rig: ResolverRig, after: int, text: str | None) -> None:
    """Check that the log has what ``write`` has written, and nothing else behind the position."""
    assert torn(rig) == []
    found = told(rig, after)
    assert [(key, kind, cells) for _, key, kind, cells in found if kind != "INSERT"] == [
        ("1", "UPDATE", {"id": "1", "n": 2}),
        ("3", "DELETE", {"id": "3"}),
    ]
    [cells] = [cells for _, _, kind, cells in found if kind == "INSERT"]
    assert (cells["id"], cells["n"]) == ("4", 4)
    if text is not None:
        assert cells["a"] == text


@pytest.mark.parametrize(("kind", "value", "statements", "text"), COLUMNS.values(), ids=COLUMNS)
def test_a_writer_that_commits_behind_a_type_that_was_altered_is_read(
    of_type: Any, kind: str, value: str, statements: list[str], text: str | None
) -> None:
    rig = of_type(kind, value)
    slow = rig.session()
    write(slow, value)
    alter(rig, *statements)
    settle(rig)
    head = rig.head
    end(slow)
    settle(rig)
    check_written(rig, head, text)


@pytest.mark.parametrize("name", ["row", "row that loses", "rows", "row in a row", "label in a row", "labels"])
@pytest.mark.parametrize("late", [False, True])
def test_a_writer_that_writes_before_a_type_s_change_is_committed_is_read(of_type: Any, name: str, late: bool) -> None:
    """Its images stand behind the marker, and are as the type was."""
    kind, value, statements, _ = COLUMNS[name]
    rig = of_type(kind, value)
    somebody, slow = rig.session(), rig.session()
    update = "update app.p set n = 2 where id = '1'"
    # It knows the type by then, and needs no lock of it.
    slow.execute(update)
    slow.rollback()
    somebody.execute("set search_path to app")
    for statement in statements:
        somebody.execute(statement.encode())
    slow.execute(update)
    if not late:
        end(slow)
    end(somebody)
    settle(rig)
    assert not change(rig).pulled
    head = rig.head
    if late:
        end(slow)
        settle(rig)
        assert told(rig, head) == [("p", "1", "UPDATE", {"id": "1", "n": 2})]
    assert torn(rig) == []


def test_a_table_whose_older_images_cannot_be_read_is_pulled_anew_by_itself(make_rig: Any) -> None:
    """The type has no binary form: its values were captured as text."""
    rig: ResolverRig = make_rig(
        "create type odd as (grants aclitem, note text);"
        "create table p (id text primary key, n int, a app.odd); create table other (id text primary key)",
        {"p": None, "other": None},
    )
    rig.sql("insert into app.p values ('1', 1, row(null, 'x')), ('2', 1, row(null, 'y'))")
    settle(rig)
    slow = rig.session()
    slow.execute("update app.p set n = 2 where id = '1'")
    alter(rig, "alter type odd add attribute zip text")
    settle(rig)
    assert not change(rig).pulled
    good = rig.node("a").insert("other", {"id": "1"})
    end(slow)
    settle(rig)
    assert torn(rig) == []
    assert list(change(rig).pulled) == ["p"]
    assert rig.outcome(good) == ["APPLIED"]
    rig.sql("update app.p set n = 3 where id = '2'")
    settle(rig)
    assert torn(rig) == []


@pytest.mark.parametrize("name", ["row", "rows", "labels"])
def test_a_further_change_forgets_no_shape_that_an_open_writer_still_needs(of_type: Any, name: str) -> None:
    kind, value, statements, _ = COLUMNS[name]
    rig = of_type(kind, value)
    slow = rig.session()
    slow.execute("update app.p set n = 2 where id = '1'")
    alter(rig, *statements)
    settle(rig)
    alter(rig, "alter table other add column x text")
    settle(rig)
    alter(rig, "alter type site add attribute z text")
    settle(rig)
    head = rig.head
    end(slow)
    settle(rig)
    assert told(rig, head) == [("p", "1", "UPDATE", {"id": "1", "n": 2})]
    assert torn(rig) == []


def test_shapes_are_forgotten_when_all_that_wrote_by_them_have_ended(of_type: Any) -> None:
    rig = of_type("app.addr", "row('x', 1)")
    kept = "select before_id from anabranch.captured_shapes order by before_id"
    alter(rig, "alter type addr add attribute z text")
    settle(rig)
    [first] = rig.sql(kept)
    until(lambda: rig.sql(ALL_HAVE_ENDED) == [(True,)], 60)
    alter(rig, "alter type addr add attribute y text")
    settle(rig)
    [second] = rig.sql(kept)
    assert second > first
