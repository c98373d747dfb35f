"""Whole tables on their way out: ``pull``, as fast as the wire takes them, and ``bootstrap``, into a device's file.

One table, filled before it is registered, so that its rows are in no log. ``pull`` takes what the server sends as a
client's library does, and looks at no more of it than how many rows it says it has; its baseline is the same table's
binary COPY, read by libpq and thrown away. ``bootstrap`` is the first start of a device, a process of its own; its
baseline is one ``executemany`` of the very rows that then are in its file, from memory, in one transaction, into a
file of the same tables and settings.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import psutil
import pyarrow as pa

from anabranch.bench import workload
from anabranch.bench.cpu import Spent, spent
from anabranch.bench.device import device
from anabranch.bench.report import Result
from anabranch.bench.stage import Stage, stage
from anabranch.bench.workload import DATABASE, SCHEMA, TABLE
from anabranch.client import SyncedDb
from anabranch.store.engine import connect
from anabranch.testkit.remote import remote_of
from anabranch.v1 import batch_pb2, position_pb2, snapshot_pb2, snapshot_pb2_grpc

PULL_TARGET = 0.9
BOOTSTRAP_TARGET = 0.8
ROUNDS = 3
MEMORY_MB = 32
"""How much more memory the server may use for the last nine tenths of the rows than for the first."""
_PATIENCE_S = 900.0
_COPY = f"copy {SCHEMA}.{TABLE} to stdout (format binary)"
_FILL = """
insert into {schema}.{table}
select '01HF' || lpad(upper(to_hex(i)), 22, '0'), 'title ' || i || ' of the day', i % 2 = 0, i * 100, i / 7.0,
       timestamptz '2024-01-01' + i * interval '1 second'
from generate_series(1, {rows}) as i;
analyze {schema}.{table};
"""


def definition(rows: int) -> str:
    """The workload's table with ``rows`` rows."""
    return workload.DEFINITION + _FILL.format(schema=SCHEMA, table=TABLE, rows=rows)


@dataclass(frozen=True, slots=True)
class Pulled:
    """``payload`` is the chunks' bytes. ``resident``: the server's memory when ``after`` rows had come, in bytes, and
    the most that it had until the end."""

    rows: int
    payload: int
    seconds: float
    resident: tuple[int, int]


def pull_once(on: Stage, after: int = 0) -> Pulled:
    """Pull the table. Raises RuntimeError where the chunks have another number of rows than the pull says."""
    server = psutil.Process(on.stack.pid("snapshot"))
    request = snapshot_pb2.PullRequest(
        db_name=DATABASE,
        node_state=position_pb2.NodeState(node=batch_pb2.Node(id=workload.new_node(_now_ms()), name="bench")),
        required=[snapshot_pb2.RequiredTable(table=TABLE)],
    )
    rows = payload = said = early = most = 0
    with grpc.insecure_channel(on.stack.addresses["snapshot"]) as channel:
        stub = snapshot_pb2_grpc.SnapshotServiceStub(channel)
        began = time.perf_counter()
        parts: list[bytes] = []
        for response in stub.Pull(
            request, timeout=_PATIENCE_S, metadata=(("authorization", f"Bearer {on.stack.key}"),)
        ):
            parts.append(response.arrow_ipc)
            payload += len(response.arrow_ipc)
            if response.arrow_ipc_incomplete:
                continue
            if any(parts):
                with pa.ipc.open_stream(b"".join(parts) if len(parts) > 1 else parts[0]) as reader:
                    rows += sum(batch.num_rows for batch in reader)
            parts.clear()
            said = response.rows_done
            resident = server.memory_info().rss
            if rows > after and not early:
                early = resident
            most = max(most, resident)
        seconds = time.perf_counter() - began
    if rows != said:
        raise RuntimeError(f"{rows} rows came, and {said} were sent")
    return Pulled(rows, payload, seconds, (early, most))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def copy_once(url: str) -> tuple[float, int]:
    """Seconds of a binary COPY of the table, and its bytes."""
    size = 0
    with connect(url, application_name="anabranch-bench-floor", autocommit=True) as conn:
        began = time.perf_counter()
        with conn.cursor() as cursor, cursor.copy(_COPY.encode()) as copy:
            for data in copy:
                size += len(data)
        return time.perf_counter() - began, size


