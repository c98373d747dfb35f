"""Child processes that are kept: started, watched, started again when they die, and never left behind.

States of a child, under its lock:

* *stopped*: no process. ``start`` leads to *running*.
* *running*: one process. A keeper thread waits for its end. ``stop`` leads to *stopping*.
* *died*: it ended without ``stop``. Where the child is to be restarted, the keeper starts it again after a
  pause that doubles from ``FIRST_PAUSE_S`` to ``LONGEST_PAUSE_S`` and begins anew after ``STEADY_S`` of
  running; else it stays so until ``start``.
* *stopping*: asked to end by SIGTERM; SIGKILL follows after the patience it is given. Leads to *stopped*.

Its log is looked at while it runs: a large one is copied beside itself and emptied. The child writes to the end of the
file, wherever that is; the lines of the moment between the two are lost.

A child's standard input is a pipe that only this process holds: when this process is gone, however it ended,
the child reads its end and stops by itself (``ServiceSettings.end_with_stdin``).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
STEADY_S = 30.0
KILL_S = 10.0
LOG_KEPT_BYTES = 16 * 1024 * 1024
LOG_LOOK_S = 2.0
LOG_TAIL_BYTES = 4_000


@dataclass(frozen=True, slots=True)
class Program:
    """The program that a child runs. ``environment`` is all that it gets; its output is appended to ``log``."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path


class Process(Protocol):
    """A process that was launched."""

    pid: int
    stdin: IO[bytes] | None

    def await_end(self) -> None:
        """Wait for its end, and leave it its id."""
        ...

    def wait(self) -> int:
        """Wait for its end, and let its id go; gives the exit code, or the negative number of a signal."""
        ...


Launch = Callable[[Program, IO[bytes]], Process]
"""Starts a program, whose output goes to the end of an open file. Raises OSError where it can't be started."""


class _Popen(subprocess.Popen[bytes]):
    def await_end(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


def launch(program: Program, output: IO[bytes]) -> Process:
    """Start a program as a process of its own. Raises OSError where it can't be started."""
    return _Popen(
        list(program.arguments),
        env=dict(program.environment),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C in a terminal is for us, who then stop it in order
    )


class Child:
    """One kept process. Its methods may be called from any thread.

    ``say`` is called with a text for people when the child died and when it was started again.
    """

    def __init__(
        self, program: Program, *, restarts: bool, say: Callable[[str], None], launch: Launch = launch
    ) -> None:
        self.program = program
        self.deaths = 0
        self._restarts = restarts
        self._say = say
        self._start = launch
        self._changed = threading.Condition()
        self._process: Process | None = None
        self._keeper: threading.Thread | None = None
        self._wanted = False

    @property
    def pid(self) -> int | None:
        """Its process id; None while there is no process."""
        with self._changed:
            return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it; does nothing where it runs or is about to. Raises OSError where the program can't be
        started."""
        with self._changed:
            if self._wanted and self._keeper is not None and self._keeper.is_alive():
                return
            self._wanted = True
            process = self._launch()
            self._keeper = threading.Thread(
                target=self._keep, args=(process,), name=f"keeper-{self.program.name}", daemon=True
            )
            self._keeper.start()
            threading.Thread(target=self._watch_log, name=f"log-{self.program.name}", daemon=True).start()

    def stop(self, patience_s: float) -> None:
        """SIGTERM, and SIGKILL after ``patience_s``. Does nothing where it is stopped. Raises
        TimeoutError."""
        with self._changed:
            self._wanted = False
            self._changed.notify_all()
            keeper = self._keeper
        # A stopped (SIGSTOP) process takes a SIGTERM only once it goes on.
        self.send(signal.SIGTERM)
        self.send(signal.SIGCONT)
        self._join(keeper, patience_s)

    def kill(self) -> None:
        """SIGKILL, and wait for its end. Where the child is to be restarted, it then is."""
        before = self.deaths
        if self.send(signal.SIGKILL):
            self.wait_died(before, KILL_S)

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal. False where there is no process."""
        with self._changed:
            # Reaped only by the keeper, under this lock: so the id is still this child's.
            if self._process is None:
                return False
            os.kill(self._process.pid, number)
            return True

    def wait_died(self, deaths: int, timeout_s: float) -> None:
        """Wait until it has died (ended without ``stop``) more than ``deaths`` times. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.deaths > deaths or not self._wanted, timeout_s):
                raise TimeoutError(f"{self.program.name} did not end in {timeout_s} s")

    def log_tail(self) -> str:
        """The end of its log."""
        log = self.program.log
        return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""

    def _watch_log(self) -> None:
        keeper = self._keeper
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: not self._wanted or self._keeper is not keeper, LOG_LOOK_S):
                    return
            turn_log(self.program.log)

    def _launch(self) -> Process:
        log = self.program.log
        turn_log(log)
        with log.open("ab") as output:
            self._process = self._start(self.program, output)
        return self._process

    def _keep(self, process: Process) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            started = time.monotonic()
            status = self._wait(process)
            if time.monotonic() - started > STEADY_S:
                pause_s = FIRST_PAUSE_S
            with self._changed:
                if not self._wanted:
                    return
                self.deaths += 1
                if not self._restarts:
                    self._wanted = False
                self._changed.notify_all()
            how = _ending(status)
            if not self._restarts:
                return
            self._say(f"{self.program.name} {how}; starting it again in {pause_s:g} s (log: {self.program.log})")
            with self._changed:
                self._changed.wait_for(lambda: not self._wanted, pause_s)
                if not self._wanted:
                    return
                process = self._launch()
            self._say(f"{self.program.name} was started again")
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _wait(self, process: Process) -> int:
        # Without reaping, so that between the end and the lock no other process can get the process id.
        process.await_end()
        with self._changed:
            status = process.wait()
            self._process = None
            if process.stdin is not None:
                process.stdin.close()
            return status

    def _join(self, keeper: threading.Thread | None, patience_s: float) -> None:
        if keeper is None:
            return
        keeper.join(patience_s)
        if keeper.is_alive():
            self._say(f"{self.program.name} did not stop in {patience_s:g} s and is killed")
            self.send(signal.SIGKILL)
            keeper.join(KILL_S)
            if keeper.is_alive():
                raise TimeoutError(f"{self.program.name} survived SIGKILL")


def _ending(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with exit code {status}"


def turn_log(log: Path) -> None:
    """Put the content of a large log aside, as ``NAME.1``, where it replaces what was put aside before. A disk that
    does not take it leaves the log as it is."""
    try:
        if log.stat().st_size > LOG_KEPT_BYTES:
            shutil.copyfile(log, log.with_name(f"{log.name}.1"))
            os.truncate(log, 0)
    except OSError:
        return
