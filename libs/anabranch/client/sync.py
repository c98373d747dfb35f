"""The background: one thread follows the log, one sends, both start again after failures.

State model. *follower*: another process holds the lease; every second this one tries for it. *leader*: both loops run,
until *stopped*.

=============  ================================================  ============  =========================================
from           what happens                                      to            published
=============  ================================================  ============  =========================================
(start)        the lease is free                                 leader        "leader"
(start)        another process holds it                          follower      "follower"
follower       the lease is let go, or its process has died      leader        "leader"
any            ``stop``                                          stopped       nothing; every wait ends, soon every call
leader         the file belongs to another principal             stopped       "wrong_principal"; the lease stays held
leader         the server can't tell the app's schema version    stopped       "app_outdated"; the lease stays held
=============  ================================================  ============  =========================================

A leader's connection has two halves, reading and sending, that fail apart from each other. Each is *unknown*, *good* or
*in trouble*, and the two together are published once for each change:

=============  ================================================  ============  =========================================
from           what happens to a half                            to            published
=============  ================================================  ============  =========================================
unknown, good  a call fails that may succeed later               in trouble    "offline"
unknown, good  its credentials are not taken, or there are none  in trouble    "unauthenticated"
unknown, good  the file has no room to grow                      in trouble    "disk_full"
unknown, good  a call is refused, or the file can't be written   in trouble    "error"
in trouble     it fails in another way                           in trouble    that one's word
unknown        its first answer; nothing is in trouble           good          "online"
in trouble     an answer; the other half is not in trouble       good          "online"
in trouble     an answer; the other half still is                good          nothing
=============  ================================================  ============  =========================================

A half in trouble tries again after a backoff: somewhere up to 1 s, then 2 s, 4 s and so on up to 60 s. It starts anew
after a success: a flush, or a subscription that stood for a while, however it ended. ``network_up`` ends the wait at
once, also where it came while the call was still failing, and cancels a connection that has been silent for a while. A
half that comes out of its trouble ends the other's wait: the network is likely to be back.

A token that expires while a call is under way is no trouble if the app has another one by then: the call goes on, or is
made again, with that one (``RemoteDb.renewed``). If it has not, it is asked again after each backoff.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from tenacity import RetryCallState, Retrying, retry_if_not_exception_type, wait_random_exponential
from tenacity.stop import stop_base

from anabranch.client.errors import AppOutdated, CallFailed, ClientError, DiskFull, TokenFailed, WrongPrincipal
from anabranch.client.events import State
from anabranch.client.file.device_file import DeviceFile
from anabranch.client.file.lease import Lease
from anabranch.client.logs import get_logger
from anabranch.client.queue import statements
from anabranch.client.queue.sender import Sender
from anabranch.client.reading.reader import Reader
from anabranch.client.schema import pinned

log = get_logger(__name__)

Half: TypeAlias = Literal["read", "send", "watch"]
"""The parts that fail apart from each other: the two halves of the connection, and the look at the file itself."""

_LEASE_S = 1.0
_POLL_S = 0.5
_SHORT_S = 1.0
_STEADY_S = 10.0
_QUIET_S = 10.0
_SILENCE_S = 90.0
_GRACE_S = 1.0
_SPARE_S = 5.0
_BACKOFF_MIN_S = 0.5
_BACKOFF_MAX_S = 60.0


class _StopWhen(stop_base):
    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped

    def __call__(self, retry_state: RetryCallState) -> bool:
        return self._stopped.is_set()


def _kind(error: CallFailed) -> str:
    """The kind of state that is published for a failed call."""
    if error.code == "UNAUTHENTICATED":
        return "unauthenticated"
    return "offline" if error.again else "error"


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
        self._sending_since: float | None = None
        self._attempted = threading.local()
        self._published = ""
        self._trouble: dict[Half, tuple[str, str]] = {}
        self._published_lock = threading.Lock()
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

    @property
    def is_online(self) -> bool:
        """Whether calls succeed, as far as is known."""
        return self._published == "online"

    def wake(self) -> None:
        """End the sender's wait: there is something to send; if the disk was full, there is room again."""
        self._wake.set()
        if any(kind == "disk_full" for kind, _ in tuple(self._trouble.values())):
            self._end_waits()

    def _end_waits(self) -> None:
        with self._network:
            self._network_ups += 1
            self._network.notify_all()

    def network_up(self) -> None:
        """Try again at once. A connection that has gone quiet is likely to belong to the network that was before."""
        # Waits end last: a call that began meanwhile, and is ended for an older one, is made again without one.
        now = time.monotonic()
        if now - self._reader.heard_s > _QUIET_S:
            self._reader.cancel()
        since = self._sending_since
        if since is not None and now - since > _QUIET_S:
            self._sender.hang_up()
        self._end_waits()
        self._wake.set()

    def _publish(self, half: Half, kind: str = "", detail: str = "") -> None:
        """Note and publish that a half of the connection is in trouble of this ``kind``, or, without one, good."""
        with self._published_lock:
            if kind:
                self._trouble[half] = (kind, detail)
            else:
                if self._trouble.pop(half, None) is not None and half != "watch":
                    self._end_waits()
                kind, detail = next(iter(self._trouble.values()), ("online", ""))
            if self._published == kind:
                return
            self._published = kind
        self._file.listeners.publish(State(kind, detail))

    def _pause(self, seconds: float) -> None:
        with self._network:
            ups = getattr(self._attempted, "ups", self._network_ups)
            self._network.wait_for(lambda: self._network_ups != ups or self._stopped.is_set(), seconds)

    def _forever(self, half: Half, work: Callable[[], None]) -> None:
        """Do a half's ``work`` until stopped; after a failure again with backoff, which starts anew after a success."""
        while not self._stopped.is_set():
            retrying = Retrying(
                wait=wait_random_exponential(multiplier=1, min=_BACKOFF_MIN_S, max=_BACKOFF_MAX_S),
                stop=_StopWhen(self._stopped),
                retry=retry_if_not_exception_type((WrongPrincipal, AppOutdated)),
                sleep=self._pause,
                reraise=True,
            )
            try:
                retrying(self._attempt, half, work)
            except (WrongPrincipal, AppOutdated) as error:
                if isinstance(error, WrongPrincipal):
                    self._file.listeners.publish(State("wrong_principal", str(error)))
                else:
                    pinned.note(self._file, error)
                self._stopped.set()
                self._wake.set()
                self._end_waits()
                self._reader.cancel()
            except Exception:
                if not self._stopped.is_set():
                    raise

    def _attempt(self, half: Half, work: Callable[[], None]) -> None:
        self._attempted.ups = self._network_ups
        try:
            work()
        except (WrongPrincipal, AppOutdated):
            raise
        except CallFailed as error:
            if self._stopped.is_set():
                return
            self._failed(half, error)
            raise
        except Exception as error:
            if self._stopped.is_set():
                return
            log.exception("sync_failed")
            told = self._file.diagnosed(error)
            self._publish(half, "disk_full" if isinstance(told, DiskFull) else "error", str(told))
            raise

    def _failed(self, half: Half, error: CallFailed) -> None:
        # The text of the app's own error is for the app alone: it may hold what it asked its issuer with.
        of_app = error.__cause__ if isinstance(error, TokenFailed) else None
        told = error.message if of_app is None else type(of_app).__name__
        log.info("call_failed", code=error.code, reason=error.reason, error=told)
        self._publish(half, _kind(error), str(error))

    def _lead(self) -> None:
        reported, version = False, 0
        while not self._stopped.is_set():
            try:
                if self._lease.acquire():
                    break
                if not reported:
                    self._file.listeners.publish(State("follower"))
                    reported, version = True, self._file.data_version()
                version = self._elsewhere(version)
            except (ClientError, OSError, sqlite3.Error) as error:
                # No room, or no handle left, for the lock beside the file: asked again.
                log.warning("lease_not_asked_for", error=str(error))
                self._publish("watch", "disk_full" if isinstance(error, DiskFull) else "error", str(error))
            self._stopped.wait(_LEASE_S)
        if self._stopped.is_set():
            return
        self._file.listeners.publish(State("leader"))
        self._spawn("send", self._send)
        self._spawn("watch", lambda: self._forever("watch", self._watch))
        self._forever("read", self._follow)

    def _follow(self) -> None:
        began = time.monotonic()
        answered: list[float] = []

        def online() -> None:
            if not answered:
                answered.append(time.monotonic())
            self._publish("read")

        try:
            self._reader.follow(self._stopped.is_set, online)
        except (WrongPrincipal, AppOutdated):
            raise
        except CallFailed as error:
            if self._stopped.is_set() or not answered or time.monotonic() - answered[0] < _STEADY_S:
                raise
            self._failed("read", error)
            began = time.monotonic()
        if time.monotonic() - began < _SHORT_S:
            # A server that drains ends every stream at once: it is not asked in a busy loop, nor by all in one moment.
            self._pause(random.uniform(_SHORT_S / 4, _SHORT_S))

    def _elsewhere(self, version: int) -> int:
        now = self._file.data_version()
        if now != version:
            self._file.listeners.publish(State("changed_elsewhere"))
        return now

    def _send(self) -> None:
        self._forever("send", self._send_once)
        self._sender.rest()

    def _send_once(self) -> None:
        self._wake.clear()
        if self._stopped.is_set():
            # Set before its wake, which may have been the one just cleared.
            return
        if not self._sender.has_work():
            if "send" in self._trouble and not statements.has_unsent(self._file.reader()):
                # Batches that could not be sent have ended otherwise.
                self._publish("send")
            self._wake.wait()
            return
        self._sending_since = time.monotonic()
        try:
            # A call's own deadline comes first: one that is not answered has failed.
            done = self._sender.flush(self._sender.patience_s() + _SPARE_S)
        finally:
            self._sending_since = None
        if done:
            self._publish("send")

    def _watch(self) -> None:
        """Notice batches that other processes queue or whose verdicts the reader has asked for again, tables that were
        chosen, a subscription that has gone silent, and tables whose rows are to be read again."""
        version = self._file.data_version()
        while not self._stopped.wait(_POLL_S):
            if "watch" in self._trouble:
                self._publish("watch")
            version = self._elsewhere(version)
            if self._sender.has_work():
                self._wake.set()
            if time.monotonic() - self._reader.heard_s > _SILENCE_S:
                self._reader.heard_s = time.monotonic()
                self._reader.cancel()
            self._reader.heed_choice()
            self._reader.verify(self._stopped.is_set)
