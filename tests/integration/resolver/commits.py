"""Groups committed by the resolver's own code: in the process of a test, or in one that does nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from anabranch.clock import Clock
from anabranch.store.capture import large
from anabranch.store.capture.large_images import CARRIED_BYTES
from anabranch.store.inbox.claim import open_session, session_options
from anabranch.store.session.engine import Session
from anabranch.store.writers.own_writer import is_superuser, own_writer
from anabranch_conflict_resolver.group.cache import Cache
from anabranch_conflict_resolver.group.commit import commit_group
from anabranch_conflict_resolver.group.outcome import GroupLimits
from anabranch_conflict_resolver.loop.seal_keys import SealKeys

Commit = Callable[[int, int, int], int]
"""Commits one group: database id, most batches, offset of the clock; it gives how many were taken."""


def writes_as(url: str, database_id: int) -> str:
    """The URL of sessions that commit a database's groups, as a resolver has it: never a superuser's, which has all
    rights and would hide those that a writer lacks."""
    own = own_writer(url, database_id)
    if own is None:
        assert not is_superuser(url), "the server lets no writer in"
    return own or url


def session(url: str) -> Session:
    """A session that groups may be committed on."""
    return open_session(url, session_options(statement_timeout_ms=10_000, lock_timeout_ms=250, idle_timeout_ms=5_000))


def on(conn: Session, seal_key: Callable[[int], bytes] | None = None) -> Commit:
    """Commits on a session. ``seal_key``: as in ``Cache``."""
    caches: dict[int, Cache] = {}

    def commit(database_id: int, most: int, offset_ms: int) -> int:
        outcome = commit_group(
            conn,
            caches.setdefault(database_id, Cache(seal_key)),
            database_id,
            most=most,
            now_ms=Clock(offset_ms).now_ms(),
            clock_offset_ms=offset_ms,
            limits=GroupLimits(busy_ms=20),
        )
        return outcome.taken + outcome.drained

    return commit


class AsWriters:
    """Commits the groups of each database in a session as its writer."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._commits: dict[int, Commit] = {}
        self._sessions: list[Session] = []

    def __call__(self, database_id: int, most: int, offset_ms: int) -> int:
        """A ``Commit``."""
        return self.open(database_id)(database_id, most, offset_ms)

    def open(self, database_id: int) -> Commit:
        """Have the writer made, and its session opened."""
        if database_id not in self._commits:
            self._sessions.append(session(writes_as(self._url, database_id)))
            self._commits[database_id] = on(self._sessions[-1], SealKeys(self._url))
        return self._commits[database_id]

    def close(self) -> None:
        """End the sessions."""
        for one in self._sessions:
            one.close()


def drain(commit: Commit, database_id: int) -> None:
    """Commit groups until none finds anything.

    Raises:
        AssertionError: twenty do.
    """
    for _ in range(20):
        if not commit(database_id, 1_000, 0):
            return
    raise AssertionError("the resolver goes round and round")


@contextmanager
def growing_process(url: str, carried_bytes: int = CARRIED_BYTES) -> Iterator[Callable[[int], int]]:
    """A process that drains and does nothing else. What is given drains a database in it, by its id, and gives by how
    much the process had grown meanwhile at most, in bytes, since it had drained for the first time. A test's own
    process has memory that other tests have let go of, and other threads. A row with an image of more than
    ``carried_bytes`` is too large."""
    command = [sys.executable, __file__, url, str(carried_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        orders, answers = process.stdin, process.stdout
        assert orders is not None
        assert answers is not None

        def grown(database_id: int) -> int:
            print(database_id, file=orders, flush=True)
            return int(answers.readline())

        try:
            yield grown
        finally:
            orders.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def _drain_as_told(url: str, carried_bytes: int) -> None:
    """Each line that comes in is a database's id; each that goes out the growth."""
    setattr(large, "CARRIED_BYTES", carried_bytes)  # noqa: B010
    answers = sys.stdout
    conn = session(url)
    commit = on(conn)
    before = None
    # Logs go elsewhere.
    with redirect_stdout(sys.stderr):
        for line in sys.stdin:
            _forget_peak()
            drain(commit, int(line))
            grown = 0 if before is None else _peak() - before
            if before is None:
                _forget_peak()
                before = _peak()
            print(grown, file=answers, flush=True)
    conn.close()


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    _drain_as_told(sys.argv[1], int(sys.argv[2]))
