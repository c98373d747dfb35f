"""A column added to a large table that a device holds: the cost for whoever runs ALTER TABLE, for the device and the
wire, and for everybody who writes meanwhile.

One table, filled before it is registered, and the same in a database that nothing syncs, whose ALTER TABLE is the
baseline: the two take turns, over connections of the application's by libpq alone, and the median of each counts. All
columns have a constant that each row has from then on. The device is a process of its own; all that it sends and gets
is counted while nothing but the change is on its way, and it is timed from before it applies the group to after it.
Then a client writes one row after the other, each when the one before has its verdict, while columns are added: the
longest time between two verdicts is how long ingest stood still.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import grpc

from anabranch.bench import workload
from anabranch.bench.device import device
from anabranch.bench.pull import definition
from anabranch.bench.report import Result
from anabranch.bench.sending import Sender
from anabranch.bench.stage import Stage, stage
from anabranch.bench.workload import DATABASE, SCHEMA, TABLE
from anabranch.client import SyncedDb
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import create_database, drop_database
from anabranch.testkit.libpq import LibpqSession, libpq_session
from anabranch.testkit.remote import remote_of
from anabranch.v1 import ingest_pb2_grpc

TARGET = 2.0
"""The greatest ratio of ALTER TABLE's time where the table is synced to its time where it is not."""
STILL_MS = 250.0
"""The longest that ingest may stand still."""
ALTERS = 20
"""How many columns are added each way."""
STEADY_S = 5.0
"""How long the steady client writes undisturbed."""
BETWEEN_S = 0.5
_PATIENCE_S = 900.0
_FOLLOWS_S = 60.0
_ADDED = "select count(*) from pragma_table_info(?) where name = ?"


