"""A value that would grow too far where the server stores it is refused where it is written."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from anabranch.client import SyncedDb
from anabranch.merge import Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.values import Column, Kind, Table

DOC = Table(
    "doc",
    (
        Column("id", Kind.STRING, "text"),
        Column("data", Kind.JSON, "jsonb"),
        Column("plain", Kind.JSON, "json"),
        Column("many", Kind.ARRAY, "numeric[]", element_kind=Kind.DECIMAL),
        Column("span", Kind.LITERAL, "numrange"),
    ),
    ("id",),
)
HUGE = "1e131071"


def numbers(count: int) -> str:
    return "[" + ",".join([HUGE] * count) + "]"


@pytest.fixture
def docs(tmp_path: Path) -> Iterator[SyncedDb]:
    server = MemoryServer({"doc": MemoryTable({c.name: None for c in DOC.columns})}, Policy(), park_ms=1000)
    server.head = 1_000
    remote = MemoryRemote(server, [DOC], lambda: time.time_ns() // 1_000_000)
    with closing(SyncedDb(tmp_path / "d.db", remote, "d")) as device:
        device.start(background=False)
        yield device


def test_a_value_that_grows_too_far_is_refused_with_its_column(docs: SyncedDb) -> None:
    table = docs.table("doc")
    with pytest.raises(ValueError, match=r"doc\.data: a value grows by at most 16777216 bytes, not "):
        table.insert([{"id": "1", "data": numbers(400)}])
    table.insert([{"id": "1", "data": f'{{"{numbers(400)}": 1}}', "plain": numbers(400), "span": f"[{HUGE},]"}])
    with pytest.raises(ValueError, match=r"doc\.data"):
        table.update([{"id": "1", "data": numbers(400)}])
    assert docs.status().queued == 1


def test_a_batch_that_grows_too_far_is_refused_as_a_whole(docs: SyncedDb) -> None:
    table = docs.table("doc")
    with pytest.raises(ValueError, match="grows by at most 33554432 bytes"):
        table.insert([{"id": f"{i}", "data": numbers(100)} for i in range(3)])

    def write_many() -> None:
        with docs.batch():
            for i in range(300):
                table.insert([{"id": f"{i}", "span": f"[{HUGE},]"}])

    with pytest.raises(ValueError, match="grows by at most"):
        write_many()
    assert docs.status().queued == 0
    with docs.batch():
        for i in range(2):
            table.insert([{"id": f"{i}", "data": numbers(100)}])
        with pytest.raises(ValueError, match=r"doc\.data"):
            table.insert([{"id": "2", "data": numbers(400)}])
    assert docs.status().queued == 1
