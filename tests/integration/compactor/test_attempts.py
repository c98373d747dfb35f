"""A task that is done more than once counts once: one that dies after it has written and is tried again, and one that
runs twice at a time, as with ``spark.speculation`` (for which Spark needs two machines), so that both write all.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from tests.integration.compactor.conftest import Lake

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]

Batches = Iterator[pa.RecordBatch]
Work = Callable[[Batches], Batches]


def dying_once(work: Work, died: Path) -> Work:
    """Does it all, and is killed before it says so; the next attempt is not."""

    def attempt(batches: Batches) -> Batches:
        done = list(work(batches))
        try:
            died.touch(exist_ok=False)
        except FileExistsError:
            yield from done
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return attempt


def running_twice(work: Work, died: Path) -> Work:
    """Does it all as another attempt that nobody listens to, and once more."""

    def attempts(batches: Batches) -> Batches:
        given = list(batches)
        task: Any = TaskContext.get()
        own = task._taskAttemptId
        task._taskAttemptId = own + 1_000
        list(work(iter(given)))
        task._taskAttemptId = own
        died.touch()
        yield from work(iter(given))

    return attempts


def parquet_files(folder: Path) -> set[Path]:
    return set(folder.rglob("*.parquet"))


@pytest.mark.parametrize("more_than_once", [dying_once, running_twice])
def test_a_part_that_is_written_more_than_once_is_in_the_lake_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more_than_once: Callable[[Work, Path], Work]
) -> None:
    from anabranch_compactor import write

    writer = lake.writer()
    writer.insert("todo", [(f"old{i}", "t", None, i) for i in range(100)])
    lake.compact()
    writer.insert("todo", [(f"k{i}", "t", None, i) for i in range(20)])
    before = parquet_files(lake.folder)
    right, happened = write.writer, tmp_path / "happened"
    monkeypatch.setattr(write, "writer", lambda *given: more_than_once(right(*given), happened))
    assert lake.compact().changes == 20
    assert happened.exists()
    live = {Path(path) for part in ("changes", "base") for path in lake.paths("todo", part)}
    new = live - before
    orphans = parquet_files(lake.folder) - live
    assert {file.parent for file in orphans} == {file.parent for file in new}
    assert len(orphans) == len(new) == 2, "a file of changes, and a delta of the base"
    for files in (orphans, new):
        for file in files:
            rows = pq.read_table(file, partitioning=None).to_pylist()
            found = sorted((row["id"], row["n"]) for row in rows)
            assert found == sorted((f"k{i}", i) for i in range(20)), "each attempt has written all"
    # Within the grace they stay; then they go, and nothing else.
    assert lake.compact().removed == 0
    assert lake.compact(orphan_grace_ms=0).removed == 2 + 1, "they, and the first run's manifest"
    assert parquet_files(lake.folder) == live


def test_a_pull_that_dies_and_is_tried_again_gives_every_row_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from anabranch_compactor import pull

    lake.writer().insert("todo", [(f"k{i}", "t", None, i) for i in range(20)])
    right, happened = pull.pull_tasks, tmp_path / "happened"

    def pull_tasks(pulls: Any, batches: Batches) -> Batches:
        return dying_once(lambda given: right(pulls, given), happened)(batches)

    monkeypatch.setattr(pull, "pull_tasks", pull_tasks)
    assert lake.compact().without_base == ()
    assert happened.exists()
    [path] = lake.paths("todo", "base")
    rows = pq.read_table(path, partitioning=None).to_pylist()
    assert [row["id"] for row in rows] == sorted(f"k{i}" for i in range(20))
    assert parquet_files(lake.folder) == {Path(path), *map(Path, lake.paths("todo", "changes"))}