def pull(rows: int = 1_000_000) -> Result:
    """``rows`` rows out of Postgres, through the service, to a client that does nothing with them."""
    with stage(definition(rows)) as on:
        # What both learn the first time is no part of it.
        pull_once(on)
        copy_once(on.url)
        pulls, copies, took = [], [], Spent()
        for _ in range(ROUNDS):
            copies.append(copy_once(on.url))
            with spent() as one:
                pulls.append(pull_once(on, rows // 10))
            took.add(one)
    if any(found.rows != rows for found in pulls):
        raise RuntimeError(f"{[found.rows for found in pulls]} rows came of {rows}")
    grown = max(most - early for early, most in (found.resident for found in pulls)) / 2**20
    best, best_copy = min(pulls, key=lambda found: found.seconds), min(copies)
    return Result(
        bench="pull",
        value=rows / best.seconds,
        baseline=rows / best_copy[0],
        unit="rows/s",
        target=PULL_TARGET,
        direction="at least",
        conditions={f"the server's memory grows by ≤ {MEMORY_MB} MiB": grown <= MEMORY_MB},
        details={
            "rows": rows,
            "rounds": ROUNDS,
            "postgres_per_s": [round(rows / found.seconds) for found in pulls],
            "copy_per_s": [round(rows / seconds) for seconds, _ in copies],
            "bytes_a_row": round(best.payload / rows, 1),
            "copy_bytes_a_row": round(best_copy[1] / rows, 1),
            "server_grew_mib": round(grown, 1),
            "cpu_us_a_row": took.cpu_us(ROUNDS * rows),
        },
    )


def _start(pipe: Connection, addresses: dict[str, str], key: str, file: str) -> None:
    """A device's first start, timed; says how many seconds it took by the clock, and of the processor."""
    db = SyncedDb(file, remote=remote_of(addresses, key), db_name=DATABASE)
    try:
        began, cpu = time.perf_counter(), time.process_time()
        db.start(background=False)
        pipe.send((time.perf_counter() - began, time.process_time() - cpu))
    finally:
        db.close()


def _started(on: Stage, file: Path) -> tuple[float, float]:
    """What a device says of its first start. Raises TimeoutError, and EOFError where it has failed."""
    with device(on, _start, str(file), patience_s=_PATIENCE_S) as pipe:
        if not pipe.poll(_PATIENCE_S):
            raise TimeoutError(f"the device is not ready within {_PATIENCE_S:g} s")
        wall_s, cpu_s = pipe.recv()
    return float(wall_s), float(cpu_s)


def executemany_once(file: Path, empty: Path, rows: int) -> float:
    """Seconds of one ``executemany`` into the new file ``empty`` of the rows that are in ``file``, held in memory
    before. Raises RuntimeError where they are not ``rows``."""
    with closing(sqlite3.connect(file)) as conn:
        (create,) = conn.execute("SELECT sql FROM sqlite_master WHERE name = ?", (TABLE,)).fetchone()
        held = conn.execute(f'SELECT * FROM "{TABLE}"').fetchall()
    if len(held) != rows:
        raise RuntimeError(f"{len(held)} rows are in the file of {rows}")
    places = ", ".join("?" * len(held[0]))
    with closing(sqlite3.connect(empty, isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute(create)
        began = time.perf_counter()
        conn.execute("BEGIN IMMEDIATE")
        conn.executemany(f'INSERT INTO "{TABLE}" VALUES ({places})', held)
        conn.execute("COMMIT")
        return time.perf_counter() - began


def bootstrap(rows: int = 1_000_000) -> Result:
    """``rows`` rows into the file of a device that starts for the first time."""
    starts: list[tuple[float, float]] = []
    bare: list[float] = []
    took = Spent()
    with stage(definition(rows)) as on, tempfile.TemporaryDirectory(prefix="anabranch-bench-") as name:
        pull_once(on)
        for number in range(ROUNDS):
            file, empty = Path(name) / f"device-{number}.db", Path(name) / f"bare-{number}.db"
            with spent() as one:
                starts.append(_started(on, file))
            took.add(one)
            bare.append(executemany_once(file, empty, rows))
            for used in (file, empty):
                used.unlink()
    wall_s, _ = min(starts)
    return Result(
        bench="bootstrap",
        value=rows / wall_s,
        baseline=rows / min(bare),
        unit="rows/s",
        target=BOOTSTRAP_TARGET,
        direction="at least",
        details={
            "rows": rows,
            "rounds": ROUNDS,
            "postgres_per_s": [round(rows / wall) for wall, _ in starts],
            "executemany_per_s": [round(rows / seconds) for seconds in bare],
            "device_cpu_us_a_row": round(min(cpu for _, cpu in starts) / rows * 1e6, 2),
            "cpu_us_a_row": took.cpu_us(ROUNDS * rows),
        },
    )
