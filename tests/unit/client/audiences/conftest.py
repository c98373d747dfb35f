"""Devices on a server whose rows have audiences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.client.audiences.teams import Open, Teams

from anabranch.client import SyncedDb


@pytest.fixture
def remote() -> Teams:
    return Teams()


@pytest.fixture
def opened(tmp_path: Path, remote: Teams) -> Iterator[Open]:
    made: list[SyncedDb] = []

    def open_file(start: bool = True, on: Teams = remote, **options: Any) -> SyncedDb:
        device = SyncedDb(tmp_path / "d.db", on, "d", **options)
        made.append(device)
        if start:
            device.start(background=False)
        return device

    yield open_file
    for device in made:
        device.close()
