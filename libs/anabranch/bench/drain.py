"""A device that was away for long: how fast its queue is decided once it is back.

The device is a process of its own with a real file. It pulls; then it is away and queues batches of ten rows, of which
of each ten

* four insert rows, and four update rows that nobody else touches;
* one updates a column that another device has written meanwhile: it wins, and the other's values are kept as lost;
* one updates rows of which another device has deleted one: it is refused, and becomes a dead letter.

The time is that of ``flush``: from its start, with the file as it was left, until the last verdict is in the file. The
baseline is the rate of ``bench ingest`` on the same services, half of it before and half of it after, so that other
load on the machine affects both.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, cast

from anabranch.bench import ingest, sending, workload
from anabranch.bench.cpu import Spent, spent
from anabranch.bench.device import device
from anabranch.bench.report import Result
from anabranch.bench.stage import Stage, stage
from anabranch.bench.workload import COLUMNS, DATABASE, TABLE, Client, Made
from anabranch.client import ConflictEvent, SyncedDb
from anabranch.store.session.engine import connect
from anabranch.testkit.remote import remote_of

TARGET = 0.7
BATCH_ROWS = 10
_PATIENCE_S = 1_800.0
_SEEDS_PER_CALL = 500
Kind = Literal["insert", "update", "overwrite", "refused"]
KINDS: tuple[Kind, ...] = (*("insert", "update") * 4, "overwrite", "refused")
"""The kinds of ten successive batches."""
Batch = tuple[Kind, tuple[dict[str, Any], ...]]


@dataclass(frozen=True, slots=True)
class Plan:
    """``there``: the batches inserted before. ``meanwhile``: the batches that another device, which has seen those,
    writes while the first one is away. ``batches``: the batches that the first one queues."""

    there: Client
    meanwhile: Client
    batches: tuple[Batch, ...]

    def count(self, kind: Kind) -> int:
        """How many batches of the first device are of this kind."""
        return sum(found == kind for found, _ in self.batches)


def plan(number: int, now_ms: int) -> Plan:
    """The work of both devices, for ``number`` batches of the first."""
    node, another, ids = workload.new_node(now_ms), workload.new_node(now_ms), workload.ids_from(now_ms - 60_000, 900)
    there: list[Made] = []
    meanwhile: list[Made] = []
    batches: list[Batch] = []
    for i in range(number):
        kind, rows = KINDS[i % len(KINDS)], workload.rows_of(ids, BATCH_ROWS, i)
        if kind == "insert":
            batches.append((kind, tuple(dict(zip(COLUMNS, row, strict=True)) for row in rows)))
            continue
        there.append(workload.insert_batch(next(ids), node, rows))
        batches.append((kind, tuple({"id": row[0], "title": f"{row[1]} (away)", "done": True} for row in rows)))
        if kind == "overwrite":
            changed = tuple((row[0], f"{row[1]} (meanwhile)", True) for row in rows)
            meanwhile.append(workload.update_batch(next(ids), another, changed))
        elif kind == "refused":
            meanwhile.append(workload.delete_batch(next(ids), another, (str(rows[BATCH_ROWS // 2][0]),)))
    return Plan(Client(node, tuple(there)), Client(another, tuple(meanwhile)), tuple(batches))


@dataclass(frozen=True, slots=True)
class Drained:
    """The device's report at its end; seconds are wall time, but for ``flush_cpu_s``. ``overwrote``: batches of its own
    that won over another's values, by the verdicts in the log."""

    queued_s: float
    flush_s: float
    flush_cpu_s: float
    read_s: float
    dead: int
    overwrote: int


