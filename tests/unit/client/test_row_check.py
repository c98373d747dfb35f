"""All rows are read beside the app's calls, never inside one."""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import State, SyncedDb
from anabranch.client.reading import sums
from anabranch.testkit.memory_remote import MemoryRemote
from anabranch.testkit.unseen import write_unseen

WAIT_S = 20


def test_a_sync_after_a_pull_does_not_wait_until_all_rows_are_read(
    tmp_path: Path, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, began, may_end = sums.verify, threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def slow(*arguments: Any) -> bool | None:
        threads.append(threading.current_thread())
        began.set()
        assert may_end.wait(WAIT_S if threading.current_thread() is not threading.main_thread() else 0.1)
        return verify(*arguments)

    monkeypatch.setattr(sums, "verify", slow)
    device = SyncedDb(tmp_path / "d.db", remote, "d")
    device.start(background=False)
    assert device.sync()
    assert began.wait(WAIT_S)
    device.table("todo").update({"id": "k0", "n": 7})
    assert device.sync()
    assert device.sync()
    assert len(threads) == 1, "one reads at a time"
    may_end.set()
    _until(lambda: not device._reader.verify_is_due())
    device.close()
    assert not threads[0].is_alive()


def test_what_it_finds_is_told(device: SyncedDb) -> None:
    told: queue.Queue[State] = queue.Queue()
    device.on_state(lambda state: told.put(state) if state.kind.startswith("sums") else None)
    with sqlite3.connect(device._file.path) as conn:
        write_unseen(conn, "UPDATE todo SET title = 'damaged' WHERE id = 'k0'")
        conn.execute("UPDATE _db_tables SET verified = 0")
    device.read()
    state = told.get(timeout=WAIT_S)
    assert (state.kind, state.table) == ("sums_disagree", "todo")
    assert device.status().disagreeing == ("todo",)
    assert device.repair("todo").agrees


def test_stop_ends_the_reading_and_it_is_due_again(
    tmp_path: Path, remote: MemoryRemote, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, began = sums.verify, threading.Event()

    def until_stopped(file: Any, name: str, now_ms: int, stopped: Callable[[], bool]) -> bool | None:
        began.set()
        _until(stopped)
        return verify(file, name, now_ms, stopped)

    monkeypatch.setattr(sums, "verify", until_stopped)
    device = SyncedDb(tmp_path / "d.db", remote, "d")
    device.start(background=False)
    device.read()
    assert began.wait(WAIT_S)
    device.stop()
    assert device._reader.verify_is_due()
    monkeypatch.undo()
    device.start(background=False)
    device.read()
    _until(lambda: not device._reader.verify_is_due())
    device.close()


def _until(there: Callable[[], bool]) -> None:
    """Returns when it is."""
    for _ in range(WAIT_S * 200):
        if there():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it never is")
