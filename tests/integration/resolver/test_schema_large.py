"""Tables that are altered among many captured changes, and inside large transactions: each captured change is read by
the columns of its time, and whatever stands before the change of the table is in the log before it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.integration.resolver.altering import alter, change, group_of, settle, told, versions

from anabranch.store.capture import standing
from anabranch.testkit.resolver_rig import ResolverRig
from anabranch_conflict_resolver.captured import intake, limits, pieces

MOST, PIECE = 40, 15
TABLES = """
create table job (id integer primary key, title text, n integer, colour text);
create table other (id integer primary key, title text)
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups hold few captured changes."""
    monkeypatch.setattr(limits, "MOST_ROWS", MOST)
    monkeypatch.setattr(pieces, "HELD_ROWS", MOST)
    monkeypatch.setattr(pieces, "PIECE_ROWS", PIECE)
    monkeypatch.setattr(pieces, "BUCKET_ROWS", PIECE)
    monkeypatch.setattr(intake, "AT_ONCE", PIECE)


@pytest.fixture
def rig(make_rig: Any) -> ResolverRig:
    made: ResolverRig = make_rig(TABLES, {"job": None, "other": None})
    return made


def fill(
    first: int, last: int, columns: str = "id, title, n, colour", values: str = "i, 'title ' || i, i, 'red'"
) -> str:
    return f"insert into job ({columns}) select {values} from generate_series({first}, {last}) i"


MIGRATION = (
    fill(1, 100),
    "update job set n = n + 1 where id <= 60",
    "alter table job add column priority integer not null default 3",
    "alter table job drop column colour",
    fill(101, 180, "id, title, n, priority", "i, 'title ' || i, i, i"),
    "update job set priority = 5, title = 'second' where id % 3 = 0",
    "alter table job alter column n type numeric(10,1) using n / 2.0",
    "update job set n = n + 0.5 where id % 7 = 0",
    "delete from job where id % 11 = 0",
)


def test_a_large_transaction_with_ddl_inside_is_one_moment(rig: ResolverRig, small: None) -> None:
    rig.sql("set search_path to app; " + fill(1_001, 1_020) + "; reset search_path")
    settle(rig)
    alter(rig, *MIGRATION)
    settle(rig)
    assert [version for version, _ in versions(rig)] == [2]
    [(_, position)] = versions(rig)
    batches, _, sums = group_of(rig, position)
    assert (batches, sums) == (2, ["job"]), "the transaction's batch, and that of the values"
    assert rig.head == position
    assert len(rig.rows("job")) == 200 - len([i for i in range(1, 181) if i % 11 == 0]) - 2


def test_rows_that_get_other_keys_before_and_after_the_table_is_altered(rig: ResolverRig, small: None) -> None:
    """Changes that come by row: all of one row's, those of the table as it was before those of the table as it is."""
    rig.sql("set search_path to app; " + fill(1, 100) + "; reset search_path")
    settle(rig)
    alter(
        rig,
        "update job set id = id + 1000 where id <= 50",
        "update job set n = -n",
        "alter table job add column a text default 'A'",
        "update job set id = id - 500 where id > 1000",
        "alter table job drop column title",
        "update job set n = n - 1, a = 'B' where id > 500",
        "update job set n = n - 1 where id > 500",
    )
    settle(rig)
    assert [version for version, _ in versions(rig)] == [2]


