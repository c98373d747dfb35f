"""A value that lost goes from its table once it is in files, and only while the files have it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.compactor.conftest import Lake, make_lake, spark
from tests.integration.janitor.conftest import DAY_MS

from anabranch.clock import Clock
from anabranch.columnar.evidence import Evidence
from anabranch.columnar.file_columns import CONFLICTS, FileTable
from anabranch.columnar.manifest import Manifest
from anabranch.runtime.config import load_settings
from anabranch.testkit.log_writer import Logged
from anabranch.v1 import value_pb2
from anabranch_retention_janitor.config import JanitorSettings
from anabranch_retention_janitor.sweep import SweepMemory, Swept, run_once

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
__all__ = ["make_lake", "spark"]
NOTE = "create table note (id text primary key, at timestamptz, price numeric(6,2), tags text[], body text, n bigint)"
VALUES = {
    "body": value_pb2.Value(string_value="lost"),
    "n": value_pb2.Value(int64_value=2**63 - 1),
    "price": value_pb2.Value(decimal_value="NaN"),
    "at": value_pb2.Value(text_literal="294270-06-01 00:00:00+00"),
    "tags": value_pb2.Value(null_value=0),  # type: ignore[arg-type]
    "gone": value_pb2.Value(int64_value=5),
    "": value_pb2.Value(),
}


def sweep(lake: Lake) -> Swept:
    """A sweep forty days from now."""
    memory = SweepMemory(load_settings(JanitorSettings, postgres_url=lake.url))
    swept = run_once(memory, Clock().now_ms() + 40 * DAY_MS, threading.Event(), "app")
    assert swept is not None
    return swept[0]


def kept(lake: Lake) -> int:
    [(count,)] = lake.sql("select count(*) from anabranch.conflicts")
    return int(count)


def without(manifest: Manifest, name: str) -> Manifest:
    """The manifest when the table no longer has the column."""
    files = manifest.tables["note"]
    left, gone = ([c for c in files.columns.columns if (c.column.name == name) is is_gone] for is_gone in (False, True))
    table = replace(files.columns.table, columns=tuple(c.column for c in left))
    return manifest.with_tables({"note": replace(files, columns=FileTable(table, tuple(left), tuple(gone)))})


def turned_over(content: bytes) -> bytes:
    """Some bytes of the data, size and footer as they were."""
    middle = len(content) // 4
    return content[:middle] + bytes(b ^ 0xFF for b in content[middle : middle + 8]) + content[middle + 8 :]


@pytest.mark.slow
def test_promise_6_values_that_lost_stay_while_their_files_are_not_as_proven(
    make_lake: Callable[..., Lake],
) -> None:
    lake = make_lake("note", NOTE)
    writer = lake.writer()
    writer.insert("note", [("a", 0, "1.00", ("x",), "first", 1)])
    losers = [("a", column, value.SerializeToString()) for column, value in VALUES.items()]
    writer.commit([Logged("note", losers=losers)])
    writer.commit([Logged("note", losers=[("a", "body", VALUES["body"].SerializeToString())])])
    lake.compact()
    rows = kept(lake)
    assert rows == len(VALUES) + 1
    manifest = lake.manifest()
    found = Evidence(lake.root, manifest).sum(CONFLICTS, 0, manifest.to_position)
    assert found.count == rows
    # In a later manifest a column may be gone in which values lost.
    assert Evidence(lake.root, without(manifest, "body")).sum(CONFLICTS, 0, manifest.to_position) == found
    for path in map(Path, lake.paths("note", "conflicts")):
        content = path.read_bytes()
        path.write_bytes(turned_over(content))
        swept = sweep(lake)
        assert swept.bounds[0].hold.name == "PROOF"
        assert path.name in swept.bounds[0].detail or "values that lost" in swept.bounds[0].detail
        assert kept(lake) == rows
        path.write_bytes(content)
    # One that the files do not have.
    lake.sql("update anabranch.conflicts set losing_value = %s where column_name = 'n'", [b"other"])
    swept = sweep(lake)
    assert "values that lost" in swept.bounds[0].detail
    assert kept(lake) == rows
    lake.sql(
        "update anabranch.conflicts set losing_value = %s where column_name = 'n'", [VALUES["n"].SerializeToString()]
    )
    swept = sweep(lake)
    assert swept.floor == manifest.to_position
    assert kept(lake) == 0
