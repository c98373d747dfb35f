"""Throughput of the write path, from the call to the verdict, against a bare loop of the same statements."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.bench import floor, sending, workload
from anabranch.bench.cpu import Spent, spent
from anabranch.bench.report import Result
from anabranch.bench.stage import Stage, fresh_database, stage
from anabranch.bench.workload import Client
from anabranch.store.session.engine import connect

TARGET = 0.5
TARGET_ONE_ROW = 0.25
TARGET_AUDIENCES = 0.85
ONE_ROW_PER_S = 8_000
ONE_BATCH_A_TIME_PER_S = 1_500
COALESCED = 500
"""Envelopes of one call where a device sends a long queue."""


@dataclass(frozen=True, slots=True)
class Run:
    """``rate`` in row changes a second; ``group_size`` in batches, on average."""

    rate: float
    group_size: float
    seconds: float


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def measure(on: Stage, clients: Sequence[Client], per_call: int, *, live: bool = False) -> Run:
    """Send everything, ``live`` as in ``sending.Sender``, and check that the log has all changes of batches that are
    not to be refused. The rate counts the changes of refused batches, too: they are sent and decided like others.

    Raises:
        RuntimeError: the log holds another number of changes.
    """
    changes = sum(len(batch.rows) for client in clients for batch in client.batches)
    refused = sum(len(batch.rows) for client in clients for batch in client.batches if batch.id in client.refused)
    groups = "select count(*), coalesce(sum(batches), 0), coalesce(sum(changes), 0) from anabranch.groups"
    with connect(on.url, application_name="anabranch-bench", autocommit=True) as conn:
        before = conn.execute(groups).fetchone() or (0, 0, 0)
        seconds = sending.send_all(on.stack.addresses["ingest"], on.stack.key, clients, per_call, live=live)
        after = conn.execute(groups).fetchone() or (0, 0, 0)
    if after[2] - before[2] != changes - refused:
        raise RuntimeError(f"{changes - refused} good changes sent, {after[2] - before[2]} in the log")
    return Run(changes / seconds, float(after[1] - before[1]) / max(1, after[0] - before[0]), seconds)


def ingest_some(on: Stage, changes: int, total: Spent) -> None:
    """Do the work of ``ingest`` with ``changes`` changes; add the time to ``total``. Raises as ``measure``."""
    clients = workload.clients(8, changes, 10, _now_ms())
    with spent() as took:
        run = measure(on, clients, COALESCED)
    total.add(Spent(run.seconds, took.cpu_s, took.by_process))


def _floor(on: Stage, clients: Sequence[Client], group_size: float) -> float:
    batches = [batch for client in clients for batch in client.batches]
    with fresh_database(on.server_url) as (url, database):
        return floor.write(url, database.tables[workload.TABLE], database.id, batches, max(1, round(group_size)))


def ingest(changes: int = 200_000) -> Result:
    """``changes`` row changes in batches of 10 by 8 clients."""
    clients = workload.clients(8, changes, 10, _now_ms())
    with stage() as on:
        with spent() as took:
            run = measure(on, clients, COALESCED)
        baseline = _floor(on, clients, run.group_size)
    return Result(
        bench="ingest",
        value=run.rate,
        baseline=baseline,
        unit="changes/s",
        target=TARGET,
        direction="at least",
        details={
            "changes": changes,
            "clients": 8,
            "batches_per_group": round(run.group_size, 1),
            **took.details(changes),
        },
    )


def ingest_audiences(changes: int = 100_000) -> Result:
    """``ingest`` into a table whose rows are for one of a hundred teams each, beside the same without."""
    runs = []
    for audience in (None, workload.OF_TEAM):
        clients = workload.clients(8, changes, 10, _now_ms())
        with stage(audience=audience) as on:
            runs.append(measure(on, clients, COALESCED))
    without, restricted = runs
    return Result(
        bench="ingest_audiences",
        value=restricted.rate,
        baseline=without.rate,
        unit="changes/s",
        target=TARGET_AUDIENCES,
        direction="at least",
        details={"changes": changes, "clients": 8, "batches_per_group": round(restricted.group_size, 1)},
    )


def ingest1(changes: int = 40_000) -> Result:
    """Batches of one row: by one client, by eight, and by eight that send one batch at a time: in a call each, and as
    messages on one open stream each, as devices at work do."""
    with stage() as on:
        single = measure(on, workload.clients(1, changes // 2, 1, _now_ms()), COALESCED)
        clients = workload.clients(8, changes, 1, _now_ms())
        with spent() as took:
            eight = measure(on, clients, COALESCED)
        baseline = _floor(on, clients, eight.group_size)
        clients = workload.clients(8, changes // 8, 1, _now_ms())
        with spent() as took_alone:
            alone = measure(on, clients, 1)
        clients = workload.clients(8, changes // 8, 1, _now_ms())
        with spent() as took_live:
            live = measure(on, clients, 1, live=True)
    worse = min(single, eight, key=lambda run: run.rate)
    return Result(
        bench="ingest1",
        value=worse.rate,
        baseline=baseline,
        unit="changes/s",
        target=TARGET_ONE_ROW,
        direction="at least",
        conditions={
            f"1 client ≥ {ONE_ROW_PER_S:,}/s": single.rate >= ONE_ROW_PER_S,
            f"8 clients ≥ {ONE_ROW_PER_S:,}/s": eight.rate >= ONE_ROW_PER_S,
            f"one batch at a time ≥ {ONE_BATCH_A_TIME_PER_S:,}/s": live.rate >= ONE_BATCH_A_TIME_PER_S,
        },
        details={
            "one_client_per_s": round(single.rate),
            "eight_clients_per_s": round(eight.rate),
            "batches_per_group": round(eight.group_size, 1),
            "one_batch_a_call_per_s": round(alone.rate),
            "one_batch_a_message_per_s": round(live.rate),
            "eight_clients": took.details(changes),
            "one_batch_a_call": took_alone.details(changes // 8),
            "one_batch_a_message": took_live.details(changes // 8),
        },
    )
