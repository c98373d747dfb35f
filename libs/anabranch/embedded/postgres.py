"""Embedded Postgres: a whole server in one folder, from a wheel, reachable on 127.0.0.1 only.

A folder given to EmbeddedPostgres holds

    cluster/      Postgres's data, owned by the user that runs Postgres, mode 0700; its log is cluster/log
    password      the superuser's password (random, mode 0600)
    owner.lock    locked for as long as some process owns the server; the kernel frees it if that is killed
    startup.log   what Postgres said before its log was open, of the last start

The process that holds `owner.lock` is the owner. It starts the server as its child, and the server ends with it,
also by SIGKILL (on Linux). Left-over processes are ended at the next start before a new server runs, and
Postgres's own recovery does the rest. `cluster` appears by a rename once initdb has succeeded, so a folder
with a `cluster` always has a usable one.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

import psutil
import structlog

from anabranch.embedded.binaries import Binaries, PostgresUnavailableError, find_binaries
from anabranch.embedded.process import (
    Account,
    PostgresProcess,
    account_for,
    command,
    data_argument,
    end_orphans,
    environment,
)
from anabranch.ports import HOST, free_port, is_free

__all__ = ["EmbeddedPostgres", "PostgresUnavailableError"]

SUPERUSER = "postgres"
PORT_ATTEMPTS = 5
READY_POLL_S = 0.01
KILL_S = 10.0
LOG_TAIL_BYTES = 4_000
STOP = {"smart": (signal.SIGTERM, 60.0), "fast": (signal.SIGINT, 60.0), "immediate": (signal.SIGQUIT, 20.0)}
"""Stop mode to its signal and the seconds it is given before harsher ones follow."""

SETTINGS: Mapping[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "256MB",
    # Promise 1 rests on these two; they are Postgres's defaults and are set explicitly here.
    "fsync": "on",
    "synchronous_commit": "on",
    "wal_level": "logical",
    "max_wal_size": "2GB",
    "jit": "off",
    "timezone": "UTC",
    # Seven files, each emptied when its weekday comes again. Neither rows nor statements are written to them: so no
    # failed statement's message either, which may quote a row, and which the session that sent it gets.
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "postgres-%a.log",
    "log_rotation_age": "1d",
    "log_rotation_size": "0",
    "log_truncate_on_rotation": "on",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %q%a@%d ",
    "log_checkpoints": "off",
    "log_min_messages": "log",
    "log_error_verbosity": "terse",
    "log_min_error_statement": "panic",
}

_log = structlog.get_logger(__name__)


class EmbeddedPostgres:
    """A Postgres server in `data_dir`, as a context manager or by `start` and `stop`; for one thread.

    `port`: fixed, or None for a free one, which stays the same over restarts of this object where it can.
    `settings`: server settings over SETTINGS. `major`: version of a new cluster; an existing one keeps its.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        major: int | None = None,
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self._cluster = self.data_dir / "cluster"
        self._fixed_port = port
        self._port = port
        self._settings = {**SETTINGS, **(settings or {})}
        self._major = major
        self._lock: IO[str] | None = None
        self._process: PostgresProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """`postgresql://` URL of the superuser and its database. Raises RuntimeError when not started."""
        if self._process is None or self._port is None:
            raise RuntimeError("this embedded Postgres is not started")
        password = (self.data_dir / "password").read_text()
        return f"postgresql://{SUPERUSER}:{password}@{HOST}:{self._port}/postgres"

    @property
    def pid(self) -> int:
        """Process id of the postmaster. Raises RuntimeError when not started."""
        if self._process is None:
            raise RuntimeError("this embedded Postgres is not started")
        return self._process.pid

    def start(self, timeout_s: float = 60) -> str:
        """Start the server, making its cluster first if there is none, and return `url` once it takes calls.

        Does nothing when it runs; starts it again when it has died. Raises TimeoutError after `timeout_s`
        seconds, and PostgresUnavailableError: no binaries, no user to run as, the folder owned by another
        process, or a server that refused to start, with its log quoted.
        """
        if self._process is not None and not self._process.ended:
            return self.url
        self._process = None
        deadline = time.monotonic() + timeout_s
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_lock()
        try:
            for pid in end_orphans(self._cluster) if self._cluster.exists() else []:
                _log.warning("ended a postgres process that an earlier owner left behind", pid=pid)
            account = account_for(self._cluster)
            binaries = find_binaries(self._existing_major() or self._major, for_root=os.geteuid() == 0)
            if not self._cluster.exists():
                self._make_cluster(binaries, account, deadline)
            self._launch(binaries, account, deadline)
        except BaseException:
            self.stop("immediate")
            raise
        return self.url

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server as pg_ctl does in that mode, and give up the folder. Harmless when stopped."""
        process, self._process = self._process, None
        try:
            if process is not None:
                process.end(*STOP[mode])
        finally:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def kill(self) -> None:
        """SIGKILL the postmaster, as a crash would, and wait for its end; `start` then recovers.

        The folder stays ours. Raises RuntimeError when not started.
        """
        if self._process is None:
            raise RuntimeError("this embedded Postgres is not started")
        self._process.end(signal.SIGKILL, KILL_S)

    def freeze(self) -> None:
        """SIGSTOP the postmaster and its children: open connections stay open, the kernel accepts new ones, and
        nothing answers until ``thaw``. Raises RuntimeError when not started."""
        postmaster = psutil.Process(self.pid)
        # The postmaster first: from then on there are no new children.
        postmaster.suspend()
        for child in postmaster.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.suspend()

    def thaw(self) -> None:
        """SIGCONT them. Harmless where they run. Raises RuntimeError when not started."""
        postmaster = psutil.Process(self.pid)
        for process in (*postmaster.children(recursive=True), postmaster):
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def restart(self) -> None:
        """Stop (fast) and start on the same folder and, unless somebody took it meanwhile, the same port."""
        self.stop()
        self.start()

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        handle = (self.data_dir / "owner.lock").open("a+")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            owner = handle.read().strip() or "unknown"
            handle.close()
            raise PostgresUnavailableError(f"{self.data_dir} is in use by process {owner}") from None
        handle.truncate(0)
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        self._lock = handle

    def _existing_major(self) -> int | None:
        version = self._cluster / "PG_VERSION"
        return int(version.read_text()) if version.exists() else None

    def _make_cluster(self, binaries: Binaries, account: Account, deadline: float) -> None:
        """Run initdb in a folder beside, then rename it. The remains of an interrupted attempt are deleted."""
        fresh = self.data_dir / "cluster.new"
        if fresh.exists():
            end_orphans(fresh)
            shutil.rmtree(fresh)
        fresh.mkdir(mode=0o700)
        os.chown(fresh, account.uid, account.gid)
        password = secrets.token_urlsafe(24)
        stored = self.data_dir / "password"
        stored.unlink(missing_ok=True)
        with open(os.open(stored, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(password)
            os.fsync(file.fileno())
        locale = ["--locale=C", "--encoding=UTF8"]
        if binaries.major >= 17:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        arguments = [binaries.program("initdb"), f"-D{data_argument(fresh)}", f"-U{SUPERUSER}", *locale]
        arguments += ["--auth-local=reject", "--auth-host=scram-sha-256", "--pwfile=/dev/stdin"]
        if iterations := self._settings.get("scram_iterations"):
            arguments += ["-c", f"scram_iterations={iterations}"]
        # A file rather than a pipe: initdb opens it by name as the other user, whom the file then belongs to.
        with tempfile.TemporaryFile() as handed_over:
            handed_over.write(password.encode())
            handed_over.seek(0)
            os.fchown(handed_over.fileno(), account.uid, account.gid)
            done = subprocess.run(
                command(account, arguments),
                cwd=fresh,
                env=environment(),
                stdin=handed_over,
                capture_output=True,
                text=True,
                timeout=max(deadline - time.monotonic(), 1),
                check=False,
            )
        if done.returncode != 0:
            raise PostgresUnavailableError(f"initdb failed ({done.returncode}): {done.stdout}{done.stderr}")
        fresh.rename(self._cluster)
        folder = os.open(self.data_dir, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def _launch(self, binaries: Binaries, account: Account, deadline: float) -> None:
        for attempt in range(1, PORT_ATTEMPTS + 1):
            port = self._port or free_port()
            settings = {**self._settings, "port": str(port)}
            arguments = [binaries.program("postgres"), f"-D{data_argument(self._cluster)}"]
            arguments += [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
            with (self.data_dir / "startup.log").open("wb") as output:
                self._process = PostgresProcess(command(account, arguments), cwd=self._cluster, output=output)
            if self._wait_until_ready(self._process, deadline):
                self._port = port
                return
            taken = not is_free(port)
            if self._fixed_port is None and taken and attempt < PORT_ATTEMPTS:
                self._port = None
                continue
            cause = f"port {port} is taken" if taken else f"exit status {self._process.status}"
            raise PostgresUnavailableError(f"Postgres did not start in {self.data_dir}: {cause}\n{self._log_tail()}")

    def _wait_until_ready(self, process: PostgresProcess, deadline: float) -> bool:
        """Whether it takes connections (it writes so into its pid file); False when it ended instead."""
        while not process.wait(READY_POLL_S):
            if time.monotonic() > deadline:
                raise TimeoutError(f"Postgres in {self.data_dir} is not ready in time\n{self._log_tail()}")
            try:
                lines = (self._cluster / "postmaster.pid").read_text().splitlines()
            except FileNotFoundError:
                continue
            if len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                return True
        return False

    def _log_tail(self) -> str:
        logs = sorted((self._cluster / "log").glob("*.log"), key=lambda path: path.stat().st_mtime)
        ends = [path.read_bytes()[-LOG_TAIL_BYTES:] for path in (self.data_dir / "startup.log", *logs[-1:])]
        return b"".join(ends).decode(errors="replace")
