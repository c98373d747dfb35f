"""Many runs: small files are put together, untouched ones stay, and nothing is lost on the way. Conflicts go along."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.integration.compactor.conftest import Lake
from tests.integration.compactor.test_runs import history, rows_of_base

from anabranch.columnar.evidence import Evidence
from anabranch.columnar.file_columns import CONFLICTS
from anabranch.testkit.log_writer import Logged
from anabranch.v1 import value_pb2
from anabranch.values.cells import Literal

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


@pytest.mark.long
def test_runs_are_put_together_and_the_history_stays_whole(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from anabranch_compactor import base, merge

    monkeypatch.setattr(merge, "MOST_OF_A_SIZE", 2)
    monkeypatch.setattr(base, "MOST_DELTAS", 1)
    monkeypatch.setattr(base, "DELTA_SHARE", 1e9)
    writer = lake.writer()
    writer.insert("todo", [(f"k{i}", "t", False, i) for i in range(10)])
    told: list[int] = []
    for run in range(4):
        lake.compact()
        told.append(len(lake.paths("todo", "changes")))
        writer.update("todo", (f"k{run}",), {"n": 100 + run})
        writer.delete("todo", (f"k{9 - run}",))
    lake.compact()
    assert told == [1, 2, 1, 2]
    rows = history(lake)
    kinds = [row["anabranch"]["type"] for row in rows]
    assert (kinds.count("insert"), kinds.count("update"), kinds.count("delete")) == (10, 4, 4)
    assert all(row["anabranch"]["complete"] for row in rows)
    files = lake.manifest().tables["todo"].base
    assert files is not None
    assert sum(file.delta for file in files.files) <= 1
    wanted = {r[0]: dict(zip(("id", "title", "done", "n"), r, strict=True)) for r in lake.sql("select * from todo")}
    assert rows_of_base(lake) == wanted
    live = set(lake.paths("todo", "changes")) | set(lake.paths("todo", "base"))
    lake.compact(orphan_grace_ms=0)
    assert {str(path) for path in lake.folder.rglob("*.parquet")} == live


@pytest.mark.long
def test_losing_values_are_typed_like_the_column_that_lost(make_lake: Any) -> None:
    lake = make_lake(
        "note", "create table note (id text primary key, at timestamptz, price numeric(6,2), tags text[], body text)"
    )
    writer = lake.writer()
    writer.insert("note", [("a", 0, "1.00", ("x",), "first")])
    values = {
        "body": value_pb2.Value(string_value="lost"),
        "price": value_pb2.Value(decimal_value="NaN"),
        "at": value_pb2.Value(text_literal="294270-06-01 00:00:00+00"),
        "tags": value_pb2.Value(null_value=0),  # type: ignore[arg-type]
        "gone": value_pb2.Value(int64_value=5),
    }
    losers = [("a", column, value.SerializeToString()) for column, value in values.items()]
    writer.commit([Logged("note", losers=losers)])
    lake.compact()
    [path] = lake.paths("note", "conflicts")
    rows = {row["anabranch"]["column"]: row for row in pq.read_table(path, partitioning=None).to_pylist()}
    assert {column: (row["body"], row["price"], row["at"]) for column, row in rows.items()} == {
        "body": ("lost", None, None),
        **dict.fromkeys(("price", "at", "tags", "gone"), (None, None, None)),
    }
    assert dict(rows["price"]["anabranch"]["exact"]) == {"price": "NaN"}
    assert dict(rows["at"]["anabranch"]["exact"]) == {"at": Literal("294270-06-01 00:00:00+00")}
    assert rows["gone"]["anabranch"]["untyped"] == values["gone"].SerializeToString()
    assert {row["id"] for row in rows.values()} == {"a"}


@pytest.mark.long
def test_losing_values_that_were_never_in_postgres_stay_as_they_were_sent(make_lake: Any) -> None:
    """A value that lost went through no column of Postgres: it may be written otherwise, or be what none could hold."""
    lake = make_lake("note", "create table note (id text primary key, price numeric(6,2), n bigint)")
    writer = lake.writer()
    writer.insert("note", [("a", "1.00", 1)])
    sent = ["1.5", "+1.50", "1e2", "1.555", "Infinity", "nan", "12345678901234567.00", "2.50", ""]
    values = [value_pb2.Value(decimal_value=text) for text in sent]
    writer.commit([Logged("note", losers=[("a", "price", value.SerializeToString()) for value in values])])
    lake.compact()
    [path] = lake.paths("note", "conflicts")
    rows = pq.read_table(path, partitioning=None).to_pylist()
    found = [row["anabranch"]["untyped"] or value_pb2.Value(decimal_value=str(row["price"])).SerializeToString()
             for row in rows]  # fmt: skip
    assert sorted(found) == sorted(value.SerializeToString() for value in values)
    assert [row["price"] for row in rows if row["price"] is not None] == [Decimal("2.50")]
    manifest = lake.manifest()
    assert Evidence(lake.root, manifest).sum(CONFLICTS, 0, manifest.to_position).count == len(sent)


@pytest.mark.long
def test_a_table_that_is_registered_later_comes_with_its_rows(lake: Lake) -> None:
    lake.writer().insert("todo", [("a", "t", None, 1)])
    first = lake.compact()
    lake.sql("create table plain (a int, b text, primary key (b, a))")
    lake.sql("insert into plain select n, 'row ' || n from generate_series(1, 5) n")
    from anabranch.store.catalog import registration
    from anabranch.store.session.engine import connect

    with connect(lake.url, application_name="test", autocommit=True) as conn:
        registration.add_table(conn, "app", "plain")
    writer = lake.writer()
    writer.delete("plain", ("row 2", 2))
    second = lake.compact()
    assert second.from_position == first.to_position
    assert second.without_base == ()
    rows = [row for path in lake.paths("plain", "base") for row in pq.read_table(path, partitioning=None).to_pylist()]
    assert sorted((row["b"], row["a"]) for row in rows) == [(f"row {n}", n) for n in (1, 3, 4, 5)]
    [row] = [
        row for path in lake.paths("plain", "changes") for row in pq.read_table(path, partitioning=None).to_pylist()
    ]
    assert "before" not in row["anabranch"], "a table of nothing but a key has nothing before"
