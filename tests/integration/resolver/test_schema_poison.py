"""A change of a table that can't be taken sets that table aside, and nothing else waits for it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.integration.resolver.altering import alter, change, markers, settle, unwatched

from anabranch.store.ddl.difference import TableChange
from anabranch.store.ddl.enter import enter
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.waiting import until
from anabranch_conflict_resolver.group import cache
from anabranch_conflict_resolver.schema import fault, group

TABLES = """
create table bad (id text primary key, title text); create table good (id text primary key, title text)
"""


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, {"bad": None, "good": None})
    made.sql("insert into app.bad values ('1', 'one'); insert into app.good values ('1', 'one')")
    settle(made)
    return made


def fails(monkeypatch: pytest.MonkeyPatch, number: int, *, always: bool, error: type[Exception] = RuntimeError) -> None:
    """Have the entry of the change of a table's registration fail; where it is not ``always``, as long as the table is
    not pulled."""

    def or_fail(conn: Any, database: Any, changes: list[TableChange], **more: Any) -> Any:
        for one in changes:
            if one.number == number and (always or not one.pulled):
                raise error("a fault of the program")
        return enter(conn, database, changes, **more)

    monkeypatch.setattr(group, "enter", or_fail)


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True])
def test_the_table_is_set_aside_by_name_and_the_others_go_on(
    rig: ResolverRig, worker_of: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, always: bool
) -> None:
    number = rig.database.tables["bad"].id
    fails(monkeypatch, number, always=always)
    alter(rig, "alter table bad add column a text", "alter table good add column a text")
    a = rig.node("a")
    good = a.insert("good", {"id": "2", "title": "two"})
    worker_of(rig)
    rig.until_left(0)
    assert rig.outcome(good) == ["APPLIED"]
    until(lambda: not markers(rig), 20)
    torn = rig.sql("select name from anabranch.synced_tables where torn_ms is not null")
    told = capsys.readouterr().out
    assert told.count("its change can't be taken") == (2 if always else 1)
    assert "table=bad" in told
    assert "a fault of the program" in told
    if always:
        assert torn == [("bad",)]
        assert [table.name for table in change(rig).tables] == ["good"]
    else:
        assert torn == []
        assert list(change(rig).pulled) == ["bad"]
        assert "bad" in {table.name for table in change(rig).tables}


def test_a_trial_that_fails_while_tables_are_altered_blames_nobody(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch, rig.database.tables["bad"].id, always=True)
    alter(rig, "alter table bad add column a text")
    take_change = group.take_change
    trials: list[int] = []

    def and_somebody_alters(*arguments: Any, **more: Any) -> Any:
        trials.append(1)
        alter(rig, f"alter table good add column c{len(trials)} text")
        return take_change(*arguments, **more)

    monkeypatch.setattr(fault, "take_change", and_somebody_alters)
    assert rig.commit is not None
    for _ in range(4):
        with pytest.raises(RuntimeError, match="a fault of the program"):
            rig.commit(rig.database.id, 1_000, 0)
    assert len(trials) == 2
    assert rig.sql("select name from anabranch.synced_tables where torn_ms is not null") == []
    monkeypatch.undo()
    settle(rig)
    assert {table.name for table in change(rig).tables} == {"bad", "good"}


@pytest.mark.slow
def test_a_table_that_another_session_holds_blames_nobody(rig: ResolverRig, worker_of: Any, capsys: Any) -> None:
    alter(rig, "alter table bad drop column title")
    somebody = rig.session()
    somebody.execute("lock table app.bad in access exclusive mode")
    worker_of(rig)
    rig.sql("select pg_sleep(1.5)")
    assert markers(rig) == 1
    assert "can't be taken" not in capsys.readouterr().out
    somebody.commit()
    somebody.close()
    until(lambda: not markers(rig), 20)
    settle(rig)


def _deny(rig: ResolverRig, table: str) -> None:
    """Take all rights to a table from all but its owner."""
    for (role,) in rig.sql(
        "select distinct g.grantee::regrole::text from pg_class c cross join lateral aclexplode(c.relacl) g"
        " where c.oid = %s::regclass and g.grantee not in (c.relowner, 0)",
        [f"app.{table}"],
    ):
        rig.sql(f"revoke all on app.{table} from {role}")


@pytest.mark.parametrize("watched", [True, False])
def test_a_table_that_may_not_be_read_is_refused_alone_and_once(
    rig: ResolverRig, watched: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if not watched:
        unwatched(rig)
        monkeypatch.setattr(cache, "_LOOK_S", 0.0)
    _deny(rig, "bad")
    alter(rig, "alter table bad add column u uuid default gen_random_uuid()")
    good = rig.node("a").insert("good", {"id": "2", "title": "two"})
    assert rig.commit is not None
    for _ in range(20):
        rig.commit(rig.database.id, 1_000, 0)
    assert rig.outcome(good) == ["APPLIED"]
    assert rig.sql("select name from anabranch.synced_tables where torn_ms is not null") == [("bad",)]
    assert markers(rig) == 0
    told = capsys.readouterr().out
    assert told.count("[error") == 1
    assert "may not read it" in told
    rig.sql("grant select, insert, update, delete on app.bad to public")
    alter(rig, "alter table bad add column x text")
    settle(rig)
    assert list(change(rig).pulled) == ["bad"]


@pytest.mark.parametrize(("error", "told"), [(RuntimeError, 2), (psycopg.errors.InsufficientPrivilege, 1)])
def test_a_change_that_fails_for_good_and_that_no_trigger_told_is_not_found_again(
    rig: ResolverRig, monkeypatch: pytest.MonkeyPatch, capsys: Any, error: type[Exception], told: int
) -> None:
    unwatched(rig)
    monkeypatch.setattr(cache, "_LOOK_S", 0.0)
    fails(monkeypatch, rig.database.tables["bad"].id, always=True, error=error)
    alter(rig, "alter table bad add column a text", "alter table good add column a text")
    good = rig.node("a").insert("good", {"id": "2", "title": "two"})
    failures = 0
    assert rig.commit is not None
    for _ in range(40):
        try:
            rig.commit(rig.database.id, 1_000, 0)
        except error:
            failures += 1
    assert rig.outcome(good) == ["APPLIED"]
    assert rig.sql("select name from anabranch.synced_tables where torn_ms is not null") == [("bad",)]
    assert [table.name for table in change(rig).tables] == ["good"]
    assert failures == 3 * told
    assert capsys.readouterr().out.count("its change can't be taken") == told
    monkeypatch.undo()
    alter(rig, "alter table bad add column b text")
    settle(rig)
    assert list(change(rig).pulled) == ["bad"]
