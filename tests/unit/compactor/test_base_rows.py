"""A base's rows by columns: what is found again for some keys, and what is left when a bucket's files are merged, are
the latest rows of each key, whatever files they lie in."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import fs

from anabranch.columnar.encode import ColumnEncoder, cells_of
from anabranch.columnar.file_columns import OWN, file_table
from anabranch.values import Column, Kind, Table
from anabranch_compactor import base_rows
from anabranch_compactor.files.parquet_files import write_files
from anabranch_compactor.merge import merged_bucket
from anabranch_compactor.shape import OLD, Shape
from anabranch_compactor.spark.packing import key_hashes
from anabranch_compactor.spark.packing import whole as one_batch

TABLE = Table("todo", (Column("n", Kind.INT64, "bigint"), Column("id", Kind.STRING, "text"),
                       Column("at", Kind.TIMESTAMP, "timestamptz"), Column("v", Kind.INT64, "bigint")),
              ("id", "at"), 1)  # fmt: skip
SHAPE = Shape(file_table(TABLE))
Key = tuple[str, int | str]
KEYS = st.tuples(st.sampled_from(["", "a", "b", "é"]), st.sampled_from([0, 1, -5, "late", "later"]))
FILES = st.lists(st.dictionaries(KEYS, st.booleans(), min_size=1), min_size=1, max_size=4)


def batch(rows: dict[Key, bool], position: int) -> pa.RecordBatch:
    """A file's rows: of each key whether it is deleted. A key's second part may be what a timestamp can't hold."""
    chosen = list(rows)
    times = [None if isinstance(at, str) else at for _, at in chosen]
    made = pa.RecordBatch.from_pydict(
        {
            "c0": pa.array([position if not rows[key] else None for key in chosen], pa.int64()),
            "c1": pa.array([key[0] for key in chosen], pa.string()),
            "c2": pa.array(times, pa.int64()).view(pa.timestamp("us", "UTC")),
            "c3": pa.array([None if rows[key] else 7 for key in chosen], pa.int64()),
            "x2": pa.array([at if isinstance(at, str) else None for _, at in chosen], pa.string()),
            "position": pa.array([position] * len(chosen), pa.int64()),
            "deleted": pa.array([rows[key] for key in chosen], pa.bool_()),
        }
    )
    return base_rows.latest(SHAPE, made)


def key_of(row: dict[str, object]) -> tuple[object, object]:
    at = row["c2"]
    return row["c1"], row["x2"] if at is None else round(at.timestamp() * 1e6)  # type: ignore[attr-defined]


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(FILES, FILES, st.sets(KEYS, min_size=1), st.booleans())
def test_the_latest_row_of_each_key_is_found_in_whatever_file_it_is(
    whole: list[dict[Key, bool]], deltas: list[dict[Key, bool]], wanted: set[Key], small: bool
) -> None:
    state: dict[Key, int | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths: list[str] = []
        taken: set[Key] = set()
        for number, rows in enumerate([*whole, *deltas]):
            if number < len(whole):
                # A whole file's rows are not deleted, and no other whole file has them.
                rows = {key: False for key in rows if key not in taken} or {(f"only {number}", 0): False}
                taken |= set(rows)
            state.update({key: None if gone else number for key, gone in rows.items()})
            size = 2 if small else 100
            made = batch(rows, number)
            tables = [base_rows.base_table(SHAPE, made.slice(at, size)) for at in range(0, made.num_rows, size)]
            [file] = write_files(fs.LocalFileSystem(), folder, f"{number}", SHAPE.base_schema, tables)
            paths.append(f"{folder}/{file.name}")
        encoder = ColumnEncoder(TABLE)
        changes = batch(dict.fromkeys(wanted, False), 0)
        found = base_rows.rows_of(SHAPE, encoder, fs.LocalFileSystem(), paths, changes)
        old = [] if found is None else found.to_pylist()
        live = {key: at for key, at in state.items() if at is not None}
        assert {key_of(row): row["c0"] for row in old} == {key: at for key, at in live.items() if key in wanted}
        assert all(row["kind"] == OLD for row in old)
        split = len(whole)
        pieces = list(merged_bucket(SHAPE, fs.LocalFileSystem(), paths[:split], paths[split:]))
        merged = [table for _, table in pieces]
        assert not [path for path in Path(folder).iterdir() if str(path) not in paths]
    read = [cells_of(SHAPE.file_table, one_batch(table), range(SHAPE.width)) for table in merged]
    left = [row for cells in read for row in cells.to_pylist()]
    assert sorted(map(repr, map(key_of, left))) == sorted(map(repr, live))
    assert {key_of(row): row["c0"] for row in left} == live
    for piece in range(split):
        mine = [table for number, table in pieces if number == piece]
        if mine:
            cells = cells_of(SHAPE.file_table, one_batch(pa.concat_tables(mine)), range(SHAPE.width))
            order = [(name, "ascending") for name in SHAPE.sorting]
            assert pc.sort_indices(cells, sort_keys=order).to_pylist() == list(range(cells.num_rows)), (
                "each file is in order"
            )
    assert not any(one["deleted"] for table in merged for one in table.column(OWN).to_pylist())


@pytest.mark.slow
@given(st.lists(st.text(), unique=True), st.sampled_from([1, 2, 8]))
def test_each_row_is_in_one_bucket(texts: list[str], buckets: int) -> None:
    keys = pa.array([text.encode() for text in texts], pa.binary())
    dealt = dict(base_rows.by_bucket(keys, buckets))
    assert sorted(place for places in dealt.values() for place in places.tolist()) == list(range(len(texts)))
    for bucket, places in dealt.items():
        assert set(key_hashes(keys.take(pa.array(places))) % buckets) == {bucket}