def _device(pipe: Connection, addresses: dict[str, str], key: str, file: str, batches: tuple[Batch, ...]) -> None:
    """Pull, queue on a message, flush on the next one; send the result at the end."""
    overwrote: set[str] = set()

    def conflict(event: ConflictEvent) -> None:
        if event.outcome == "overwrote":
            overwrote.add(event.winning_batch_id)

    db = SyncedDb(file, remote=remote_of(addresses, key), db_name=DATABASE)
    db.on_conflict(conflict)
    try:
        db.start(background=False)
        table = db.table(TABLE)
        began = time.perf_counter()
        for kind, rows in batches:
            (table.insert if kind == "insert" else table.update)(list(rows))
        queued_s = time.perf_counter() - began
        pipe.send("queued")
        pipe.recv()
        began, cpu = time.perf_counter(), time.process_time()
        if not db.flush(_PATIENCE_S) or db.status().unsent:
            raise TimeoutError(f"no verdict on {db.status().unsent} batches within {_PATIENCE_S:g} s")
        flush_s, flush_cpu_s = time.perf_counter() - began, time.process_time() - cpu
        pipe.send("flushed")
        began = time.perf_counter()
        db.read()
        status = db.status()
        read_s = time.perf_counter() - began
        if status.queued or status.disagreeing:
            raise RuntimeError(f"after the log's end {status.queued} batches are queued; {status.disagreeing} disagree")
        pipe.send(Drained(queued_s, flush_s, flush_cpu_s, read_s, status.dead, len(overwrote)))
    finally:
        db.close()


def _heard(pipe: Connection) -> object:
    """Return the device's next message. Raises TimeoutError, and EOFError where it has failed."""
    if not pipe.poll(_PATIENCE_S):
        raise TimeoutError(f"the device says nothing within {_PATIENCE_S:g} s")
    return pipe.recv()


def _head(on: Stage) -> int:
    with connect(on.url, application_name="anabranch-bench", autocommit=True) as conn:
        [(position,)] = conn.execute("select max(position) from anabranch.groups").fetchall()
    return int(position)


def _drain(on: Stage, file: Path, number: int) -> tuple[Drained, Spent, Plan]:
    planned = plan(number, time.time_ns() // 1_000_000)
    ingest_at, key = on.stack.addresses["ingest"], on.stack.key
    sending.send_all(ingest_at, key, [planned.there], _SEEDS_PER_CALL)
    with device(on, _device, str(file), planned.batches, patience_s=_PATIENCE_S) as pipe:
        _heard(pipe)
        meanwhile = replace(planned.meanwhile, basis=_head(on))
        sending.send_all(ingest_at, key, [meanwhile], _SEEDS_PER_CALL)
        with spent() as took:
            pipe.send("go")
            _heard(pipe)
        drained = cast(Drained, _heard(pipe))
    if (drained.dead, drained.overwrote) != (planned.count("refused"), planned.count("overwrite")):
        raise RuntimeError(f"{drained.dead} dead letters and {drained.overwrote} overwritten: not what was planned")
    return drained, took, planned


def drain(batches: int = 10_000) -> Result:
    """``batches`` queued batches of one device, a fifth of which conflict, to the last verdict."""
    changes = batches * BATCH_ROWS
    with stage() as on, tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder:
        ingested = Spent()
        ingest.ingest_some(on, changes // 2, ingested)
        drained, took, planned = _drain(on, Path(folder) / "device.db", batches)
        ingest.ingest_some(on, changes // 2, ingested)
    return Result(
        bench="drain",
        value=changes / drained.flush_s,
        baseline=changes / ingested.wall_s,
        unit="changes/s",
        target=TARGET,
        direction="at least",
        details={
            "batches": batches,
            "batches_per_s": round(batches / drained.flush_s),
            "overwrote": planned.count("overwrite"),
            "refused": planned.count("refused"),
            "queued_per_s": round(batches / drained.queued_s),
            "read_of_the_log_s": round(drained.read_s, 2),
            **took.details(changes),
            "device_cpu_us_a_change": round(drained.flush_cpu_s / changes * 1e6, 1),
            "ingest_cpu_us_a_change": ingested.cpu_us(changes),
        },
    )
