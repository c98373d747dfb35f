"""The life of the log in a fault run: the compactor, killed or not, and a janitor that cuts the log behind its runs.

The janitor's clock is ahead by so much that the shortest window for which a log can be kept is over at once, and that a
node which has not called for a few seconds counts as gone for good: its log is cut, and it has to begin anew with its
queue kept. So the proof holds the floor back.

The log must be copied before it is cut: a *scribe* copies the log, group by group, into the schema ``kept``. To the
server it is a node like any other, which acknowledges the position up to which it has copied and the run's reader has
read. Each time it also checks that the floor is neither beyond its last acknowledgement, nor beyond the position up to
which the published runs prove the log.

One thread does all of it, in turns: ``run``. ``check`` raises the faults that it finds.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ulid import ULID

from anabranch import clock, faults
from anabranch.runtime.compactor_job import program
from anabranch.store.catalog.databases import Database
from anabranch.store.group.waves import DatabaseError
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.memory_limits import MemoryWatch, chart_limits
from anabranch.testkit.stack import Stack

JANITOR = "retention-janitor"
COMPACTOR_POINTS = ("before_publish", "after_publish")
JANITOR_POINTS = ("after_floor", "after_removal")
KILLED = "SIGKILL compactor"
WANTED = frozenset({KILLED, *(f"at {point}" for point in (*COMPACTOR_POINTS, *JANITOR_POINTS))})
RETENTION_DAYS, ABSENCE_DAYS = 7, 8
POLICY: Mapping[str, int] = {"retention_days": RETENTION_DAYS, "max_absence_days": ABSENCE_DAYS}
ABSENT_S = 6
"""Seconds after its last call for which a node still holds the floor."""
KEPT = "kept"
RUN_S = 600.0
PATIENCE_S = 90.0
PAUSE_S = 0.2
TRIES = 6
_DAY_MS = 86_400_000
_FIRST_GUESS_S = 15.0
_COPIED = ("log", "conflicts", "groups")
_SHOWN = 1_500
ALTERED = "(ALTERED_WHILE_READ)"
"""The reason of a run that fails because a type was altered while it read rows."""


class _Job:
    """A run of the compactor, as one that is kept."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int | None:
        """Its process id; None once it has ended."""
        return self._process.pid if self._process.poll() is None else None

    def send(self, number: signal.Signals) -> bool:
        """Send it a signal."""
        self._process.send_signal(number)
        return True


