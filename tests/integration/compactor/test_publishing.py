"""Exactly once: what is not proven is not published, what is not published is not seen, and what a run leaves behind
goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema
from tests.integration.compactor.conftest import Lake

from anabranch import faults
from anabranch.columnar.manifest import from_json, manifest_path
from anabranch.store.catalog.databases import load_database
from anabranch.store.lake import compactions
from anabranch.store.lake.run_shapes import read_pieces
from anabranch.store.session.engine import connect

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

Break = Callable[[pa.RecordBatch], pa.RecordBatch]


def another_title(batch: pa.RecordBatch) -> pa.RecordBatch:
    titles = batch.column("c1").to_pylist()
    return batch.set_column(1 + batch.schema.get_field_index("c0"), "c1", pa.array(["wrong", *titles[1:]]))


def a_row_less(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.slice(1)


def a_row_twice_another_missing(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.take(pa.array([0, 0, *range(2, batch.num_rows)]))


def null_for_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.set_column(batch.schema.get_field_index("c1"), "c1", pa.nulls(batch.num_rows, pa.string()))


@pytest.mark.long
@pytest.mark.parametrize("broken", [another_title, a_row_less, a_row_twice_another_missing, null_for_text])
def test_a_decoder_that_errs_publishes_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch, broken: Break) -> None:
    from anabranch_compactor import write
    from anabranch_compactor.prove import ProofError
    from anabranch_compactor.spark.packing import Route, pack, unpacked

    writer = lake.writer()
    writer.insert("todo", [(f"k{i}", "t", None, i) for i in range(5)])
    right, table = write.writer, writer.table("todo")

    def wrong(*arguments: Any) -> Any:
        write_part = right(*arguments)

        def write_wrongly(batches: Any) -> Any:
            task = TaskContext.get()
            assert task is not None
            rows = unpacked(batches, task.partitionId())
            assert rows is not None
            # The first base, which is written beside, is as it should be.
            given = broken(rows) if "kind" in rows.schema.names else rows
            return write_part(pack([(Route(table, task.partitionId(), 1), given)]))

        return write_wrongly

    monkeypatch.setattr(write, "writer", wrong)
    with pytest.raises(ProofError, match="the changes of todo"):
        lake.compact()
    assert lake.sql("select * from anabranch.compactions") == []
    monkeypatch.undo()
    assert lake.compact().changes == 5


def a_deletion_less(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if not row["anabranch"]["deleted"]]


def deleted_after_all(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "anabranch": {**row["anabranch"], "deleted": True}} for row in rows]


def of_another_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "anabranch": {**row["anabranch"], "position": 1}} for row in rows]


@pytest.mark.long
@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (a_deletion_less, "what is deleted of bucket 0 of todo"),
        (deleted_after_all, "what is deleted of bucket 0 of todo"),
        (of_another_time, "the base of todo: .* has positions 1 to 1"),
    ],
)
def test_deltas_that_err_publish_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, broken: Callable[[list[Any]], list[Any]], says: str
) -> None:
    from anabranch_compactor import write
    from anabranch_compactor.prove import ProofError

    writer = lake.writer()
    writer.insert("todo", [(f"k{i}", "t", None, i) for i in range(20)])
    lake.compact()
    writer.update("todo", ("k1",), {"n": 100})
    writer.delete("todo", ("k2",))
    right = write._WRITERS["changes"]

    def wrong(task: Any, unit: Any, rows: pa.RecordBatch) -> Any:
        part = right(task, unit, rows)
        [delta] = [task.path(file.path) for file in part.files if file.delta]
        written = pq.read_table(delta, partitioning=None)
        pq.write_table(pa.Table.from_pylist(broken(written.to_pylist()), schema=written.schema), delta)
        return part

    monkeypatch.setitem(write._WRITERS, "changes", wrong)
    with pytest.raises(ProofError, match=says):
        lake.compact()
    assert len(lake.sql("select * from anabranch.compactions")) == 1
    monkeypatch.undo()
    assert lake.compact().changes == 2


@pytest.mark.long
def test_a_merge_that_errs_in_what_no_effect_has_publishes_nothing(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from anabranch_compactor import merge
    from anabranch_compactor.prove import ProofError

    monkeypatch.setattr(merge, "MOST_OF_A_SIZE", 1)
    writer = lake.writer()
    writer.insert("todo", [("a", "t", None, 1)])
    lake.compact()
    writer.update("todo", ("a",), {"n": 2})
    right = from_arrow_schema

    def without_nodes(schema: pa.Schema) -> Any:
        own = schema.field("anabranch").type
        fields = [pa.field("nobody" if field.name == "node" else field.name, field.type) for field in own]
        return right(schema.set(len(schema) - 1, pa.field("anabranch", pa.struct(fields))))

    monkeypatch.setattr(merge, "from_arrow_schema", without_nodes)
    with pytest.raises(ProofError, match="the merged rows of changes of todo"):
        lake.compact()
    monkeypatch.setattr(merge, "from_arrow_schema", right)
    assert lake.compact().changes == 1
    assert len(lake.paths("todo", "changes")) == 1


def test_a_base_that_is_not_the_table_publishes_nothing(lake: Lake) -> None:
    from anabranch_compactor.prove import ProofError

    writer = lake.writer()
    writer.insert("todo", [("a", "t", None, 1), ("b", "t", None, 2)])
    lake.compact()
    # Somebody has written into a file of the base.
    [path] = lake.paths("todo", "base")
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows.set_column(1, "title", pa.array(["t", "not what was"])), path)
    writer.update("todo", ("b",), {"n": 3})
    with pytest.raises(ProofError, match="the base of todo"):
        lake.compact()
    assert len(lake.sql("select * from anabranch.compactions")) == 1


def test_of_two_runs_over_one_stretch_one_is_published(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    from anabranch_compactor.compact import RunOutcome

    lake.writer().insert("todo", [("a", "t", None, 1)])
    inner: list[RunOutcome] = []

    def reach(point: str) -> None:
        if point == "before_publish" and not inner:
            inner.append(RunOutcome(None, 0, 0))
            inner[0] = lake.compact()

    monkeypatch.setattr(faults, "reach", reach)
    with pytest.raises(compactions.NotPublishedError, match=r"run \w+ has already published"):
        lake.compact()
    assert [row[0] for row in lake.sql("select run_id from anabranch.compactions")] == [inner[0].run_id]
    assert pq.read_table(lake.paths("todo", "changes")[0], partitioning=None).num_rows == 1


def run_job(lake: Lake, fault: str, faults_file: Path) -> subprocess.CompletedProcess[str]:
    faults.arm(faults_file, fault)
    environment = {
        **os.environ,
        "ANABRANCH_POSTGRES_URL": lake.url,
        "ANABRANCH_LAKE_ROOT": str(lake.folder),
        "ANABRANCH_SPARK_MASTER": "local[1]",
        "ANABRANCH_FAULT_FILE": str(faults_file),
    }
    arguments = [sys.executable, "-m", "anabranch_compactor"]
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=300, check=False)


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*.parquet"))


def test_a_driver_killed_before_it_publishes_leaves_orphans_that_nobody_sees(lake: Lake, tmp_path: Path) -> None:
    lake.writer().insert("todo", [("a", "t", None, 1)])
    assert run_job(lake, "before_publish", tmp_path / "faults").returncode == -signal.SIGKILL
    orphans = files_below(lake.folder)
    assert orphans
    assert lake.sql("select * from anabranch.compactions") == []
    assert lake.compact().changes == 1
    live = {Path(path) for part in ("changes", "base") for path in lake.paths("todo", part)}
    assert not live & orphans
    assert files_below(lake.folder) == live | orphans, "within the grace they stay: their run might still be writing"
    assert lake.compact(orphan_grace_ms=0).removed >= len(orphans)
    assert files_below(lake.folder) == live


@pytest.mark.long
def test_a_driver_killed_after_it_published_is_told_of_by_the_next_run(lake: Lake, tmp_path: Path) -> None:
    lake.writer().insert("todo", [("a", "t", None, 1)])
    assert run_job(lake, "after_publish", tmp_path / "faults").returncode == -signal.SIGKILL
    manifest = lake.manifest()
    file = lake.lake_folder / manifest_path(manifest.run_id)
    assert not file.exists()
    assert lake.compact().run_id is None
    assert json.loads(file.read_text())["run"] == manifest.run_id


@pytest.mark.long
def test_of_runs_long_ago_stays_what_they_prove_and_not_the_names_of_all_files(lake: Lake) -> None:
    writer = lake.writer()
    writer.insert("todo", [(f"old{i}", "t", None, i) for i in range(20)])
    runs = []
    for number in range(3):
        writer.insert("todo", [(f"k{number}", "t", None, number)])
        runs.append(lake.compact())
    told = [lake.lake_folder / manifest_path(str(run.run_id)) for run in runs]
    assert all(file.exists() for file in told)
    assert lake.compact().removed == 0, "within the grace somebody may still read by them"
    assert lake.compact(orphan_grace_ms=0).removed == 2
    assert [file.exists() for file in told] == [False, False, True]
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        database = load_database(conn, "app")
        published = [from_json(one.manifest) for one in compactions.all_published(conn, database.id)]
        upto = published[-1].to_position
        [piece] = read_pieces(conn, database.id, database.epoch, 0, upto)
    assert [one.run_id for one in published] == [run.run_id for run in runs]
    assert [len(one.paths) for one in published[:2]] == [0, 0]
    assert published[-1] == lake.manifest()
    assert len(published[-1].paths) == 6, "of each run a file of changes and one of the base"
    assert [column.file_name for column in piece.columns["todo"].columns] == ["id", "title", "done", "n"]
    assert lake.compact(orphan_grace_ms=0).removed == 0


@pytest.mark.long
def test_publishing_the_same_run_again_changes_nothing(lake: Lake) -> None:
    with connect(lake.url, application_name="test", autocommit=True) as conn:
        database = load_database(conn, "app")
        run: dict[str, Any] = {
            "run_id": "R1", "after": 0, "upto": 5, "changes": 1, "root": "file:/x", "manifest": {}, "now_ms": 1
        }  # fmt: skip
        for _ in range(2):
            compactions.publish(conn, database.id, epoch=database.epoch, **run)
        with pytest.raises(compactions.NotPublishedError, match="run R1 has already published"):
            compactions.publish(conn, database.id, epoch=database.epoch, **{**run, "run_id": "R2"})
        with pytest.raises(compactions.NotPublishedError, match="epoch"):
            compactions.publish(conn, database.id, epoch="another", **{**run, "run_id": "R3", "after": 5, "upto": 6})
        assert [p.run_id for p in compactions.all_published(conn, database.id)] == ["R1"]
