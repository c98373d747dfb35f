"""Pulls that are begun anew, and pulls that hang."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import CallFailed, Change, SyncedDb
from anabranch.client.prefetch import prefetched
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
