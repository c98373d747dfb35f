"""The application's own merge functions, asked in a child process that is killed when it overruns.

States of the child, under one lock, since it answers one question at a time:

* *none*: no question was asked yet. The first question, or ``warm``, launches it.
* *starting*: launched, and it has not answered yet. It may take ``START_S``; questions wait for it no longer than their
  own time and are then put off (``NotNowError``), so that no group is delayed by an import.
* *ready*: it has said that it is, and what it could not load.
* *gone*: it was killed for overrunning, or ended by itself. The next one is launched at once and is *starting*.

One that ends, or overruns ``START_S``, before it was ready has failed to start. After ``STARTS_AT_MOST`` failures in a
row questions are answered with that, at once, and it is launched again after ``PAUSE_S`` at the earliest.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import structlog

from anabranch import limits
from anabranch.values import Cell
from anabranch_conflict_resolver.functions.process import HEADER_BYTES, frame

_log = structlog.get_logger()
START_S = 30.0
STARTS_AT_MOST = 3
PAUSE_S = 10.0
_MODULE = "anabranch_conflict_resolver.functions.process"
_KEPT = ("PATH", "PYTHONPATH", "HOME", "LANG", "LC_ALL", "TZ")
"""The environment variables that the child gets: none of the service's settings, and so no credentials."""
_CHUNK = 1 << 16


class NotNowError(Exception):
    """The child is not ready yet, or another question is under way; the question can be asked again."""


class _GoneError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a function: ``value``, or in ``failure`` why there is none."""

    value: Cell = None
    failure: str = ""


class Functions:
    """One child at most. Its methods may be called from any thread. ``timeout_ms``: the longest that one call of a
    function may run."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_s = timeout_ms / 1000
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._ready = False
        self._launched_at = float("-inf")
        self._failed_starts = 0
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id, None where there is none."""
        process = self._process
        return None if process is None else process.pid

    def warm(self) -> None:
        """Launch the child where there is none; waits for nothing."""
        if self._process is None and self._lock.acquire(blocking=False):
            try:
                self._launch_if_none()
            finally:
                self._lock.release()

    def close(self) -> None:
        """End the child, and answer no more."""
        with self._lock:
            self._closed = True
            self._end()

    def ask(self, name: str, base: Cell, stored: Cell, incoming: Cell) -> Answer:
        """Ask one function.

        Raises:
            NotNowError: nothing was asked.
        """
        deadline = time.monotonic() + self.timeout_s
        if not self._lock.acquire(timeout=self.timeout_s):
            raise NotNowError
        try:
            if not self._wait_ready(deadline):
                return Answer(failure=f"the process of the functions has failed to start {self._failed_starts} times")
            return self._ask(frame((name, plain(base), plain(stored), plain(incoming))))
        finally:
            self._lock.release()

    def _ask(self, question: bytes) -> Answer:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        deadline = time.monotonic() + self.timeout_s
        try:
            _write(process.stdin.fileno(), question, deadline)
            done, content = _read(self._answers, deadline)
        except TimeoutError:
            self._replace("overran its time")
            return Answer(failure=f"it did not answer within {self.timeout_s * 1000:g} ms")
        except _GoneError as error:
            self._replace("ended while it was asked")
            return Answer(failure=str(error) or "its process ended before it answered")
        return Answer(content) if done else Answer(failure=content)

    def _wait_ready(self, deadline: float) -> bool:
        """Whether there is a child to ask; False where none can be started."""
        if self._closed:
            raise NotNowError
        for _ in range(STARTS_AT_MOST + 1):
            self._launch_if_none()
            if self._ready:
                return True
            if self._process is None:
                return False
            try:
                _wait(self._answers, deadline, write=False)
                _, broken = _read(self._answers, time.monotonic() + self.timeout_s)
            except TimeoutError:
                if time.monotonic() - self._launched_at < START_S:
                    raise NotNowError from None
            except _GoneError:
                pass
            else:
                self._ready, self._failed_starts = True, 0
                for name, why in broken.items():
                    _log.error("merge function can't be used", function=name, detail=why)
                return True
            self._failed_starts += 1
            _log.error("the process of the merge functions failed to start", times=self._failed_starts)
            self._end()
        return False

    def _launch_if_none(self) -> None:
        if self._process is not None or self._closed:
            return
        if self._failed_starts >= STARTS_AT_MOST and time.monotonic() - self._launched_at < PAUSE_S:
            return
        mine, theirs = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(theirs)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs,),
                env={name: os.environ[name] for name in _KEPT if name in os.environ} | {"PYTHONHASHSEED": "0"},
                start_new_session=True,
            )
        except BaseException:
            os.close(mine)
            raise
        finally:
            os.close(theirs)
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(mine, False)
        self._answers, self._ready, self._launched_at = mine, False, time.monotonic()

    def _replace(self, why: str) -> None:
        _log.warning("the process of the merge functions is replaced", why=why, pid=self.pid)
        self._end()
        self._launch_if_none()

    def _end(self) -> None:
        process, self._process, self._ready = self._process, None, False
        if process is None:
            return
        process.kill()
        if process.stdin is not None:
            # Data that was not sent is dropped with it.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        process.wait()
        os.close(self._answers)
        self._answers = -1


@dataclass(slots=True)
class Asking:
    """A group's questions so far: the answers by question, and the time that they took."""

    functions: Functions | None = None
    answers: dict[bytes, Answer] = field(default_factory=dict)
    spent_s: float = 0.0


def plain(cell: Cell) -> Cell:
    """Only plain text can be marshalled, not its subclasses."""
    if isinstance(cell, tuple):
        return tuple(plain(part) for part in cell)
    return str(cell) if isinstance(cell, str) else cell


def _wait(fd: int, deadline: float, *, write: bool) -> None:
    left = deadline - time.monotonic()
    poll = select.poll()
    poll.register(fd, select.POLLOUT if write else select.POLLIN)
    if left <= 0 or not poll.poll(left * 1000):
        raise TimeoutError


def _write(fd: int, data: bytes, deadline: float) -> None:
    view = memoryview(data)
    while view:
        _wait(fd, deadline, write=True)
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            continue
        except BrokenPipeError:
            raise _GoneError from None


def _read(fd: int, deadline: float) -> tuple[bool, Any]:
    size = int.from_bytes(_exactly(fd, HEADER_BYTES, deadline), "big")
    if size > limits.MAX_VALUE_BYTES:
        raise _GoneError(f"it returned a value of {size} bytes; the most is {limits.MAX_VALUE_BYTES}")
    try:
        done, content = marshal.loads(_exactly(fd, size, deadline))
    except (EOFError, TypeError, ValueError):
        raise _GoneError("its process answered what can't be read") from None
    return done, content


def _exactly(fd: int, size: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < size:
        _wait(fd, deadline, write=False)
        part = os.read(fd, min(size - len(data), _CHUNK))
        if not part:
            raise _GoneError
        data += part
    return bytes(data)
