"""The choice of files to put together: files of changes by their size, a bucket's deltas by number and share."""

from __future__ import annotations

import pytest

from anabranch.columnar.file_columns import file_table
from anabranch.columnar.manifest import Base, Bucket, File, TableFiles
from anabranch.columnar.proof import Sum
from anabranch.values import Column, Kind, Table
from anabranch_compactor.base import MOST_DELTAS, due_for_merge, with_delta, with_merged
from anabranch_compactor.files.orphans import run_of
from anabranch_compactor.merge import MOST_OF_A_SIZE, size_step, to_merge
from anabranch_compactor.spark.session import lake_root
from anabranch_compactor.units import parts_of, rows_before

MIB = 1024 * 1024


def changes(name: str, size: int, rows: int = 1) -> File:
    return File(name, rows, size, "0", 1, 1)


def based(name: str, rows: int, bucket: int, *, delta: bool) -> File:
    return File(name, rows, 1, "0", 1, 1, bucket, delta)


def test_each_change_is_written_a_few_times_whatever_the_number_of_runs() -> None:
    """A thousand runs of 100 kB: what is written again stays a small multiple of what is new."""
    files: tuple[File, ...] = ()
    rewritten = 0
    for run in range(1_000):
        files = (*files, changes(f"run {run}", 100_000))
        chosen = to_merge(files)
        if chosen:
            rewritten += sum(file.bytes for file in chosen)
            files = (*(f for f in files if f not in chosen), changes(f"merged {run}", sum(f.bytes for f in chosen)))
    assert sum(file.bytes for file in files) == 100_000 * 1_000
    assert rewritten <= 4 * 100_000 * 1_000
    assert len(files) <= 4 * (MOST_OF_A_SIZE + 1)


def test_large_files_are_never_written_again() -> None:
    assert [size_step(size) for size in (1, MIB, 7 * MIB, 8 * MIB, 500 * MIB)] == [0, 1, 1, 2, 2]
    assert to_merge(tuple(changes(str(i), 8 * MIB) for i in range(50))) == ()


def test_a_bucket_is_merged_for_many_deltas_or_large_ones_and_others_are_left_alone() -> None:
    whole = [based(f"whole {n}", 1_000, n, delta=False) for n in range(3)]
    many = [based(f"many {i}", 1, 0, delta=True) for i in range(MOST_DELTAS + 1)]
    large = [based("large", 251, 1, delta=True)]
    small = [based("small", 10, 2, delta=True)]
    base = Base((Bucket(1_000), Bucket(1_000), Bucket(1_000)), (*whole, *many, *large, *small))
    assert due_for_merge(base) == [0, 1]
    merged = with_merged(base, [0, 1], [based("new 0", 1_000, 0, delta=False), based("new 1", 1_000, 1, delta=False)])
    assert {file.path for file in merged.files} == {"whole 2", "small", "new 0", "new 1"}
    assert due_for_merge(merged) == []


def test_a_delta_moves_the_sums_of_its_buckets_alone() -> None:
    base = Base((Bucket(2, "10"), Bucket(5, "20")))
    after = with_delta(base, (), {0: Sum(1, 8)}, {0: Sum(2, 9)})
    assert [(b.count, int(b.total, 16)) for b in after.buckets] == [(3, 0x11), (5, 0x20)]


@pytest.mark.parametrize(
    ("path", "run"),
    [
        ("changes/table=t/01M8G6S35ND833VCQH1GH2B9V6/part-0.parquet", "01M8G6S35ND833VCQH1GH2B9V6"),
        ("base/table=t/delta/01M8G6S35ND833VCQH1GH2B9V6/_temporary/0/x", "01M8G6S35ND833VCQH1GH2B9V6"),
        ("changes/table=01M8G6S35ND833VCQH1GH2B9V6X/somebody's.parquet", None),
        ("notes.txt", None),
        ("_manifests/01M8G6S35ND833VCQH1GH2B9V6.json", "01M8G6S35ND833VCQH1GH2B9V6"),
        ("_manifests/01M8G6S35ND833VCQH1GH2B9V6.json.draft", "01M8G6S35ND833VCQH1GH2B9V6"),
        ("_manifests/01M8G6S35ND833VCQH1GH2B9V6.json.copy", None),
    ],
)
def test_only_files_of_runs_are_taken_for_such(path: str, run: str | None) -> None:
    assert run_of(path) == run


def test_a_folder_is_a_path_of_hadoops() -> None:
    assert lake_root("/data/lake") == "file:/data/lake"
    assert lake_root("s3a://bucket/lake/") == "s3a://bucket/lake"
    assert lake_root("lake").startswith("file:/")


def test_what_a_task_holds_counts_the_rows_that_were_there_before() -> None:
    """A million deletes are a few bytes each; the rows that they delete come beside them, however long they are."""
    columns = file_table(Table("t", (Column("id", Kind.STRING, "text"),), ("id",)))
    there = File("base", 2_000_000, 40 * MIB, "0", 1, 1)
    known = TableFiles(1, columns, base=Base((Bucket(2_000_000),), (there,)))
    assert rows_before(1_000_000, TableFiles(1, columns)) == (0, 0)
    assert rows_before(1_000_000, known) == (1_000_000, 80 * MIB)
    assert rows_before(9_000_000, known) == (2_000_000, 160 * MIB)
    assert parts_of(1_000_000, 10 * MIB, cores=2) == 2
    assert parts_of(3_000_000, 180 * MIB, cores=2) == 4
    assert parts_of(2_000_000, 1_920 * MIB, cores=2) == 8
    assert parts_of(10, 10, cores=2) == 1