def test_one_row_that_is_changed_very_often_around_the_change(rig: ResolverRig, small: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(pieces, "OFTEN", 20)
    rig.sql("insert into app.job values (1, 'one', 0, 'red')")
    settle(rig)
    often = (
        "do $$ begin for i in 1..100 loop update job set n = n + 1, id = 3 - id where id in (1, 2); end loop; end $$"
    )
    alter(
        rig,
        often,
        "alter table job rename column n to m",
        "alter table job add column x text",
        often.replace("n = n + 1", "m = m + 1"),
    )
    settle(rig)


def test_what_ends_before_the_change_is_in_the_log_before_it_without_batches(rig: ResolverRig, small: None) -> None:
    rig.sql("insert into app.job values (1, 'one', 1, 'red'); insert into app.other values (1, 'one')")
    settle(rig)
    a = rig.node("a")
    a.see()
    queued = [a.update("job", {"id": 1, "title": f"title {i}"}) for i in range(3)]
    head = rig.head
    for i in range(2, 3 * MOST):
        rig.sql(f"insert into app.other values ({i}, 'x')")
    alter(rig, "alter table job add column note text")
    rig.sql("insert into app.other select i, 'y' from generate_series(1001, 1030) i")
    assert rig.commit is not None
    positions = []
    for _ in range(20):
        if not versions(rig):
            rig.commit(rig.database.id, 1_000, 0)
            positions.append(rig.head)
    assert [rig.outcome(one) for one in queued] == ["PENDING"] * 3
    [(_, position)] = versions(rig)
    before = told(rig, head, position - 1)
    assert [(table, key) for table, key, _, _ in before] == [("other", str(i)) for i in range(2, 3 * MOST)]
    assert group_of(rig, position) == (0, 0, [])
    settle(rig)
    assert [rig.outcome(one) for one in queued] == [["APPLIED"]] * 3
    assert len(told(rig, position)) == 33


def test_a_transaction_that_altered_a_table_first_and_ends_last_has_its_place(rig: ResolverRig) -> None:
    rig.sql("insert into app.job values (1, 'one', 1, 'red'); insert into app.other values (1, 'one')")
    settle(rig)
    head = rig.head
    first = rig.session()
    first.execute("alter table app.other add column a text default 'A'")
    rig.sql("update app.job set n = 2")
    first.execute("alter table app.job drop column colour")
    first.execute("update app.job set n = 3")
    first.execute("update app.other set a = 'B'")
    first.commit()
    first.close()
    settle(rig)
    assert len(versions(rig)) == 1
    assert [cells for _, _, _, cells in told(rig, head)] == [{"id": 1, "n": 2}, {"id": 1, "n": 3}, {"id": 1, "a": "B"}]


def test_what_is_written_while_a_table_is_read_is_taken_back(rig: ResolverRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is read in the middle of others' writes: what they captured comes later, in a group of its own."""
    rig.sql("set search_path to app; " + fill(1, 50) + "; reset search_path")
    settle(rig)
    fetched = standing._fetched
    written: list[int] = []

    def after_somebody_wrote(*arguments: Any) -> Any:
        if not written:
            rig.sql("update app.job set n = n + 1000 where id <= 10; delete from app.job where id between 11 and 15")
            rig.sql("insert into app.job (id, n) values (100, 7); update app.job set id = 200 where id = 20")
            rig.sql("update app.job set n = -1 where id = 30; update app.job set n = 30 where id = 30")
            written.append(1)
        return fetched(*arguments)

    monkeypatch.setattr(standing, "_fetched", after_somebody_wrote)
    alter(rig, "alter table job alter column n type bigint using n * 10")
    assert rig.commit is not None
    rig.commit(rig.database.id, 1_000, 0)
    assert written
    [(_, position)] = versions(rig)
    assert rig.head == position
    assert {cells["n"] for _, _, _, cells in told(rig, position - 1)} == {10 * i for i in range(1, 51)}
    settle(rig)


def test_more_than_can_be_taken_back_is_drained_first(rig: ResolverRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.sql("set search_path to app; " + fill(1, 50) + "; reset search_path")
    settle(rig)
    monkeypatch.setattr(standing, "MOST", 20)
    fetched = standing._fetched
    written: list[int] = []

    def after_somebody_wrote(*arguments: Any) -> Any:
        if len(written) < 3:
            rig.sql("update app.job set n = n + 1")
            written.append(1)
        return fetched(*arguments)

    monkeypatch.setattr(standing, "_fetched", after_somebody_wrote)
    alter(rig, "alter table job drop column colour")
    settle(rig)
    assert len(written) == 3
    assert len(change(rig).tables) == 1


@pytest.mark.usefixtures("small")
def test_changes_that_a_table_is_gone_with_are_dropped(rig: ResolverRig) -> None:
    rig.sql("set search_path to app; " + fill(1, 200) + "; reset search_path")
    alter(rig, "update job set n = 0", "drop table job", "insert into other values (1, 'kept')")
    settle(rig)
    assert list(rig.database.tables) == ["other"]
    assert list(change(rig).dropped) == ["job"]
    assert [key for table, key, _, _ in told(rig) if table == "other"] == ["1"]
