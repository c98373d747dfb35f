"""Pulls that are cut, begun anew, behind the floor or in another history, and pulls that hang."""

from __future__ import annotations

import copy
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import (
    CallFailed,
    Change,
    NotReady,
    SyncedDb,
)
from anabranch.client.reading.prefetch import prefetched
from anabranch.testkit.memory_remote import MemoryRemote


def test_rows_of_a_pull_that_is_begun_anew_are_told_of_once_more_only_after_their_end(
    tmp_path: Path, remote: MemoryRemote
) -> None:
    told: list[Change] = []
    device = SyncedDb(tmp_path / "d.db", remote, "d")
    device.on_change(told.append)
    remote.cut_pull_after = 1
    with pytest.raises(CallFailed):
        device.start(background=False)
    first = [c.key for c in told]
    assert first
    remote.epoch = "epoch-2"
    device.start(background=False)
    shown: Counter[tuple[Any, ...]] = Counter()
    for change in told:
        shown[change.key] += {"insert": 1, "update": 0, "delete": -1}[change.type]
        assert shown[change.key] in (0, 1)
    assert [c.key for c in told if c.type == "delete"] == first
    assert {key for (key,) in device.execute("SELECT id FROM todo")} == {key for (key,), n in shown.items() if n}
    device.close()


class Hangs:
    """One response, then nothing."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self._said = False

    def __iter__(self) -> Hangs:
        return self

    def __next__(self) -> Any:
        if not self._said:
            self._said = True
            return "response"
        assert self.cancelled.wait(20)
        raise CallFailed("CANCELLED", "", "cancelled", again=True)

    def cancel(self) -> None:
        self.cancelled.set()


def test_a_stream_that_hangs_fails_as_a_call_does() -> None:
    stream: Any = Hangs()
    with prefetched(stream, 2, 0.05) as responses:
        assert next(responses) == "response"
        with pytest.raises(CallFailed, match=r"nothing came for 0\.05 s") as failed:
            next(responses)
    assert (failed.value.code, failed.value.again) == ("DEADLINE_EXCEEDED", True)
    assert stream.cancelled.is_set()


def titles(device: SyncedDb) -> dict[str, str]:
    return dict(device.execute("SELECT id, title FROM todo").fetchall())


def test_a_cut_pull_goes_on_where_it_was(tmp_path: Path, remote: MemoryRemote) -> None:
    device = SyncedDb(tmp_path / "d.db", remote, "d")
    remote.cut_pull_after = 1
    with pytest.raises(CallFailed):
        device.start(background=False)
    assert device.execute("SELECT count(*) FROM todo").fetchone() == (2,)
    with pytest.raises(NotReady):
        device.table("todo").insert({"id": "x"})
    seen: list[Any] = []
    device.start(background=False, progress=seen.append)
    assert len(seen) == 2
    assert len(titles(device)) == 5
    device.read()
    assert device.status().disagreeing == ()
    device.close()


def test_behind_the_floor_a_new_snapshot_replaces_rows_and_keeps_the_queue(
    device: SyncedDb, remote: MemoryRemote
) -> None:
    device.table("todo").update({"id": "k1", "title": "unsent"})
    device.table("todo").insert({"id": "mine", "title": "unsent"})
    for key in ("k3", "k4"):
        del remote.server.rows["todo", key]
    remote.server.preset("todo", "new", {"id": "new", "title": "while away"})
    remote.server.head += 10
    remote.floor = remote.server.head
    told: list[Change] = []
    device.on_change(told.append)
    device.read()
    assert titles(device) == {
        "k0": "title 0",
        "k1": "unsent",
        "k2": "title 2",
        "mine": "unsent",
        "new": "while away",
    }
    assert {(c.type, c.key[0], c.origin) for c in told} == {
        ("delete", "k3", "snapshot"),
        ("delete", "k4", "snapshot"),
        ("insert", "new", "snapshot"),
    }
    assert (device.status().queued, device.status().pulls) == (2, 2)
    assert device.sync()
    assert device.status().queued == 0
    assert titles(device)["k1"] == "unsent"
    assert device.status().disagreeing == ()


def test_in_another_history_rows_are_taken_anew_and_unsent_work_is_kept(
    device: SyncedDb, remote: MemoryRemote, tmp_path: Path
) -> None:
    backup = copy.deepcopy(remote.server)
    device.table("todo").update({"id": "k0", "title": "lost future"})
    assert device.sync()
    device.table("todo").update({"id": "k1", "title": "unsent"})
    beyond = device.status().cursor
    remote.server = backup
    remote.server.policy_of = lambda _: backup.policy
    remote.epoch = "epoch-2"
    device.read()
    assert titles(device)["k0"] == "title 0"
    assert titles(device)["k1"] == "unsent"
    assert device.status().cursor < beyond
    assert device.execute("SELECT basis FROM _db_mutations_queue").fetchall() == [(device.status().cursor,)]
    assert device.sync()
    assert (device.status().queued, device.status().disagreeing) == (0, ())
    assert backup.live()["todo", "k1"]["title"] == "unsent"
