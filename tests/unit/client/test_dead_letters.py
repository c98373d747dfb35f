"""How long a dead letter is kept, whatever the device takes the time to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.client import SyncedDb, server_clock
from anabranch.testkit.memory_remote import MemoryRemote

DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize("in_contact", [True, False])
@pytest.mark.parametrize("device_offset_ms", [-400 * DAY_MS, 400 * DAY_MS])
def test_two_weeks_are_the_servers(
    tmp_path: Path, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch, device_offset_ms: int, in_contact: bool
) -> None:
    """Promise 6, with a device's clock that is wrong by more than a year."""
    if not in_contact:
        monkeypatch.setattr(server_clock, "_RECENT_S", -1.0)
    real_now = remote.now_ms
    offset = [0]
    remote.now_ms = lambda: real_now() + offset[0]
    device = SyncedDb(tmp_path / "d.db", remote, "d", now_ms=lambda: real_now() + device_offset_ms)
    device.start(background=False)
    device.read()
    del remote.server.rows["todo", "k0"]
    device.table("todo").delete("k0")
    assert device.flush()

    def after(days: int) -> int:
        offset[0] = days * DAY_MS
        device.read()
        device.table("todo").update({"id": "k1", "n": days})
        assert device.flush()
        return device.status().dead

    assert after(30) == 1
    assert len(device.dead_letters()) == 1
    assert after(31) == 1
    assert after(43) == 1
    assert after(46) == 0
    device.close()


def test_a_write_of_today_does_not_expire_because_the_devices_clock_is_years_behind(
    tmp_path: Path, remote: MemoryRemote
) -> None:
    """Promise 6. The database was quiet for a month, so that no position tells the device what time it is."""
    real_now = remote.now_ms
    remote.now_ms = lambda: real_now() + 30 * DAY_MS
    device = SyncedDb(tmp_path / "d.db", remote, "d", now_ms=lambda: 86_400_000)
    device.start(background=False)
    device.read()
    device._clock.forget()
    device.table("todo").update({"id": "k0", "title": "made offline"})
    assert device.flush()
    assert device.dead_letters() == []
    assert remote.server.live()["todo", "k0"]["title"] == "made offline"
    device.close()
