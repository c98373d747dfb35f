"""A server in memory with three tables, and devices on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.choosing.tables import Open, Server

from anabranch.client import SyncedDb


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def opened(tmp_path: Path, server: Server) -> Iterator[Open]:
    made: list[SyncedDb] = []

    def open_file(tables: Any = None, name: str = "d", start: bool = True, **options: Any) -> SyncedDb:
        device = SyncedDb(tmp_path / f"{name}.db", server, "d", tables=tables, **options)
        made.append(device)
        if start:
            device.start(background=False)
        return device

    yield open_file
    for device in made:
        device.close()
