"""The background's threads: how long they wait, what wakes them, what ends them."""

from __future__ import annotations

import contextlib
import queue as queues
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from anabranch.client import CallFailed, RemoteDb, State, SyncedDb, sync
from anabranch.client.errors import WrongPrincipal
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.lease import Lease
from anabranch.client.queue import statements
from anabranch.client.reading import sums
from anabranch.client.sync import SyncLoop
from anabranch.testkit.memory_remote import MemoryRemote

WAIT_S = 20.0


class Follows:
    """A reader whose subscriptions end as told: it is the loop that is under test."""

    def __init__(self, verify: Callable[[Callable[[], bool]], None]) -> None:
        self.verify = verify
        self.heard_s = time.monotonic()
        self.cancelled = threading.Event()
        self.answers = True
        self.fails: CallFailed | None = None
        self.began: queues.Queue[float] = queues.Queue()

    def follow(self, stopped: Callable[[], bool], online: Callable[[], None]) -> None:
        self.began.put(time.monotonic())
        if self.answers:
            online()
        if self.fails is not None:
            raise self.fails
        self.cancelled.wait(WAIT_S)
        self.cancelled.clear()

    def cancel(self) -> None:
        self.cancelled.set()

    def heed_choice(self) -> None:
        """The device has chosen no tables."""


class Sends:
    def __init__(self, file: DeviceFile) -> None:
        self.file = file
        self.flushes: queues.Queue[float] = queues.Queue()

    def has_work(self) -> bool:
        return statements.has_unsent(self.file.reader())

    def patience_s(self) -> float:
        return 45.0

    def flush(self, timeout_s: float) -> bool:
        self.flushes.put(timeout_s)
        return True

    def rest(self) -> None:
        return None


class Loop(SyncLoop):
    """Notes its pauses in place of making them, and ends after ``most``."""

    most = 10**9

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pauses: list[float] = []

    def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) >= self.most:
            self._stopped.set()
            self._wake.set()


@pytest.fixture
def reader(device: SyncedDb) -> Follows:
    return Follows(device._reader.verify)


@pytest.fixture
def sender(device: SyncedDb) -> Sends:
    return Sends(device._file)


@pytest.fixture
def loop(device: SyncedDb, reader: Follows, sender: Sends, tmp_path: Path) -> Iterator[Loop]:
    made = Loop(device._file, sender, reader, Lease(tmp_path / "loop"))
    yield made
    made.stop(lambda: None)


def ended(loop: SyncLoop) -> None:
    for thread in loop._threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_backoff_grows_while_nothing_answers_and_is_spread_out_at_its_cap(loop: Loop, reader: Follows) -> None:
    reader.answers, reader.fails = False, CallFailed("UNAVAILABLE", "", "away", again=True)
    loop.most = 60
    loop.start()
    ended(loop)
    assert loop.pauses[0] <= 1
    capped = loop.pauses[8:]
    assert all(0.5 <= pause <= 60 for pause in loop.pauses)
    assert max(capped) > 30
    assert min(capped) < 30
    assert len({round(pause) for pause in capped}) > 15


