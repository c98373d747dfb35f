"""A device on a server in memory: for tests of the device alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anabranch.client import SyncedDb
from anabranch.merge import Policy
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.memory_server import MemoryServer, MemoryTable
from anabranch.testkit.standing_check import checked_standing
from anabranch.values import Column, Kind, Table

TODO = Table(
    "todo",
    (Column("id", Kind.STRING, "text"), Column("title", Kind.STRING, "text"), Column("n", Kind.INT64, "bigint")),
    ("id",),
)


def _remote() -> MemoryRemote:
    server = MemoryServer({"todo": MemoryTable({"id": None, "title": None, "n": None})}, Policy(), park_ms=1000)
    server.head = 1_000
    for i in range(5):
        server.preset("todo", f"k{i}", {"id": f"k{i}", "title": f"title {i}", "n": i})
    return MemoryRemote(server, [TODO], lambda: time.time_ns() // 1_000_000)


@pytest.fixture(autouse=True)
def standing_is_true() -> Iterator[None]:
    with checked_standing():
        yield


@pytest.fixture
def remote() -> MemoryRemote:
    return _remote()


@pytest.fixture
def new_remote() -> Callable[[], MemoryRemote]:
    """Another server, as often as it is called."""
    return _remote


@pytest.fixture
def device(tmp_path: Path, remote: MemoryRemote) -> Iterator[SyncedDb]:
    made = SyncedDb(tmp_path / "device.db", remote, "d", "device")
    made.start(background=False)
    yield made
    made.close()
