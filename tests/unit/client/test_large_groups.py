"""Groups that are folded in several turns, and rows that thousands of pending batches touch."""

from __future__ import annotations

import pytest

from anabranch.client import SyncedDb
from anabranch.client.queue import statements
from anabranch.client.reading import apply
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


def test_what_may_leave_costs_the_same_however_many_batches_touch_its_row(device: SyncedDb) -> None:
    """Counted in steps of SQLite's machine: the queue's length must not matter, also where all of it is one row's."""
    writer = device._file._write
    steps = [0]

    def count() -> int:
        steps[0] += 1
        return 0

    def measure() -> int:
        (ids,) = zip(*writer.execute("SELECT id FROM _db_mutations_queue ORDER BY id LIMIT 21"), strict=True)
        with device._file.transaction() as tx:
            statements.mark_seen(tx.conn, [*ids[:10], *ids[11:21]])
            steps[0] = 0
            writer.set_progress_handler(count, 1)
            assert statements.leaving(tx.conn) == list(ids[:10])
            writer.set_progress_handler(None, 1)
            tx.conn.execute("UPDATE _db_mutations_queue SET seen = 0")
        return steps[0]

    writer.execute("PRAGMA synchronous = OFF")
    for i in range(1, 2_001):
        device.table("todo").update({"id": "k0", "n": i})
        if i == 50:
            few = measure()
    assert few > 50
    assert measure() <= few * 1.1
