"""A change of a table that can't be taken sets that table aside, and nothing else waits for it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.resolver.altering import alter, change, markers, settle

from anabranch.store.ddl.difference import TableChange
from anabranch.store.ddl.enter import enter
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch.testkit.waiting import until
from anabranch_conflict_resolver.schema import group

TABLES = """
create table bad (id text primary key, title text); create table good (id text primary key, title text)
"""


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, {"bad": None, "good": None})
    made.sql("insert into app.bad values ('1', 'one'); insert into app.good values ('1', 'one')")
    settle(made)
    return made


def fails(monkeypatch: pytest.MonkeyPatch, number: int, *, always: bool) -> None:
    """Have the entry of the change of a table's registration fail; where it is not ``always``, as long as the table is
    not pulled."""

    def or_fail(conn: Any, database: Any, changes: list[TableChange], **more: Any) -> Any:
        for one in changes:
            if one.number == number and (always or not one.pulled):
                raise RuntimeError("a fault of the program")
        return enter(conn, database, changes, **more)

    monkeypatch.setattr(group, "enter", or_fail)


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
