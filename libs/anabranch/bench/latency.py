"""How long one small write takes on an idle system: to its verdict, and to another device's file."""

from __future__ import annotations

import asyncio
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import grpc

from anabranch.bench import floor, workload
from anabranch.bench.cpu import Spent, spent
from anabranch.bench.device import device
from anabranch.bench.report import Result, percentile
from anabranch.bench.sending import Sender
from anabranch.bench.stage import Stage, stage
from anabranch.client import Change, SyncedDb
from anabranch.testkit.remote import remote_of
from anabranch.v1 import ingest_pb2_grpc

P50_TARGET = 8.0
P99_TARGET = 20.0
PROPAGATE_TARGET = 2.0
WARM_UP = 50
PAUSE_S = 0.002
"""Pause between two writes, so that each meets an idle system."""
APPLY_TIMEOUT_S = 10.0


async def _verdict_times(on: Stage, times: int, live: bool) -> list[float]:
    client = workload.clients(1, times + WARM_UP, 1, time.time_ns() // 1_000_000)[0]
    took: list[float] = []
    async with grpc.aio.insecure_channel(on.stack.addresses["ingest"]) as channel:
        stub = ingest_pb2_grpc.IngestServiceStub(channel)
        sender = Sender(client, stub, on.stack.key, 1, live=live)
        for batch in client.batches:
            started = time.perf_counter()
            await sender.send([batch], "")
            took.append(time.perf_counter() - started)
            await asyncio.sleep(PAUSE_S)
    return took[WARM_UP:]


def _verdicts(on: Stage, times: int, *, live: bool = True) -> tuple[list[float], list[float], Spent]:
    """Times to the verdict, of messages on one open stream (``live``) or of calls, and of the baseline, half of it
    before and half after; what the former cost, the warm-up included."""
    pairs = floor.commit_pair_s(on.url, times // 2)
    with spent() as cost:
        took = asyncio.run(_verdict_times(on, times, live))
    return took, pairs + floor.commit_pair_s(on.url, times // 2), cost


def latency(times: int = 1_000) -> Result:
    """One batch of one change at a time, to its verdict: on an open stream, as by a device at work; and by calls."""
    with stage() as on:
        took, pairs, cost = _verdicts(on, times)
        by_calls, _, cost_of_calls = _verdicts(on, times, live=False)
    base = percentile(pairs, 0.5) * 1_000
    p50, p99 = percentile(took, 0.5) * 1_000, percentile(took, 0.99) * 1_000
    return Result(
        bench="latency",
        value=p50,
        baseline=base,
        unit="ms",
        target=P50_TARGET,
        direction="at most",
        conditions={f"p99 ≤ {P99_TARGET:g} × two bare commits": p99 <= P99_TARGET * base},
        details={
            "times": times,
            "p99_ms": round(p99, 3),
            "p99_ratio": round(p99 / base, 3),
            "by_calls_p50_ms": round(percentile(by_calls, 0.5) * 1_000, 3),
            "p10_ms": round(percentile(took, 0.1) * 1_000, 3),
            "by_calls_p10_ms": round(percentile(by_calls, 0.1) * 1_000, 3),
            "by_calls": cost_of_calls.details(times + WARM_UP),
            **cost.details(times + WARM_UP),
        },
    )


def _listen(pipe: Connection, addresses: dict[str, str], key: str, file: str) -> None:
    """Device B, a process of its own: sends the moment at which each row is in its file."""

    def changed(change: Change) -> None:
        pipe.send((str(change.key[0]), time.time_ns()))

    with SyncedDb(file, remote=remote_of(addresses, key), db_name=workload.DATABASE) as db:
        db.on_change(changed)
        pipe.send(("ready", time.time_ns()))
        pipe.recv()


def propagate(times: int = 500) -> Result:
    """One row at a time, from the end of A's local commit to B's file."""
    with stage() as on, tempfile.TemporaryDirectory(prefix="anabranch-bench-") as folder:
        verdicts, _, _ = _verdicts(on, times)
        took: list[float] = []
        addresses, key = on.stack.addresses, on.stack.key
        with (
            device(on, _listen, str(Path(folder) / "b.db"), patience_s=APPLY_TIMEOUT_S) as pipe,
            SyncedDb(str(Path(folder) / "a.db"), remote=remote_of(addresses, key), db_name=workload.DATABASE) as db,
        ):
            _await(pipe, "ready")
            table = db.table(workload.TABLE)
            with spent() as cost:
                for i in range(times + WARM_UP):
                    row_id = f"propagate-{i:06d}"
                    row = {"id": row_id, "title": "t", "done": False, "position": i, "score": None, "changed": i}
                    table.insert(row)
                    committed = time.time_ns()
                    took.append((_await(pipe, row_id) - committed) / 1e9)
                    time.sleep(PAUSE_S)
            pipe.send("done")
    p50 = percentile(took[WARM_UP:], 0.5) * 1_000
    return Result(
        bench="propagate",
        value=p50,
        baseline=percentile(verdicts, 0.5) * 1_000,
        unit="ms",
        target=PROPAGATE_TARGET,
        direction="at most",
        details={
            "times": times,
            "p99_ms": round(percentile(took[WARM_UP:], 0.99) * 1_000, 3),
            **cost.details(times + WARM_UP),
        },
    )


def _await(pipe: Connection, wanted: str) -> int:
    """The time that the listener reports for ``wanted``. Raises TimeoutError."""
    deadline = time.monotonic() + APPLY_TIMEOUT_S
    while (left := deadline - time.monotonic()) > 0 and pipe.poll(left):
        name, moment = pipe.recv()
        if name == wanted:
            return int(moment)
    raise TimeoutError(f"{wanted} did not arrive within {APPLY_TIMEOUT_S:g} s")
