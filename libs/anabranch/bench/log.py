"""A device that catches up: the log of what others have written, into a file that is there already.

Devices start for the first time, which is measured and is the baseline; then eight others write, in batches of ten,
half inserts and half updates; then each device is opened again, by a process of its own, and reads to the head. The
best of each counts. One more device, which is not timed, has the statements counted that SQLite runs for it.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from anabranch.bench import sending, workload
from anabranch.bench.cpu import Spent, spent
from anabranch.bench.device import device
from anabranch.bench.ingest import COALESCED
from anabranch.bench.pull import definition, pull_once, started
from anabranch.bench.report import Result
from anabranch.bench.stage import Stage, stage
from anabranch.bench.workload import DATABASE, TABLE
from anabranch.client import SyncedDb
from anabranch.testkit.file_statements import counted
from anabranch.testkit.remote import remote_of

TARGET = 0.25
ROUNDS = 3
_CLIENTS = 8
_ROWS_A_BATCH = 10
_PATIENCE_S = 900.0


class Caught(NamedTuple):
    """Seconds by the clock, and of the device's processor; ``statements`` is 0 where they were not counted."""

    wall_s: float
    cpu_s: float
    statements: int


def _read(pipe: Connection, addresses: dict[str, str], key: str, file: str, counting: bool) -> None:
    """Read the log to its head; send a ``Caught``."""
    db = SyncedDb(file, remote=remote_of(addresses, key), db_name=DATABASE)
    try:
        if counting:
            with counted(db) as statements:
                db.read()
            pipe.send(Caught(0.0, 0.0, statements.count))
            return
        began, cpu = time.perf_counter(), time.process_time()
        db.read()
        pipe.send(Caught(time.perf_counter() - began, time.process_time() - cpu, 0))
    finally:
        db.close()


def _caught_up(on: Stage, file: Path, counting: bool) -> Caught:
    """Raises TimeoutError, and EOFError where the device has failed."""
    with device(on, _read, str(file), counting, patience_s=_PATIENCE_S) as pipe:
        if not pipe.poll(_PATIENCE_S):
            raise TimeoutError(f"the device has not caught up within {_PATIENCE_S:g} s")
        found = pipe.recv()
    return Caught(*found)


def _check(file: Path, rows: int, done: int) -> None:
    """Raises RuntimeError where the file has another number of rows, or of those that were updated."""
    with closing(sqlite3.connect(file)) as conn:
        found = conn.execute(f"SELECT count(*), total(title LIKE '% (done)') FROM {TABLE}").fetchone()
    if found != (rows, done):
        raise RuntimeError(f"the file has {found[0]} rows and {found[1]:g} updated ones, not {rows} and {done}")


def log(rows: int = 1_000_000, changes: int = 100_000) -> Result:
    """``changes`` changes by others into the file of a device that has ``rows`` rows."""
    starts: list[float] = []
    reads: list[Caught] = []
    took = Spent()
    with stage(definition(rows)) as on, tempfile.TemporaryDirectory(prefix="anabranch-bench-") as name:
        pull_once(on)
        files = [Path(name) / f"device-{number}.db" for number in range(ROUNDS + 1)]
        starts += [started(on, file)[0] for file in files]
        clients = workload.clients(_CLIENTS, changes, _ROWS_A_BATCH, time.time_ns() // 1_000_000)
        made = [batch for client in clients for batch in client.batches]
        written = sum(len(batch.rows) for batch in made)
        inserted = sum(len(batch.rows) for batch in made if batch.insert)
        sending.send_all(on.stack.addresses["ingest"], on.stack.key, clients, COALESCED)
        counting = _caught_up(on, files[0], counting=True)
        for file in files[1:]:
            with spent() as one:
                reads.append(_caught_up(on, file, counting=False))
            took.add(one)
        for file in files:
            _check(file, rows + inserted, written - inserted)
    best = min(reads)
    return Result(
        bench="log",
        value=written / best.wall_s,
        baseline=rows / min(starts),
        unit="changes/s",
        target=TARGET,
        direction="at least",
        details={
            "changes": written,
            "rows": rows,
            "rounds": ROUNDS,
            "read_per_s": [round(written / read.wall_s) for read in reads],
            "bootstrap_per_s": [round(rows / start) for start in starts],
            "device_cpu_us_a_change": round(min(read.cpu_s for read in reads) / written * 1e6, 2),
            **took.details(ROUNDS * written),
            "statements_a_change": round(counting.statements / written, 3),
        },
    )
