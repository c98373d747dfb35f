"""Devices on a server in memory whose tables are altered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.schema.altered import Open, new_remote

from anabranch.client import SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote


@pytest.fixture
def remote() -> MemoryRemote:
    return new_remote()


@pytest.fixture
def opened(tmp_path: Path, remote: MemoryRemote) -> Iterator[Open]:
    made: list[SyncedDb] = []

    def open_file(name: str = "d", start: bool = True, **options: Any) -> SyncedDb:
        device = SyncedDb(tmp_path / f"{name}.db", remote, "d", **options)
        made.append(device)
        if start:
            device.start(background=False)
        return device

    yield open_file
    for device in made:
        device.close()


@pytest.fixture
def device(opened: Open) -> SyncedDb:
    return opened()
