"""Where no event trigger tells of DDL, the resolver finds it before it reads or writes the first row of the new
shape."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.resolver.altering import (
    JOB_ROWS,
    JOBS,
    alter,
    change,
    lost,
    settle,
    told,
    unwatched,
    values_told,
    versions,
)

from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.group import attempt


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(JOBS, {"job": None, "other": None})
    unwatched(made).sql(JOB_ROWS)
    settle(made)
    return made


def test_a_change_is_found_by_the_next_group(rig: ResolverRig) -> None:
    a = rig.node("a")
    a.see()
    queued = a.make(("update", "job", [{"id": "1", "title": "offline", "colour": "green"}]))
    rig.sql("update app.job set title = 'before' where id = '2'")
    alter(rig, "alter table job add column note integer default 3", "alter table job drop column colour")
    rig.sql("update app.job set title = 'behind', note = 5 where id = '2'")
    sent = a.send(queued)
    settle(rig)
    assert len(versions(rig)) == 1
    assert rig.outcome(sent) == ["APPLIED"]
    assert lost(rig) == [("1", "colour", "green", 1)]
    assert rig.rows("job") == [("1", "offline", 1, 3), ("2", "behind", 2, 5)]


def test_a_change_that_comes_between_the_look_and_the_locks_is_found_before_the_commit(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = rig.node("a")
    a.see()
    a.update("job", {"id": "2", "title": "second"})
    settle(rig)
    load = attempt._load
    loads: list[int] = []

    def and_somebody_alters(*arguments: Any) -> Any:
        if not loads:
            alter(
                rig, "alter table job add column note text default 'x'", "insert into job values ('3', 'three', 3, 'x')"
            )
        loads.append(1)
        return load(*arguments)

    monkeypatch.setattr(attempt, "_load", and_somebody_alters)
    sent = a.update("job", {"id": "1", "title": "new"})
    settle(rig)
    assert len(loads) == 2
    assert rig.outcome(sent) == ["APPLIED"]
    [(_, position)] = versions(rig)
    assert [key for _, key, _, _ in told(rig, position - 1)] == ["3", "1"]


def test_values_that_are_rewritten_unseen_are_told(rig: ResolverRig) -> None:
    head = rig.head
    alter(rig, "alter table job alter column n type bigint using n * 100")
    settle(rig)
    assert values_told(rig, head) == [("1", {"n": 100}), ("2", {"n": 200})]


def test_what_stands_at_no_sure_place_has_its_table_pulled_and_no_other(rig: ResolverRig) -> None:
    """A name of one type is given away and taken: no image shows which of both it was."""
    alter(
        rig,
        "update job set title = 'T'",
        "alter table job rename column title to subject",
        "alter table job rename column colour to title",
        "update job set title = 'C'",
        "update other set title = 'o'",
    )
    settle(rig)
    assert set(change(rig).pulled) <= {"job"}
    assert rig.rows("job", "subject", "title") == [("T", "C"), ("T", "C")]


@pytest.mark.parametrize(
    ("statements", "added"),
    [
        (
            [
                "alter table job add column q int not null default 5",
                "alter table job alter column q drop default",
                "alter table job alter column n type bigint",
            ],
            5,
        ),
        (
            ["alter table job add column q int default 5", "alter table job alter q drop default, alter n type bigint"],
            5,
        ),
        (["alter table job add column q int", "alter table job alter column q type int using n * 10"], None),
        (["alter table job add column q int"], None),
    ],
)
def test_values_of_a_column_whose_default_nobody_saw_are_told(
    rig: ResolverRig, statements: list[str], added: int | None
) -> None:
    head = rig.head
    alter(rig, *statements)
    settle(rig)
    found = rig.rows("job", "q")
    told_of = [(key, cells.get("q")) for key, cells in values_told(rig, head) if cells.get("q") is not None]
    assert told_of == [(key, q) for key, (q,) in zip(("1", "2"), found, strict=True) if q is not None]
    assert added is None or found == [(added,), (added,)]
