"""Hooks end when the app says so, and before the first pull every call says that it is too early."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.client import Change, NotReady, SyncedDb
from anabranch.testkit.memory_remote import MemoryRemote


def test_a_hook_ends_also_from_within_and_the_others_go_on(device: SyncedDb) -> None:
    told: list[str] = []
    ends: list[Callable[[], None]] = []

    def once(change: Change) -> None:
        told.append("once")
        ends[0]()
        ends[1]()

    ends.append(device.on_change(once))
    ends.append(device.on_change(lambda change: told.append("ended before it was called")))
    always = lambda change: told.append("always")  # noqa: E731
    device.on_change(always)
    twice = device.on_change(always)
    device.table("todo").update({"id": "k0", "n": 7})
    assert told == ["once", "always", "always"]
    twice()
    twice()
    told.clear()
    device.table("todo").update({"id": "k0", "n": 8})
    assert told == ["always"]
    for hook in (device.on_state, device.on_conflict):
        hook(lambda event: None)()


@pytest.mark.parametrize(
    "call",
    [
        lambda db: db.table("todo").insert({"id": "a"}),
        lambda db: db.table("todo").update({"id": "k0", "n": 1}),
        lambda db: db.table("todo").delete("k0"),
        lambda db: db.execute("SELECT * FROM todo"),
        lambda db: db.verify("todo"),
        lambda db: db.repair("todo"),
        lambda db: db.conflicts("todo"),
    ],
)
def test_before_the_first_pull_every_call_says_so(
    tmp_path: Path, remote: MemoryRemote, call: Callable[[SyncedDb], object]
) -> None:
    db = SyncedDb(tmp_path / "early.db", remote, "d")
    with pytest.raises(NotReady, match="first pull"):
        call(db)
    assert db.status().queued == 0
    db.start(background=False)
    assert len(db.execute("SELECT * FROM todo").fetchall()) == 5
    db.close()
