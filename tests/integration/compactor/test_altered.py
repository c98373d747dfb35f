"""Tables that were altered since they were registered, and those that were registered anew."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest
from tests.integration.compactor.conftest import Lake
from tests.integration.compactor.test_runs import history, rows_of_base

from anabranch.store.catalog import registration
from anabranch.store.catalog.databases import load_database
from anabranch.store.lake import compactions
from anabranch.store.retention import floor
from anabranch.store.retention.proof import Proof
from anabranch.store.session.engine import connect
from anabranch.testkit.log_writer import Logged
from anabranch.v1 import value_pb2

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


@pytest.mark.long
def test_a_table_that_cannot_be_pulled_holds_up_no_other(lake: Lake) -> None:
    for name in ("gone", "lost", "emptied"):
        lake.add_table(name, f"create table {name} (id text primary key, v int)")
    writer = lake.writer()
    for name in ("gone", "lost"):
        writer.insert(name, [("x", 1)])
    writer.insert("todo", [("a", "t", None, 1)])
    lake.sql("drop table gone")
    lake.sql("alter table lost drop column v")
    # Of this one everything waits for the resolver: as of the head it is empty.
    lake.sql("insert into emptied values ('direct', 1)")
    outcome = lake.compact()
    assert outcome.changes == 3
    assert outcome.without_base == ("gone", "lost")
    assert set(rows_of_base(lake)) == {"a"}
    assert lake.manifest().tables["emptied"].base is not None
    assert lake.paths("emptied", "base") == []
    assert [row["v"] for row in history(lake, "gone") + history(lake, "lost")] == [1, 1]


def add_anew(lake: Lake, table: str, alter: str) -> None:
    """Alter a table as one has to: it is removed, and added again."""
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        registration.remove_table(conn, "app", table)
        lake.sql(alter)
        registration.add_table(conn, "app", table)


@pytest.mark.long
def test_the_history_of_a_table_that_is_registered_anew_stays_as_it_is_and_goes_on(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from anabranch_compactor import base, merge

    monkeypatch.setattr(merge, "MOST_OF_A_SIZE", 1)
    monkeypatch.setattr(base, "MOST_DELTAS", 0)
    writer = lake.writer()
    writer.insert("todo", [("a", "milk", True, 1), ("b", "tea", None, 2)])
    lake.compact()
    old = lake.paths("todo", "changes")
    add_anew(lake, "todo", "alter table todo drop column n, add column extra text default 'e'")
    for title in ("oats", "rye", "malt"):
        writer = lake.writer()
        writer.update("todo", ("a",), {"title": title})
        lake.compact()
    assert {row["id"]: (row["title"], row["extra"]) for row in rows_of_base(lake).values()} == {
        "a": ("malt", "e"),
        "b": ("tea", "e"),
    }
    new = [path for path in lake.paths("todo", "changes") if path not in old]
    assert old[0] in lake.paths("todo", "changes"), "its column n is in no other file"
    assert len(new) == 1, "those of the new registration were put together"
    assert [row["n"] for row in pq.read_table(old, partitioning=None).to_pylist()] == [1, 2]
    told = [(row["title"], row["anabranch"]["before"]["title"], row["anabranch"]["complete"]) for row in history(lake)]
    assert told[2:] == [("oats", None, False), ("rye", "oats", True), ("malt", "rye", True)]


@pytest.mark.parametrize("compacted", [False, True])
def test_changes_before_a_table_was_altered_are_compacted_as_it_was_then(lake: Lake, compacted: bool) -> None:
    """An ALTER of a table in a database that is written to always leaves changes that no run has seen."""
    writer = lake.writer()
    writer.insert("todo", [("a", "milk", True, 1), ("b", "tea", None, 2)])
    if compacted:
        lake.compact()
    value = value_pb2.Value(int64_value=77).SerializeToString()
    writer.update("todo", ("b",), {"n": 3})
    writer.commit([Logged("todo", losers=[("b", "n", value)])])
    add_anew(lake, "todo", "alter table todo drop column n, add column n text default 'text now'")
    writer = lake.writer()
    writer.update("todo", ("a",), {"title": "oats"})
    # And once more, and removed for good in the end, each with changes that no run has seen.
    add_anew(lake, "todo", "alter table todo drop column done, add column extra int default 5")
    lake.writer().update("todo", ("b",), {"extra": 6})
    outcome = lake.compact()
    assert outcome.changes == (3 if compacted else 5)
    assert rows_of_base(lake) == {
        "a": {"id": "a", "title": "oats", "n (2)": "text now", "extra": 5},
        "b": {"id": "b", "title": "tea", "n (2)": "text now", "extra": 6},
    }
    told = [
        (row["id"], row["anabranch"]["type"], *(row.get(name) for name in ("title", "done", "n", "n (2)", "extra")))
        for row in history(lake)
        if row["anabranch"]["type"] != "none"
    ]
    assert [row for row in told if row[1] == "insert"] == [
        ("a", "insert", "milk", True, 1, None, None),
        ("b", "insert", "tea", None, 2, None, None),
    ]
    # The other values of a row are known where the registration that the change is of had a base, or an insert.
    assert {row for row in told if row[1] == "update"} == {
        ("b", "update", "tea", None, 3, None, None),
        ("a", "update", "oats", None, None, None, None),
        ("b", "update", None, None, None, None, 6),
    }
    writer = lake.writer()
    writer.delete("todo", ("a",))
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        registration.remove_table(conn, "app", "todo")
    lake.add_table("other", "create table other (id text primary key)")
    lake.writer().insert("other", [("x",)])
    assert lake.compact().changes == 2
    files = lake.manifest().tables["todo"]
    assert files.base is None
    assert files.changes_count == 6
    prove_all(lake)


def prove_all(lake: Lake) -> None:
    """The janitor's proof of all that was published, right before the log is cut."""
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        database = load_database(conn, "app")
        published = compactions.last_published(conn, database.id, database.epoch)
        assert published is not None
        [kept] = floor.databases(conn, "app")
        Proof(published).require(conn, kept, 0, published.to_position)
