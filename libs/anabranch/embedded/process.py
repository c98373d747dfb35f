"""One postmaster: started so that it ends with its owner, waited for, and ended when an owner left it behind.

States of a cluster folder: *idle* (no process has it as its working folder), *running* (one postmaster, our
child) and *orphaned* (processes of an owner that is gone). Only the holder of the folder's owner lock calls
into this module, so orphaned processes are never those of a live owner.
"""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from anabranch.embedded.binaries import PostgresUnavailableError

UNPRIVILEGED_USERS = ("postgres", "nobody")
"""Users that may run Postgres when root starts it: the first that this machine knows does."""

_EXEC_SCRIPT = Path(__file__).with_name("exec_postgres.py")
_END_STEPS = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
"""Fast shutdown, immediate shutdown, kill; and how many seconds each is given."""


@dataclass(frozen=True)
class Account:
    """The user to become before Postgres runs; -1 and -1 where it stays who it is."""

    uid: int
    gid: int


STAY = Account(-1, -1)


def account_for(cluster: Path) -> Account:
    """The user that runs the cluster: its owner if it exists, else an unprivileged user for root, else the caller's.

    Raises PostgresUnavailableError when no user can run it from here.
    """
    us = os.geteuid()
    owner = cluster.stat().st_uid if cluster.exists() else None
    if us != 0:
        if owner is not None and owner != us:
            raise PostgresUnavailableError(f"{cluster} belongs to user id {owner}; run as that user or as root")
        return STAY
    if owner == 0:
        raise PostgresUnavailableError(f"{cluster} belongs to root, and Postgres refuses to run as root")
    if owner is not None:
        return Account(owner, cluster.stat().st_gid)
    for name in UNPRIVILEGED_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    names = " or ".join(UNPRIVILEGED_USERS)
    raise PostgresUnavailableError(f"Postgres refuses to run as root, and this machine has no user {names}")


def data_argument(cluster: Path) -> str:
    """The argument of `-D` for a program whose working folder is `cluster`.

    For root it is a name that leads there without entering the folders above, which the unprivileged user
    may have no right to enter: the kernel follows this link straight to the working folder.
    """
    return "/proc/self/cwd" if os.geteuid() == 0 and sys.platform == "linux" else str(cluster)


def command(account: Account, program: Sequence[str]) -> list[str]:
    """`program` run as `account` and ended by the kernel when the thread that starts it ends."""
    prefix = [sys.executable, "-I", "-S", str(_EXEC_SCRIPT)]
    return [*prefix, str(os.getpid()), str(account.uid), str(account.gid), *program]


def environment() -> dict[str, str]:
    """A fixed environment: no PG* variable and no locale of the caller reaches the server."""
    return {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


class PostgresProcess:
    """A running child. A thread of its own starts it and stays until it has ended.

    The kernel's parent-death signal follows the *thread* that forked, so that thread must live as long as
    the child should, and be no caller's.
    """

    def __init__(self, arguments: Sequence[str], *, cwd: Path, output: IO[bytes]) -> None:
        """Start it; its output goes to `output`. Raises OSError as subprocess does."""
        self._ended = threading.Event()
        self.status: int | None = None
        started: Future[int] = Future()
        keeper = threading.Thread(
            target=self._keep,
            args=(list(arguments), cwd, output, started),
            name="postgres-keeper",
            daemon=True,
        )
        keeper.start()
        self.pid = started.result()

    def _keep(self, arguments: list[str], cwd: Path, output: IO[bytes], started: Future[int]) -> None:
        try:
            child = subprocess.Popen(
                arguments,
                cwd=cwd,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in a terminal is for the owner, which then stops it in order
            )
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(child.pid)
        self.status = child.wait()
        self._ended.set()

    @property
    def ended(self) -> bool:
        """Whether it has ended; `status` then holds its exit status (negative: the signal)."""
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it still runs after `timeout_s` seconds."""
        return self._ended.wait(timeout_s)

    def end(self, first: signal.Signals, patience_s: float) -> None:
        """Send `first` and wait `patience_s`; then harsher signals. Raises TimeoutError if none helps."""
        harsher = {signal.SIGTERM: 0, signal.SIGINT: 1, signal.SIGQUIT: 2, signal.SIGKILL: 3}[first]
        for number, patience in ((first, patience_s), *_END_STEPS[harsher:]):
            with suppress(ProcessLookupError):  # it may end by itself just now
                if not self.ended:
                    os.kill(self.pid, number)
            if self.wait(patience):
                return
        raise TimeoutError(f"postgres (pid {self.pid}) survived SIGKILL")


def end_orphans(cluster: Path) -> list[int]:
    """End every postgres process that works in `cluster`, the postmaster first; return their process ids.

    They are known by their working folder, not by a remembered pid, which another process may have by now.
    Raises TimeoutError when one survives.
    """
    orphans = _processes_in(cluster)
    postmaster = recorded_pid(cluster)
    ended = [process.pid for process in orphans]
    for number, patience in _END_STEPS:
        if not orphans:
            return ended
        members = {process.pid for process in orphans}
        # Backends end with their postmaster. Where that is gone, each backend gets SIGQUIT itself.
        for process in orphans:
            try:
                if process.pid == postmaster or number == signal.SIGKILL:
                    process.send_signal(number)
                elif process.ppid() not in members:
                    process.send_signal(signal.SIGQUIT)
            except psutil.NoSuchProcess:
                continue  # ended by itself, as was wanted
        psutil.wait_procs(orphans, timeout=patience)
        orphans = _processes_in(cluster)
    if orphans:
        raise TimeoutError(f"postgres left behind in {cluster} survived SIGKILL: {[p.pid for p in orphans]}")
    return ended


def recorded_pid(cluster: Path) -> int | None:
    """The process id in `postmaster.pid`: of a server that runs or was killed; None without one."""
    try:
        first, _, _ = (cluster / "postmaster.pid").read_text().partition("\n")
    except FileNotFoundError:
        return None
    return int(first) if first.isdigit() else None


def _processes_in(cluster: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() == "postgres" and os.path.samefile(process.cwd(), cluster):
                found.append(process)
        except (psutil.Error, FileNotFoundError, PermissionError):
            continue  # gone meanwhile, or another user's: the cluster's owner is us or we are root
    return found