class Lake:
    """``done`` counts the faults of compactor and janitor; ``folder`` takes files and logs. ``restarts``: how often
    Postgres was restarted so far, which explains a run that failed. ``beside``: databases that are compacted, too,
    without a fault and without being looked at."""

    def __init__(
        self,
        stack: Stack,
        database: Database,
        folder: Path,
        read: Path,
        chance: random.Random,
        say: Callable[[str], None],
        beside: Sequence[str] = (),
    ) -> None:
        self.done: Counter[str] = Counter()
        self.root = folder / "lake"
        self._stack = stack
        self._database = database
        self._folder = folder
        self._read = read
        self._chance = chance
        self._say = say
        self._beside = beside
        self.restarts = 0
        self._conn: Session | None = None
        self._node = str(ULID())
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._through = threading.Event()
        self._leaving = threading.Event()
        self._took_s = _FIRST_GUESS_S
        self._faults = folder / "compactor.faults"
        self._thread = threading.Thread(target=self._run, name="lake", daemon=True)

    @staticmethod
    def environment(folder: Path) -> Mapping[str, Mapping[str, str]]:
        """Settings of the services that it needs, by name."""
        file = folder / "janitor.clock"
        clock.set_offset(file, ABSENCE_DAYS * _DAY_MS - ABSENT_S * 1000)
        return {
            JANITOR: {
                "ANABRANCH_CLOCK_FILE": str(file),
                "ANABRANCH_SWEEP_INTERVAL_MS": "300",
                "ANABRANCH_FLOOR_MAX_CHANGES": "500",
                "ANABRANCH_SWEEP_MAX_ROWS": "200",
            }
        }

    def prepare(self) -> None:
        """Have the scribe hold the floor, before any group exists that could be cut. Raises psycopg.Error."""
        with connect(self._stack.database_url, application_name="torture-lake", autocommit=True) as conn:
            conn.execute(f"create schema {KEPT}".encode())
            for table in _COPIED:
                conn.execute(f"create table {KEPT}.{table} (like anabranch.{table})".encode())
            conn.execute(
                "insert into anabranch.nodes (database_id, node_id, name, principal, epoch, token, last_seen_ms)"
                " values (%s, %s, 'scribe', 'torture', %s, '', %s)",
                (self._database.id, self._node, self._database.epoch, 2**52),
            )

    def start(self) -> None:
        """Start the thread."""
        for point in JANITOR_POINTS:
            self._stack.arm(JANITOR, point)
        self._thread.start()

    @property
    def is_through(self) -> bool:
        """Whether every fault was injected once. Raises AssertionError with the fault that was found."""
        self.check()
        return self._through.is_set()

    def check(self) -> None:
        """Raise AssertionError with the fault that was found so far, if there is one."""
        if self._failure is not None:
            raise AssertionError(f"the life of the log: {self._failure}") from self._failure

    def close(self) -> None:
        """End the thread; a run of the compactor that is in progress is killed."""
        self._stopping.set()
        self._leaving.set()
        if self._thread.is_alive():
            self._thread.join(RUN_S)
        if self._conn is not None:
            self._conn.close()

    def finish(self) -> None:
        """Compact and copy the rest, once writes and faults have ended. Raises AssertionError."""
        self._stopping.set()
        self._thread.join(RUN_S)
        self.check()
        for database in (None, *self._beside):
            if not self._compact("", database):
                log = self._folder / "compactor.log"
                raise AssertionError(f"the compactor failed though nothing disturbed it; {log}")
        if not self._round():
            raise AssertionError("the log can't be copied though nothing disturbs it")

    # The thread

    def _run(self) -> None:
        try:
            plan = [KILLED, *(f"at {point}" for point in COMPACTOR_POINTS)]
            self._chance.shuffle(plan)
            for what in plan:
                self._until_done(what)
                for database in self._beside:
                    self._compact("", database)
            self._await_janitor()
            self._through.set()
            while not self._stopping.is_set():
                self._rest(self._chance.uniform(1, 2 * self._took_s))
                if not self._stopping.is_set():
                    what = self._chance.choice(["", *plan])
                    if self._compact(what):
                        self._note(what)
        except BaseException as error:
            self._failure = error
            self._say(f"BROKEN the life of the log: {error}")

    def _until_done(self, what: str) -> None:
        for _ in range(TRIES):
            if self._stopping.is_set():
                return
            if self._compact(what):
                self._note(what)
                return
        raise AssertionError(f"the compactor could not be had {what} in {TRIES} tries")

    def _await_janitor(self) -> None:
        """Wait until the janitor has died at its fault point: published proofs let it move the floor and sweep."""
        for _ in range(TRIES):
            deadline = time.monotonic() + PATIENCE_S / TRIES
            while time.monotonic() < deadline:
                if not self._stack.armed(JANITOR) or self._stopping.is_set():
                    self._round()
                    return
                self._rest(PAUSE_S)
            self._compact("")
        raise AssertionError(f"the janitor never came to {self._stack.armed(JANITOR)}")

    def _note(self, what: str) -> None:
        self.done[what or "compactor ran"] += 1
        self._say(f"          {what or 'compactor ran'}")

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self._stopping.is_set():
            self._round()
            self._stopping.wait(PAUSE_S)

    def _compact(self, what: str, database: str | None = None) -> bool:
        """Run the compactor once with the fault ``what``; return whether the fault happened. ``database``: another one.
        Raises AssertionError."""
        faults.disarm(self._faults)
        if what.startswith("at "):
            faults.arm(self._faults, what.removeprefix("at "))
        restarts, began = self.restarts, time.monotonic()
        kill_s = self._chance.uniform(0.1, 1.0) * self._took_s if what == KILLED else RUN_S
        arguments, environment = program(
            self._stack.database_url, str(self.root), database=database or self._database.name
        )
        with (self._folder / "compactor.log").open("ab") as log:
            start = log.tell()
            process = subprocess.Popen(
                arguments,
                env={**environment, "ANABRANCH_FAULT_FILE": str(self._faults), "TMPDIR": str(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            with MemoryWatch({"compactor": _Job(process)}, chart_limits(["compactor"]), self._say):
                while process.poll() is None:
                    if self._leaving.is_set() or time.monotonic() > began + kill_s:
                        process.kill()
                        process.wait()
                    self._round()
                    time.sleep(PAUSE_S)  # between looks at a process
        finally:
            with contextlib.suppress(ProcessLookupError):
                # Processes that a killed driver leaves behind.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        killed = process.returncode == -signal.SIGKILL
        if killed:
            if self._leaving.is_set():
                return False
            if what == "":
                raise AssertionError(f"the compactor was not done after {RUN_S} s")
            return what == KILLED or not faults.armed(self._faults)
        said = (self._folder / "compactor.log").read_bytes()[start:].decode(errors="replace")
        # DDL goes on beside it; the next run reads the rows anew.
        excused = self.restarts != restarts or ALTERED in said
        if process.returncode and not excused:
            raise AssertionError(f"the compactor ended with {process.returncode}: {said[-_SHOWN:]}")
        self._took_s = time.monotonic() - began
        return not what and not process.returncode

    def _round(self) -> bool:
        """Start a dead janitor, copy, check the floor; return whether that was possible: not while Postgres is down."""
        if self._stack.pid(JANITOR) is None:
            self._revive()
        try:
            if self._conn is None or self._conn.closed:
                self._conn = connect(self._stack.database_url, application_name="torture-lake", autocommit=True)
            self._copy(self._conn)
        except DatabaseError:
            if self._conn is not None:
                self._conn.close()
            return False
        return True

    def _revive(self) -> None:
        left = self._stack.armed(JANITOR)
        for point in JANITOR_POINTS:
            if point not in left and not self.done[f"at {point}"]:
                self._note(f"at {point}")
                break
        else:
            raise AssertionError(f"the janitor died, and not at a fault point:\n{self._stack.log(JANITOR)[-_SHOWN:]}")
        self._stack.start(JANITOR)

    def _copy(self, conn: Session) -> None:
        """Check the floor and copy new groups. Raises AssertionError, psycopg.Error."""
        values = {"db": self._database.id, "node": self._node}
        with conn.transaction():
            conn.execute("set transaction isolation level repeatable read")
            floor, acknowledged = _row(conn, _FLOOR, values)
            runs = conn.execute(_RUNS, values).fetchall()
            proven = _proven(runs)
            assert floor <= proven, f"promise 8: the floor is at {floor}, and files are proven up to {proven}"
            assert floor <= acknowledged, f"promise 8: the floor is at {floor}, a node has read to {acknowledged}"
            (last,) = _row(conn, f"select coalesce(max(position), 0) from {KEPT}.groups", {})
            rows = {}
            for table in _COPIED:
                # Other databases have positions of their own, some of which are later.
                statement = (
                    f"insert into {KEPT}.{table} select * from anabranch.{table}"
                    " where database_id = %(db)s and position > %(last)s"
                )
                rows[table] = conn.execute(statement.encode(), {**values, "last": last}).rowcount
            (changes,) = _row(
                conn, f"select coalesce(sum(changes), 0) from {KEPT}.groups where position > %(last)s", {"last": last}
            )
            assert rows["log"] == changes, f"after {last} there are {rows['log']} changes, and groups tell of {changes}"
            (copied,) = _row(conn, f"select coalesce(max(position), 0) from {KEPT}.groups", {})
            # A log that was never compacted is cut without a proof. Until the first run, this node holds the log.
            seen = min(copied, self._read_up_to()) if runs else 0
            conn.execute(
                "update anabranch.nodes set acknowledged = greatest(acknowledged, %(seen)s)"
                " where database_id = %(db)s and node_id = %(node)s",
                {**values, "seen": seen},
            )

    def _read_up_to(self) -> int:
        """The position up to which the run's reader has read."""
        with self._read.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LONGEST_LINE))
            whole = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        if not whole:
            return 0
        try:
            line = json.loads(whole)
        except ValueError:
            return 0  # the line is longer than the part that was read
        return int(line.get("group", line.get("read")))


_LONGEST_LINE = 1_000_000
_FLOOR = """
select d.floor_ms, n.acknowledged from anabranch.databases d join anabranch.nodes n on n.database_id = d.id
where d.id = %(db)s and n.node_id = %(node)s
"""
_RUNS = """
select from_position, to_position from anabranch.compactions where database_id = %(db)s order by from_position
"""


def _proven(runs: Sequence[tuple[int, int]]) -> int:
    """How far the first run, and those that go on where the one before ended, reach."""
    reached = runs[0][0] if runs else 0
    for after, upto in runs:
        if after == reached:
            reached = upto
    return reached


def _row(conn: Session, statement: str, values: Mapping[str, object]) -> tuple[int, ...]:
    row = conn.execute(statement.encode(), values).fetchone()
    assert row is not None
    return tuple(int(value) for value in row)
