"""The connection's state machine, edge by edge; the table is in ``client.sync``."""

from __future__ import annotations

import queue as queues
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from anabranch.client import CallFailed, State, SyncedDb, WrongPrincipal
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.lease import Lease
from anabranch.client.queue import statements
from anabranch.client.sync import SyncLoop

WAIT_S = 20.0
AWAY = CallFailed("UNAVAILABLE", "", "away", again=True)
REFUSED = CallFailed("NOT_FOUND", "UNKNOWN_DATABASE", "no such database", again=False)


class Half:
    """Reader and sender at once, each call of which ends as told: "hang", a failure, or in success (None)."""

    def __init__(self, file: DeviceFile) -> None:
        self.file = file
        self.heard_s = time.monotonic()
        self.read: CallFailed | str | None = "hang"
        self.send: CallFailed | str | None = None
        self.reads: queues.Queue[float] = queues.Queue()
        self.sends: queues.Queue[float] = queues.Queue()
        self.cancelled = threading.Event()
        self.hung_up = threading.Event()
        self.rested = threading.Event()
        self.online: Callable[[], None] = lambda: None

    def follow(self, stopped: Callable[[], bool], online: Callable[[], None]) -> None:
        self.online = online
        self.reads.put(time.monotonic())
        if isinstance(self.read, CallFailed):
            raise self.read
        online()
        self.cancelled.wait(WAIT_S)
        self.cancelled.clear()

    def has_work(self) -> bool:
        return statements.has_unsent(self.file.reader())

    def cancel(self) -> None:
        self.cancelled.set()

    def verify(self, stopped: Callable[[], bool]) -> None:
        return None

    def patience_s(self) -> float:
        return 1.0

    def flush(self, timeout_s: float) -> bool:
        self.sends.put(time.monotonic())
        if isinstance(self.send, CallFailed):
            raise self.send
        if self.send == "hang":
            self.hung_up.wait(WAIT_S)
            raise AWAY
        return True

    def hang_up(self) -> None:
        self.hung_up.set()

    def rest(self) -> None:
        self.rested.set()


@pytest.fixture
def half(device: SyncedDb) -> Half:
    return Half(device._file)


@pytest.fixture
def told(device: SyncedDb) -> queues.Queue[State]:
    states: queues.Queue[State] = queues.Queue()
    device.on_state(lambda s: None if s.kind == "changed_elsewhere" else states.put(s))
    return states


@pytest.fixture
def loop(device: SyncedDb, half: Half, tmp_path: Path) -> Iterator[SyncLoop]:
    made = SyncLoop(device._file, half, half, Lease(tmp_path / "loop"))  # type: ignore[arg-type]
    yield made
    half.hung_up.set()
    made.stop(lambda: None)


def kinds(told: queues.Queue[State], *expected: str) -> None:
    """These are told next, in this order, and nothing between them."""
    assert [told.get(timeout=WAIT_S).kind for _ in expected] == list(expected)


def silent(told: queues.Queue[State]) -> None:
    assert told.empty(), told.queue


def test_the_first_answer_is_online_and_told_once(loop: SyncLoop, half: Half, told: queues.Queue[State]) -> None:
    loop.start()
    kinds(told, "leader", "online")
    for _ in range(3):
        half.online()
    silent(told)


@pytest.mark.parametrize(("error", "kind"), [(AWAY, "offline"), (REFUSED, "error")])
def test_a_half_that_fails_is_told_once_and_online_again_when_it_answers(
    device: SyncedDb, loop: SyncLoop, half: Half, told: queues.Queue[State], error: CallFailed, kind: str
) -> None:
    half.read = error
    loop.start()
    kinds(told, "leader", kind)
    for _ in range(3):
        half.reads.get(timeout=WAIT_S)
        loop.network_up()
    silent(told)
    half.read = "hang"
    loop.network_up()
    kinds(told, "online")


