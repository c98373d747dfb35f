"""A run makes files of the log, and later runs go on from there."""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.integration.compactor.conftest import Lake

from anabranch.store.catalog import registration
from anabranch.store.session.engine import connect

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


def history(lake: Lake, table: str = "todo") -> list[dict[str, Any]]:
    """The rows of ``changes/``, in the order of the log."""
    rows = [row for path in lake.paths(table, "changes") for row in pq.read_table(path, partitioning=None).to_pylist()]
    return sorted(rows, key=lambda row: (row["anabranch"]["position"], row["anabranch"]["batch"], row["id"]))


def test_changes_say_what_was_before_and_after(lake: Lake) -> None:
    writer = lake.writer()
    writer.insert("todo", [("a", "milk", False, 1), ("b", "tea", False, None)])
    writer.update("todo", ("a",), {"done": True})
    writer.update("todo", ("a",), {"title": None, "n": 5})
    writer.delete("todo", ("b",))
    outcome = lake.compact()
    assert outcome.changes == 5
    found = [
        (
            row["id"],
            row["anabranch"]["type"],
            row["anabranch"]["changed"],
            (row["title"], row["done"], row["n"]),
            row["anabranch"]["before"],
            row["anabranch"]["complete"],
        )
        for row in history(lake)
    ]
    nothing = {"title": None, "done": None, "n": None}
    assert found == [
        ("a", "insert", [], ("milk", False, 1), nothing, True),
        ("b", "insert", [], ("tea", False, None), nothing, True),
        ("a", "update", ["done"], ("milk", True, 1), {**nothing, "done": False}, True),
        ("a", "update", ["title", "n"], (None, True, 5), {"title": "milk", "done": None, "n": 1}, True),
        ("b", "delete", [], (None, None, None), {"title": "tea", "done": False, "n": None}, True),
    ]


def rows_of_base(lake: Lake, table: str = "todo") -> dict[Any, dict[str, Any]]:
    """The rows that the base shows, by id."""
    latest: dict[Any, dict[str, Any]] = {}
    for path in lake.paths(table, "base"):
        for row in pq.read_table(path, partitioning=None).to_pylist():
            before = latest.get(row["id"])
            if before is None or before["anabranch"]["position"] < row["anabranch"]["position"]:
                latest[row["id"]] = row
    return {
        key: {name: cell for name, cell in row.items() if name != "anabranch"}
        for key, row in latest.items()
        if not row["anabranch"]["deleted"]
    }


def test_later_runs_take_what_is_new_and_the_base_follows(lake: Lake) -> None:
    writer = lake.writer()
    writer.insert("todo", [(f"k{i}", f"title {i}", False, i) for i in range(20)])
    first = lake.compact()
    assert lake.compact().run_id is None, "nothing was new"
    base_files = lake.paths("todo", "base")
    writer.update("todo", ("k3",), {"n": 300})
    writer.delete("todo", ("k4",))
    writer.insert("todo", [("new", "t", True, None)])
    writer.update("todo", ("k3",), {"title": None})
    second = lake.compact()
    assert (second.from_position, second.changes) == (first.to_position, 4)
    assert set(base_files) < set(lake.paths("todo", "base")), "files that were not touched stay"
    wanted = {r[0]: dict(zip(("id", "title", "done", "n"), r, strict=True)) for r in lake.sql("select * from todo")}
    assert rows_of_base(lake) == wanted
    last = history(lake)[-1]["anabranch"]
    assert (last["type"], last["before"]["title"], last["complete"]) == ("update", "title 3", True)
    deleted = next(row for row in history(lake) if row["anabranch"]["type"] == "delete")
    assert deleted["anabranch"]["before"] == {"title": "title 4", "done": False, "n": 4}


@pytest.mark.long
def test_rows_older_than_the_log_come_from_a_pull(lake: Lake) -> None:
    lake.sql("create table old (id bigint primary key, price numeric(12,2), body text)")
    lake.sql("insert into old select n, n + 0.5, 'body ' || n from generate_series(1, 50) n")
    lake.sql("insert into old values (51, 'NaN', null)")
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        registration.add_table(conn, "app", "old")
    writer = lake.writer()
    writer.update("old", (7,), {"body": "changed before the first base"})
    outcome = lake.compact()
    assert outcome.without_base == ()
    assert len(rows_of_base(lake, "old")) == 51
    [unknown] = history(lake, "old")
    assert (unknown["anabranch"]["complete"], unknown["price"]) == (False, None)
    writer.update("old", (7,), {"price": "1.00"})
    writer.delete("old", (51,))
    lake.compact()
    known = [row for row in history(lake, "old") if row["anabranch"]["complete"]]
    assert [str(row["anabranch"]["before"]["price"]) for row in known] == ["7.50", "None"]
    assert dict(known[1]["anabranch"]["exact_before"]) == {"price": "NaN"}
    assert len(rows_of_base(lake, "old")) == 50


@pytest.mark.long
def test_a_first_base_leaves_out_what_is_in_no_group_yet(lake: Lake) -> None:
    writer = lake.writer()
    writer.insert("todo", [("a", "milk", False, 1), ("b", "tea", False, None), ("c", "oats", None, 3)])
    wanted = {row[0]: dict(zip(("id", "title", "done", "n"), row, strict=True)) for row in lake.sql("table todo")}
    # Past the services, and no resolver that would make a group of it.
    lake.sql("insert into todo values ('direct', 'x', true, 9)")
    lake.sql("update todo set title = 'other' where id = 'a'")
    lake.sql("delete from todo where id = 'b'")
    assert lake.compact().without_base == ()
    assert rows_of_base(lake) == wanted


def everything(lake: Lake) -> dict[str, tuple[bytes, int]]:
    """Every file below the root: its content, and when it was written."""
    files = [path for path in lake.folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(lake.folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.mark.long
def test_the_same_stretch_again_changes_nothing(lake: Lake) -> None:
    lake.writer().insert("todo", [(f"k{i}", "t", None, i) for i in range(20)])
    lake.compact()
    files, published = everything(lake), lake.sql("select * from anabranch.compactions")
    for _ in range(2):
        assert lake.compact().run_id is None
    assert everything(lake) == files
    assert lake.sql("select * from anabranch.compactions") == published


@pytest.mark.long
def test_a_later_run_overwrites_no_file_of_an_earlier_one(lake: Lake) -> None:
    writer = lake.writer()
    writer.insert("todo", [(f"k{i}", "t", None, i) for i in range(20)])
    lake.compact()
    first = everything(lake)
    writer.update("todo", ("k1",), {"n": 100})
    lake.compact()
    second = everything(lake)
    assert {name: second[name] for name in first} == first
    # Both have a first part of the same number: their runs' folders tell them apart.
    parts = [path.rpartition("/")[2].partition("-")[0] for path in lake.paths("todo", "changes")]
    assert parts == ["00000", "00000"]
    assert len(history(lake)) == 21
