"""Groups that are folded in several turns, and rows that thousands of pending batches touch."""

from __future__ import annotations

import pytest

from anabranch.client import SyncedDb, apply
from anabranch.testkit.memory_remote import MemoryRemote


def test_a_batch_that_is_folded_in_turns_keeps_its_rows_and_the_sum(
    device: SyncedDb, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Promise 5. Its rows lose their base images in the very transaction that brings them by the log."""
    monkeypatch.setattr(apply, "_ROWS_AT_ONCE", 3)
    remote.part_effects = 4
    device.table("todo").insert([{"id": f"n{i}", "n": i} for i in range(20)])
    assert device.sync()
    assert device.execute("SELECT count(*) FROM todo").fetchone() == (25,)
    assert device.status().queued == 0
    assert device.execute("SELECT count(*) FROM _db_base").fetchone() == (0,)
    (there,) = remote.sums()
    assert device.table_sums()["todo"] == (there.count, there.hash)
    assert device.status().disagreeing == ()
