"""Spark, DuckDB, polars and pyarrow read the same values, and those are what Postgres holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration.compactor.conftest import Lake

from anabranch.columnar.file_columns import OWN
from anabranch.values import Cell, Table
from anabranch.values.cells import Literal
from anabranch.values.parquet import file_codecs

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

TYPES = """
create table kinds (
    "Id" text collate "C", part int, flag boolean, small smallint, big bigint, single real, double double precision,
    text text, fixed char(5), free numeric, money numeric(12,2), wide numeric(38,10), wider numeric(40,5), raw bytea,
    wall timestamp, moment timestamptz, day date, clock time, doc json, docb jsonb, uid uuid, numbers int[],
    words text[], doubles double precision[], span interval,
    anabranch text, "table" text, "select ""x"" from `y`" text, "a.b,c;{d}(e)=\tf" text, "😀 é" text, bucket int,
    primary key ("Id", part)
)
"""
MOST, LEAST = 2**63 - 1, -(2**63)
DAY_MOST, DAY_LEAST = 2**31 - 1, -(2**31)
NAN, INFINITY = float("nan"), float("inf")
# Microseconds and days of 44 BC, 1582 and 1900, as Postgres counts them.
BC_US, BC_DAY = -63_517_824_000_000_000, -735_160
ROWS: list[tuple[Cell, ...]] = [
    ("a", 1, True, -32768, 2**63 - 1, 0.10000000149011612, 0.1, "x", "ab   ", "123456789012345678901234567890.5",
     "24680.00", "1234567890123456789012345678.0123456789", "12345678901234567890123456789012345.12345", b"\x00\xff",
     BC_US, BC_US, BC_DAY, 86_400_000_000, '{"a": 1}', "null", "00000000-0000-0000-0000-000000000001", (1, None, 3),
     ("NULL", None, ""), (NAN, -INFINITY, 0.1), "1 mon", "own", "t", "q", "dots", "smile", 7),
    ("b", 2, False, 32767, -(2**63), INFINITY, NAN, "", "     ", "NaN", "NaN", "0.0000000000", "NaN", b"", MOST, LEAST,
     DAY_MOST, 0, "null", '"x"', "ffffffff-ffff-ffff-ffff-ffffffffffff", (), (), (), "-1 days", "", "", "", "", "", 0),
    ("c", 3, *[None] * 29),
    ("d", 4, True, 0, 0, -0.0, -0.0, "e\u0301 😀\n", "abcde", "-Infinity", "-0.01", "-1.0000000001", "0.00000", b"'",
     LEAST, MOST, DAY_LEAST, 1, "1", "1", "00000000-0000-0000-0000-00000000000a", ((1, 2), (3, 4)),
     Literal("[0:1]={a,b}"), (1e300,), "00:00:01", "x", "x", "x", "x", "x", -1),
    ("e", 5, True, 1, 1, 1.5, 5e-324, "t", "t    ", "Infinity", "9999999999.99", "1.0000000000", "1.00000", b"z",
     Literal("294270-06-01 00:00:00"), Literal("294270-06-01 00:00:00+00"), -25_567, 43_200_000_001, "[]", "[]",
     "00000000-0000-0000-0000-00000000000b", (None,), ('a"b\\', "c,d"), (-0.0,), "1 day", "x", "x", "x", "x", "x", 1),
]  # fmt: skip


def by_spark(lake: Lake, paths: Sequence[str]) -> pa.Table:
    found: pa.Table = lake.spark.read.parquet(*(f"file:{path}" for path in paths)).toArrow()
    return found


def by_duckdb(lake: Lake, paths: Sequence[str]) -> pa.Table:
    with duckdb.connect() as conn:
        conn.execute("set timezone = 'UTC'")
        return conn.execute("select * from read_parquet($1, hive_partitioning = false)", [list(paths)]).to_arrow_table()


def by_polars(lake: Lake, paths: Sequence[str]) -> pa.Table:
    return polars.read_parquet(list(paths), hive_partitioning=False).to_arrow()


def by_pyarrow(lake: Lake, paths: Sequence[str]) -> pa.Table:
    return pa.concat_tables([pq.read_table(path, partitioning=None) for path in paths])


READERS: list[Callable[[Lake, Sequence[str]], pa.Table]] = [by_spark, by_duckdb, by_polars, by_pyarrow]


def cells(table: Table, names: Sequence[str], found: pa.Table) -> list[tuple[Cell, ...]]:
    """The rows of a reader, exact texts put in, by key."""
    columns = []
    own = found.column(OWN).combine_chunks().to_pylist()
    for codec, name in zip(file_codecs(table.columns), names, strict=True):
        values = found.column(name).combine_chunks().cast(codec.type)
        exact = [dict(row["exact"] or {}).get(name) for row in own]
        columns.append(codec.read(values, exact))
    return sorted(zip(*columns, strict=True), key=lambda row: str(row[0]))


@pytest.mark.parametrize("part", ["changes", "base"])
def test_four_readers_give_what_postgres_holds(make_lake: Any, part: str) -> None:
    lake = make_lake("kinds", TYPES)
    writer = lake.writer()
    table = writer.table("kinds")
    writer.insert("kinds", ROWS)
    assert lake.compact().without_base == ()
    files = lake.manifest().tables["kinds"].columns
    names = [column.file_name for column in files.columns]
    assert names[table.index["anabranch"]] == "anabranch (2)"
    for read in READERS:
        found = cells(table, names, read(lake, lake.paths("kinds", part)))
        assert [list(map(repr, row)) for row in found] == [list(map(repr, row)) for row in ROWS], read.__name__


@pytest.mark.long
def test_timestamps_are_int64_and_decimals_are_decimals(make_lake: Any) -> None:
    lake = make_lake("kinds", TYPES)
    lake.writer().insert("kinds", ROWS[:1])
    lake.compact()
    for part in ("changes", "base"):
        [path] = lake.paths("kinds", part)
        schema = pq.ParquetFile(path).schema
        found = {schema.column(i).path: schema.column(i) for i in range(len(schema))}
        for name, zone in (("wall", False), ("moment", True)):
            assert found[name].physical_type == "INT64"
            logical = str(found[name].logical_type)
            assert f"isAdjustedToUTC={str(zone).lower()}, timeUnit=microseconds" in logical
        assert "Decimal(precision=12, scale=2)" in str(found["money"].logical_type)
        assert str(found["wider"].logical_type) == "String"


@pytest.mark.long
def test_rows_are_sorted_by_key_and_row_groups_can_be_left_out(lake: Lake) -> None:
    writer = lake.writer()
    writer.insert("todo", [(f"k{(i * 7919) % 1000:04}", "x", None, i) for i in range(1000)])
    lake.compact()
    for part in ("changes", "base"):
        for path in lake.paths("todo", part):
            keys = pq.read_table(path, columns=["id"], partitioning=None).column("id").to_pylist()
            assert keys == sorted(keys)
            metadata = pq.ParquetFile(path).metadata
            statistics = metadata.row_group(0).column(0).statistics
            assert (statistics.min, statistics.max) == (min(keys), max(keys))
            assert Path(path).stat().st_size > 0
