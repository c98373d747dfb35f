"""How long calls may take."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.client import SyncedDb
from anabranch.client.remote import SLOWEST_BYTES_PER_S
from anabranch.testkit.memory_remote import MemoryRemote


@pytest.mark.parametrize("size", [10, 900_000])
def test_a_call_has_the_time_that_its_bytes_take_on_a_poor_network(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Promise 7. With one deadline for all sizes a batch that is too large for it would hold up the queue for ever."""
    timeouts: list[float] = []
    send = remote.send

    def noted(request: Any, timeout_s: float = 0) -> Any:
        timeouts.append(timeout_s)
        return send(request)

    device.read()
    monkeypatch.setattr(remote, "send", noted)
    device.table("todo").update({"id": "k0", "title": "x" * size})
    assert device._sender.flush(device._sender.patience_s())
    assert timeouts[-1] >= 30 + size / SLOWEST_BYTES_PER_S
    assert timeouts[-1] < 120
    device.table("todo").update({"id": "k0", "title": "y" * size})
    assert device.flush(5.0)
    assert timeouts[-1] <= 5.0