class _Wire(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Counts the bytes of a device's messages, in both directions."""

    def __init__(self) -> None:
        self.total = 0

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        call = continuation(details, request)
        self.total += request.ByteSize() + call.result().ByteSize()
        return call

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        self.total += request.ByteSize()
        return _Counted(continuation(details, request), self)


class _Counted:
    """A stream's responses, each counted; all other attributes are those of the call."""

    def __init__(self, call: Any, wire: _Wire) -> None:
        self._call = call
        self._wire = wire

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        response = next(self._call)
        self._wire.total += response.ByteSize()
        return response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


def _hold(pipe: Connection, addresses: dict[str, str], key: str, file: str) -> None:
    """Hold the table: for each name of a column that is sent, answer once it is there with the bytes since the last
    answer, and the milliseconds of the last group."""
    wire, applied = _Wire(), [0.0, 0.0]

    def reached(point: str) -> None:
        if point in ("before_apply", "after_apply"):
            applied[point == "after_apply"] = time.perf_counter()

    with SyncedDb(file, remote=remote_of(addresses, key, [wire]), db_name=DATABASE, reached=reached) as db:
        pipe.send("ready")
        seen = wire.total
        while name := pipe.recv():
            deadline = time.monotonic() + _FOLLOWS_S
            while db.execute(_ADDED, (TABLE, name)).fetchone() == (0,) or applied[1] < applied[0]:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{name} was not there after {_FOLLOWS_S:g} s")
                time.sleep(0.001)  # between looks; applied[1] tells the time that counts
            pipe.send((wire.total - seen, (applied[1] - applied[0]) * 1000))
            seen = wire.total


def _heard(pipe: Connection) -> Any:
    if not pipe.poll(_PATIENCE_S):
        raise TimeoutError(f"the device did not answer within {_PATIENCE_S:g} s")
    return pipe.recv()


def _alter(session: LibpqSession, column: str) -> float:
    """Add a column; return the milliseconds that it took."""
    began = time.perf_counter()
    session.run(f"alter table {SCHEMA}.{TABLE} add column {column} integer not null default 7".encode(), [])
    return (time.perf_counter() - began) * 1000


@dataclass
class _Steady:
    """A client that writes one row after the other in a thread of its own; ``verdicts`` has the moment of each."""

    on: Stage
    verdicts: list[float] = field(default_factory=list)
    error: BaseException | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    async def _write(self) -> None:
        client = workload.Client(workload.new_node(time.time_ns() // 1_000_000), ())
        ids = workload.ids_from(time.time_ns() // 1_000_000, 0)
        async with grpc.aio.insecure_channel(self.on.stack.addresses["ingest"]) as channel:
            sender = Sender(client, ingest_pb2_grpc.IngestServiceStub(channel), self.on.stack.key, 1)
            for number, batch_id in enumerate(ids):
                if self._stop.is_set():
                    return
                batch = workload.insert_batch(batch_id, client.node_id, workload.rows_of(ids, 1, number))
                await sender.send([batch], "")
                self.verdicts.append(time.perf_counter())

    def _run(self) -> None:
        try:
            asyncio.run(self._write())
        except BaseException as error:
            self.error = error

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Have it write for the block. Raises what it met with."""
        thread = threading.Thread(target=self._run, name="steady", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(_PATIENCE_S)
        if self.error is not None:
            raise self.error

    def longest_ms(self, since: float, until: float) -> float:
        """The longest time between two verdicts that overlaps a span."""
        gaps = [b - a for a, b in pairwise(self.verdicts) if b > since and a < until]
        return max(gaps, default=until - since) * 1000


def _still(on: Stage, session: LibpqSession, alters: int, steady_s: float) -> tuple[float, float]:
    """The longest times between verdicts, in ms: undisturbed, and while columns are added."""
    steady = _Steady(on)
    with steady.writing():
        time.sleep(steady_s / 5)  # the first calls make connections
        began = time.perf_counter()
        time.sleep(steady_s)  # measured is this
        altering = time.perf_counter()
        for number in range(alters):
            _alter(session, f"busy_{number}")
            time.sleep(BETWEEN_S)  # measured is the changes' way through the resolver
        ended = time.perf_counter()
    return steady.longest_ms(began, altering), steady.longest_ms(altering, ended)


@contextmanager
def _bare(on: Stage, rows: int) -> Iterator[LibpqSession]:
    """A session in a database with the same table, which nothing syncs."""
    name = f"anabranch_bench_bare_{time.time_ns()}"
    url = create_database(on.server_url, name)
    try:
        with connect(url, application_name="bench", autocommit=True) as conn:
            conn.execute(definition(rows).encode())
        with libpq_session(url, application_name="bench") as session:
            yield session
    finally:
        drop_database(on.server_url, name)


def ddl(rows: int = 1_000_000, alters: int = ALTERS, steady_s: float = STEADY_S) -> Result:
    """Columns added to a table of ``rows`` rows, ``alters`` each way."""
    synced: list[float] = []
    plain: list[float] = []
    wire: list[int] = []
    applied: list[float] = []
    with (
        stage(definition(rows)) as on,
        _bare(on, rows) as bare,
        libpq_session(on.url, application_name="bench") as session,
        tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder,
        device(on, _hold, str(Path(folder) / "device.db"), patience_s=_PATIENCE_S) as pipe,
    ):
        _heard(pipe)
        for number in range(alters):
            plain.append(_alter(bare, f"quiet_{number}"))
            synced.append(_alter(session, f"quiet_{number}"))
            pipe.send(f"quiet_{number}")
            sent, ms = _heard(pipe)
            wire.append(sent)
            applied.append(ms)
        before_ms, during_ms = _still(on, session, max(2, alters // 2), steady_s)
        pipe.send(None)
    return Result(
        bench="ddl",
        value=median(synced),
        baseline=median(plain),
        unit="ms, ALTER TABLE",
        target=TARGET,
        direction="at most",
        conditions={f"ingest stands still ≤ {STILL_MS:g} ms (is {during_ms:.0f})": during_ms <= STILL_MS},
        details={
            "rows": rows,
            "alters": alters,
            "alter_ms": _rounded(synced),
            "bare_alter_ms": _rounded(plain),
            "wire_bytes": round(median(wire)),
            "device_ms": round(median(applied), 2),
            "still_ms": round(during_ms, 1),
            "still_before_ms": round(before_ms, 1),
        },
    )


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]
