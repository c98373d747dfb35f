"""The background: one thread follows the log, one sends, both start again after failures.

State model. *follower*: another process holds the lease; every second this one tries for it. *leader*: both loops run.
The loops fail apart from each other: each waits its own backoff, which ``network_up`` cuts short, and which starts anew
after a success: a flush, or a subscription that stood for a while, however it ended. A wrong principal ends both until
the next start; everything else is tried again for ever, and told once as "offline" or "error" until it succeeds.
``stop`` ends every wait and cancels the stream, and soon every other call.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_not_exception_type, wait_random_exponential
from tenacity.stop import stop_base

from anabranch.client import queue
from anabranch.client.errors import CallFailed, WrongPrincipal
from anabranch.client.events import State
from anabranch.client.file import DeviceFile
from anabranch.client.lease import Lease
from anabranch.client.logs import get_logger
from anabranch.client.reader import Reader
from anabranch.client.sender import Sender

log = get_logger(__name__)

_LEASE_S = 1.0
_POLL_S = 0.5
_SHORT_S = 1.0
_STEADY_S = 10.0
_QUIET_S = 10.0
_SILENCE_S = 90.0
_GRACE_S = 1.0
_BACKOFF_MIN_S = 0.5
_BACKOFF_MAX_S = 60.0


class _StopWhen(stop_base):
    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped

    def __call__(self, retry_state: RetryCallState) -> bool:
        return self._stopped.is_set()


class SyncLoop:
    """The threads of one started ``SyncedDb``; used once."""

    def __init__(self, file: DeviceFile, sender: Sender, reader: Reader, lease: Lease) -> None:
        self._file = file
        self._sender = sender
        self._reader = reader
        self._lease = lease
        self._stopped = threading.Event()
        self._wake = threading.Event()
        self._network = threading.Condition()
        self._network_ups = 0
        self._told = ""
        self._told_lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads."""
        self._spawn("lead", self._lead)

    def _spawn(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"anabranch-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self, hang_up: Callable[[], None]) -> None:
        """End the threads and wait for them. ``hang_up`` ends all calls; they are given a moment to end by
        themselves."""
        self._stopped.set()
        self._wake.set()
        self.network_up()
        deadline = time.monotonic() + _GRACE_S
        # The first thread starts the others, and the list is read while it does.
        for thread in self._threads:
            while thread is not threading.current_thread() and thread.is_alive():
                # Again and again: a call may just have been begun.
                self._reader.cancel()
                if time.monotonic() > deadline:
                    hang_up()
                thread.join(0.05)
        self._lease.release()

    def wake(self) -> None:
        """There is something to send."""
        self._wake.set()

    def network_up(self) -> None:
        """Try again at once. A subscription that has gone quiet is likely to hang on the network that was before."""
        with self._network:
            self._network_ups += 1
            self._network.notify_all()
        self._wake.set()
        if time.monotonic() - self._reader.heard_s > _QUIET_S:
            self._reader.cancel()

    def _tell(self, kind: str, detail: str = "") -> None:
        with self._told_lock:
            if self._told == kind:
                return
            self._told = kind
        self._file.listeners.tell(State(kind, detail))

    def _online(self) -> None:
        self._tell("online")

    def _pause(self, seconds: float) -> None:
        with self._network:
            ups = self._network_ups
            self._network.wait_for(lambda: self._network_ups != ups or self._stopped.is_set(), seconds)

    def _forever(self, work: Callable[[], None]) -> None:
        """Do ``work`` until stopped; after a failure again with backoff, which starts anew after a success."""
        while not self._stopped.is_set():
            retrying = Retrying(
                wait=wait_random_exponential(multiplier=1, min=_BACKOFF_MIN_S, max=_BACKOFF_MAX_S),
                stop=_StopWhen(self._stopped),
                retry=retry_if_not_exception_type(WrongPrincipal),
                sleep=self._pause,
                reraise=True,
            )
            try:
                retrying(self._attempt, work)
            except WrongPrincipal as error:
                self._tell("wrong_principal", str(error))
                self._stopped.set()
                self._wake.set()
                self._reader.cancel()
            except Exception:
                if not self._stopped.is_set():
                    raise

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except WrongPrincipal:
            raise
        except CallFailed as error:
            if self._stopped.is_set():
                return
            self._failed(error)
            raise
        except Exception as error:
            if self._stopped.is_set():
                return
            log.exception("sync_failed")
            self._tell("error", str(error))
            raise

    def _failed(self, error: CallFailed) -> None:
        log.info("call_failed", code=error.code, reason=error.reason, error=error.message)
        self._tell("offline" if error.again else "error", str(error))

    def _lead(self) -> None:
        if not self._lease.acquire():
            self._file.listeners.tell(State("follower"))
            version = self._file.data_version()
            while not self._lease.acquire():
                if self._stopped.wait(_LEASE_S):
                    return
                version = self._elsewhere(version)
        self._file.listeners.tell(State("leader"))
        self._spawn("send", self._send)
        self._spawn("watch", lambda: self._forever(self._watch))
        self._forever(self._follow)

    def _follow(self) -> None:
        began = time.monotonic()
        answered: list[float] = []

        def online() -> None:
            if not answered:
                answered.append(time.monotonic())
            self._online()

        try:
            self._reader.follow(self._stopped.is_set, online)
        except WrongPrincipal:
            raise
        except CallFailed as error:
            if self._stopped.is_set() or not answered or time.monotonic() - answered[0] < _STEADY_S:
                raise
            self._failed(error)
            began = time.monotonic()
        if time.monotonic() - began < _SHORT_S:
            # A server that drains ends every stream at once: it is not asked in a busy loop, nor by all in one moment.
            self._pause(random.uniform(_SHORT_S / 4, _SHORT_S))

    def _elsewhere(self, version: int) -> int:
        now = self._file.data_version()
        if now != version:
            self._file.listeners.tell(State("changed_elsewhere"))
        return now

    def _send(self) -> None:
        self._forever(self._send_once)

    def _send_once(self) -> None:
        self._wake.clear()
        if queue.has_unsent(self._file.reader()):
            self._sender.flush(self._sender.patience_s())
            self._online()
        else:
            self._wake.wait()

    def _watch(self) -> None:
        """Notice what other processes queue and what the reader has asked for again, a subscription that has gone
        silent, and tables whose rows are to be read again."""
        version = self._file.data_version()
        while not self._stopped.wait(_POLL_S):
            version = self._elsewhere(version)
            if queue.has_unsent(self._file.reader()):
                self._wake.set()
            if time.monotonic() - self._reader.heard_s > _SILENCE_S:
                self._reader.heard_s = time.monotonic()
                self._reader.cancel()
            self._reader.verify(self._stopped.is_set)