def test_trouble_of_another_kind_is_told(loop: SyncLoop, half: Half, told: queues.Queue[State]) -> None:
    half.read = AWAY
    loop.start()
    kinds(told, "leader", "offline")
    half.read = REFUSED
    loop.network_up()
    kinds(told, "error")
    half.read = AWAY
    loop.network_up()
    kinds(told, "offline")


def test_online_only_when_both_halves_are_good(
    device: SyncedDb, loop: SyncLoop, half: Half, told: queues.Queue[State]
) -> None:
    half.send = AWAY
    loop.start()
    kinds(told, "leader", "online")
    batch = device.table("todo").update({"id": "k0", "title": "mine"})
    loop.wake()
    kinds(told, "offline")
    half.online()
    silent(told)
    half.send = REFUSED
    loop.network_up()
    kinds(told, "error")
    # Sending ends otherwise: the batch is no longer there.
    with device._file.transaction() as tx:
        tx.conn.execute("DELETE FROM _db_mutations_queue WHERE id = ?", (batch,))
    loop.network_up()
    kinds(told, "online")


def test_a_network_that_is_back_ends_the_wait_at_once(
    loop: SyncLoop, half: Half, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.client.sync._BACKOFF_MIN_S", 60.0)
    half.read = AWAY
    loop.start()
    half.reads.get(timeout=WAIT_S)
    for _ in range(5):
        loop.network_up()
        half.reads.get(timeout=WAIT_S)


def test_a_network_that_came_back_while_a_call_was_failing_is_not_missed(
    device: SyncedDb, loop: SyncLoop, half: Half, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.client.sync._BACKOFF_MIN_S", 60.0)
    half.send = "hang"
    device.table("todo").update({"id": "k0", "title": "mine"})
    loop.start()
    half.sends.get(timeout=WAIT_S)
    loop.network_up()
    assert not half.hung_up.is_set(), "the call has only just begun"
    half.send = None
    half.hung_up.set()
    half.sends.get(timeout=WAIT_S)


def test_a_call_that_has_been_silent_is_hung_up_on_when_the_network_changes(
    device: SyncedDb, loop: SyncLoop, half: Half, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anabranch.client.sync._QUIET_S", 0.0)
    half.send = "hang"
    device.table("todo").update({"id": "k0", "title": "mine"})
    loop.start()
    half.sends.get(timeout=WAIT_S)
    loop.network_up()
    half.sends.get(timeout=WAIT_S)
    assert half.hung_up.is_set()


def test_a_follower_leads_when_the_lease_is_let_go(
    device: SyncedDb, loop: SyncLoop, half: Half, told: queues.Queue[State], tmp_path: Path
) -> None:
    other = Lease(tmp_path / "loop")
    assert other.acquire()
    loop.start()
    kinds(told, "follower")
    assert half.reads.empty()
    other.release()
    kinds(told, "leader", "online")


def test_a_follower_can_be_stopped(loop: SyncLoop, told: queues.Queue[State], tmp_path: Path) -> None:
    other = Lease(tmp_path / "loop")
    assert other.acquire()
    loop.start()
    kinds(told, "follower")
    loop.stop(lambda: None)
    other.release()
    silent(told)
    assert not loop._lease.held


def test_a_wrong_principal_ends_both_halves(
    device: SyncedDb, loop: SyncLoop, half: Half, told: queues.Queue[State]
) -> None:
    half.send = WrongPrincipal("the file belongs to alice")
    device.table("todo").update({"id": "k0", "title": "mine"})
    half.read = AWAY
    loop.start()
    seen = [told.get(timeout=WAIT_S).kind]
    while seen[-1] != "wrong_principal":
        seen.append(told.get(timeout=WAIT_S).kind)
    assert seen.count("wrong_principal") == 1
    for thread in loop._threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert half.rested.is_set(), "no stream is left open"
    assert device.status().unsent == 1
    with pytest.raises(WrongPrincipal, match="alice"):
        device.table("todo").update({"id": "k0", "title": "mine, too"})