def test_backoff_starts_anew_after_a_subscription_that_stood(
    loop: Loop, reader: Follows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that fails now and then must not lead to a minute's wait after the tenth time."""
    monkeypatch.setattr(sync, "_STEADY_S", 0.0)
    reader.fails = CallFailed("UNAVAILABLE", "", "the network is gone", again=True)
    loop.most = 30
    loop.start()
    ended(loop)
    assert all(0 < pause <= 1 for pause in loop.pauses)
    assert len({round(pause, 2) for pause in loop.pauses}) > 5


def test_a_subscription_that_falls_at_once_is_no_success(loop: Loop, reader: Follows) -> None:
    reader.fails = CallFailed("UNAVAILABLE", "", "the network is gone", again=True)
    loop.most = 30
    loop.start()
    ended(loop)
    assert max(loop.pauses) > 5


def test_a_stop_between_the_look_at_it_and_the_clearing_of_the_wake_is_seen(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender clears what wakes it, then waits: a stop that came just before must not be cleared with it."""
    wake = threading.Event()

    class StoppedBeforeClear:
        """The sender's wake, with a stop at the one moment when it can be lost."""

        def clear(self) -> None:
            loop._stopped.set()
            wake.set()
            wake.clear()

        set, wait = wake.set, wake.wait

    monkeypatch.setattr(loop, "_wake", StoppedBeforeClear())
    sending = threading.Thread(target=loop._send, daemon=True)
    sending.start()
    sending.join(WAIT_S)
    ended_in_time = not sending.is_alive()
    wake.set()
    assert ended_in_time


def test_a_file_of_another_principal_ends_the_wait_of_the_other_half(
    device: SyncedDb, reader: Follows, sender: Sends, tmp_path: Path
) -> None:
    """Such a file stops both halves at once: the other one may be in a backoff of a minute."""
    reader.fails = CallFailed("UNAVAILABLE", "", "away", again=True)
    paused = threading.Event()

    class PausesForAMinute(SyncLoop):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)

        def _pause(self, seconds: float) -> None:
            paused.set()
            super()._pause(60.0)

    plain = PausesForAMinute(device._file, sender, reader, Lease(tmp_path / "plain"))
    plain.start()
    assert paused.wait(WAIT_S)

    def other_principal(timeout_s: float) -> bool:
        raise WrongPrincipal("the file is another's")

    sender.flush = other_principal  # type: ignore[method-assign]
    device.table("todo").update({"id": "k0", "n": 1})
    plain._wake.set()
    for thread in tuple(plain._threads):
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_what_the_log_passed_unseen_is_sent_again_without_a_further_write(
    device: SyncedDb, loop: Loop, sender: Sends
) -> None:
    batch_id = device.table("todo").update({"id": "k0", "n": 1})
    with device._file.transaction() as tx:
        statements.accepted(tx.conn, [(batch_id, 1, b"")])
    loop.start()
    with pytest.raises(queues.Empty):
        sender.flushes.get(timeout=1.0)
    with device._file.transaction() as tx:
        statements.ask_again(tx.conn, [batch_id])
    assert sender.flushes.get(timeout=WAIT_S)


def test_a_network_that_is_back_ends_a_subscription_that_has_gone_quiet(loop: Loop, reader: Follows) -> None:
    loop.start()
    reader.began.get(timeout=WAIT_S)
    loop.network_up()
    assert not reader.cancelled.is_set()
    reader.heard_s -= 60
    loop.network_up()
    reader.began.get(timeout=WAIT_S)


class Hasty(Follows):
    """A reader whose next call begins before an older one is ended, where it may."""

    ended_new = False

    def cancel(self) -> None:
        with contextlib.suppress(queues.Empty):
            self.began.put(self.began.get(timeout=0.3))
            self.ended_new = True
        super().cancel()


def test_a_network_that_is_back_ends_no_call_that_began_for_it(
    device: SyncedDb, sender: Sends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a call would wait out its backoff, though the network is there."""
    monkeypatch.setattr(sync, "_BACKOFF_MIN_S", 30.0)
    reader = Hasty(device._reader.verify)
    reader.fails = CallFailed("UNAVAILABLE", "", "no network", again=True)
    offline = threading.Event()
    device.on_state(lambda state: offline.set() if state.kind == "offline" else None)
    loop = SyncLoop(device._file, sender, reader, Lease(tmp_path / "loop"))  # type: ignore[arg-type]
    loop.start()
    try:
        reader.began.get(timeout=WAIT_S)
        assert offline.wait(WAIT_S)
        reader.fails = None
        reader.heard_s -= 60
        loop.network_up()
        assert not reader.ended_new
        reader.began.get(timeout=WAIT_S)
    finally:
        loop.stop(lambda: None)


def test_rows_that_are_not_those_sent_disagree_until_they_are_mended(
    device: SyncedDb, remote: MemoryRemote, loop: Loop
) -> None:
    states: queues.Queue[State] = queues.Queue()
    device.on_state(lambda s: states.put(s) if s.kind.startswith("sums") else None)
    with device._file.transaction() as tx:
        with tx.writing(tx.tables["todo"], 1):
            tx.conn.execute("UPDATE todo SET title = 'damaged' WHERE id = 'k0'")
        tx.conn.execute("UPDATE _db_tables SET verified = 0")
    loop.start()
    assert states.get(timeout=WAIT_S).kind == "sums_disagree"
    # A heartbeat's sums are those that the pull was sent with.
    with device._file.transaction() as tx:
        sums.compare(tx, remote.sums(), tx.state.cursor_ms)
    device._listeners.deliver()
    assert states.empty()
    assert device.status().disagreeing == ("todo",)


class Silent(grpc.GenericRpcHandler):
    """Takes every call and answers none, until ``ended``."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.ended = threading.Event()

    def service(self, details: Any) -> Any:
        return grpc.unary_unary_rpc_method_handler(self._wait)

    def _wait(self, request: Any, context: Any) -> bytes:
        self.called.set()
        self.ended.wait(WAIT_S)
        return b""


def test_stop_does_not_wait_for_a_server_that_is_silent(tmp_path: Path, device: SyncedDb) -> None:
    device.table("todo").update({"id": "k0", "n": 1})
    device.close()
    silent = Silent()
    server = grpc.server(ThreadPoolExecutor(8), handlers=[silent])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        again = SyncedDb(tmp_path / "device.db", RemoteDb(f"127.0.0.1:{port}"), "d")
        again.start()
        assert silent.called.wait(WAIT_S)
        began = time.monotonic()
        again.close()
        assert time.monotonic() - began < 10
    finally:
        silent.ended.set()
        server.stop(None).wait()
