"""Whole tables on their way out: ``pull``, as fast as the wire takes them, and ``bootstrap``, into a device's file.

One table, filled before it is registered, so that its rows are in no log. ``pull`` takes what the server sends as a
client's library does, and looks at no more of it than how many rows it says it has; its baseline is the same table's
binary COPY, read by ``psql`` and thrown away. ``bootstrap`` is the first start of a device, a process of its own; its
baseline is bare INSERTs of the very rows that then are in its file, from memory, in one transaction, into a file of the
same tables and settings: the better of one ``executemany`` and of statements with many rows each.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
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
from anabranch.client import SyncedDb, add_decimals
from anabranch.testkit.psql import copy_s
from anabranch.testkit.remote import remote_of
from anabranch.v1 import batch_pb2, position_pb2, snapshot_pb2, snapshot_pb2_grpc

PULL_TARGET = 0.9
BOOTSTRAP_TARGET = 0.8
ROUNDS = 3
ROWS_A_STATEMENT = 50
"""Rows of one bare INSERT with many rows; more of them gain little."""
MEMORY_MB = 32
"""How much more memory, in MiB, the server may use for the last nine tenths of the rows than for the first."""
_PATIENCE_S = 900.0
COPY = f"copy {SCHEMA}.{TABLE} to stdout (format binary)"
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


def pull(rows: int = 1_000_000) -> Result:
    """``rows`` rows out of Postgres, through the service, to a client that does nothing with them."""
    with stage(definition(rows)) as on:
        # One-time work of both sides is no part of the measurement.
        pull_once(on)
        copy_s(on.url, COPY)
        pulls, copies, took = [], [], Spent()
        for _ in range(ROUNDS):
            copies.append(copy_s(on.url, COPY))
            with spent() as one:
                pulls.append(pull_once(on, rows // 10))
            took.add(one)
    if any(found.rows != rows for found in pulls):
        raise RuntimeError(f"{[found.rows for found in pulls]} rows came of {rows}")
    grown = max(most - early for early, most in (found.resident for found in pulls)) / 2**20
    best = min(pulls, key=lambda found: found.seconds)
    return Result(
        bench="pull",
        value=rows / best.seconds,
        baseline=rows / min(copies),
        unit="rows/s",
        target=PULL_TARGET,
        direction="at least",
        conditions={f"the server's memory grows by ≤ {MEMORY_MB} MiB": grown <= MEMORY_MB},
        details={
            "rows": rows,
            "rounds": ROUNDS,
            "postgres_per_s": [round(rows / found.seconds) for found in pulls],
            "copy_per_s": [round(rows / seconds) for seconds in copies],
            "bytes_a_row": round(best.payload / rows, 1),
            "server_grew_mib": round(grown, 1),
            **took.details(ROUNDS * rows, "row"),
        },
    )


def _start(pipe: Connection, addresses: dict[str, str], key: str, file: str) -> None:
    """Time a device's first start; send its seconds of wall time, and of processor time."""
    db = SyncedDb(file, remote=remote_of(addresses, key), db_name=DATABASE)
    try:
        began, cpu = time.perf_counter(), time.process_time()
        db.start(background=False)
        pipe.send((time.perf_counter() - began, time.process_time() - cpu))
    finally:
        db.close()


def started(on: Stage, file: Path) -> tuple[float, float]:
    """Wall and processor seconds of a device's first start. Raises TimeoutError, and EOFError where it has failed."""
    with device(on, _start, str(file), patience_s=_PATIENCE_S) as pipe:
        if not pipe.poll(_PATIENCE_S):
            raise TimeoutError(f"the device is not ready within {_PATIENCE_S:g} s")
        wall_s, cpu_s = pipe.recv()
    return float(wall_s), float(cpu_s)


def insert_once(file: Path, empty: Path, rows: int, *, each: int) -> float:
    """Seconds of bare INSERTs of ``each`` rows into the new file ``empty``, of the rows that are in ``file``, held in
    memory before; one row each is ``executemany``. Raises RuntimeError where they are not ``rows``."""
    with closing(sqlite3.connect(file)) as conn:
        (create,) = conn.execute("SELECT sql FROM sqlite_master WHERE name = ?", (TABLE,)).fetchone()
        held = conn.execute(f'SELECT * FROM "{TABLE}"').fetchall()
    if len(held) != rows:
        raise RuntimeError(f"{len(held)} rows are in the file of {rows}")
    whole = rows - rows % each
    statements = [list(chain.from_iterable(held[n : n + each])) for n in range(0, whole, each)] if each > 1 else held
    one = f"({', '.join('?' * len(held[0]))})"
    with closing(sqlite3.connect(empty, isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = FULL")
        add_decimals(conn)
        conn.execute(create)
        began = time.perf_counter()
        conn.execute("BEGIN IMMEDIATE")
        conn.executemany(f'INSERT INTO "{TABLE}" VALUES {", ".join([one] * each)}', statements)
        conn.executemany(f'INSERT INTO "{TABLE}" VALUES {one}', held[whole:] if each > 1 else [])
        conn.execute("COMMIT")
        return time.perf_counter() - began


def bootstrap(rows: int = 1_000_000) -> Result:
    """``rows`` rows into the file of a device that starts for the first time."""
    starts: list[tuple[float, float]] = []
    singly: list[float] = []
    together: list[float] = []
    took = Spent()
    with stage(definition(rows)) as on, tempfile.TemporaryDirectory(prefix="anabranch-bench-") as name:
        pull_once(on)
        for number in range(ROUNDS):
            file = Path(name) / f"device-{number}.db"
            with spent() as one:
                starts.append(started(on, file))
            took.add(one)
            for each, seconds in ((1, singly), (ROWS_A_STATEMENT, together)):
                empty = Path(name) / f"bare-{number}-{each}.db"
                seconds.append(insert_once(file, empty, rows, each=each))
                empty.unlink()
            file.unlink()
    wall_s, _ = min(starts)
    return Result(
        bench="bootstrap",
        value=rows / wall_s,
        baseline=rows / min(*singly, *together),
        unit="rows/s",
        target=BOOTSTRAP_TARGET,
        direction="at least",
        details={
            "rows": rows,
            "rounds": ROUNDS,
            "postgres_per_s": [round(rows / wall) for wall, _ in starts],
            "executemany_per_s": [round(rows / seconds) for seconds in singly],
            "many_rows_a_statement_per_s": [round(rows / seconds) for seconds in together],
            "ratio_to_executemany": round(min(singly) / wall_s, 3),
            "device_cpu_us_a_row": round(min(cpu for _, cpu in starts) / rows * 1e6, 2),
            **took.details(ROUNDS * rows, "row"),
        },
    )
