"""A type is altered, which takes no lock of a table: transactions that wrote to its tables before may still be open,
and commit at any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.integration.resolver.altering import alter, settle, told

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.schema import group, rewriting

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
