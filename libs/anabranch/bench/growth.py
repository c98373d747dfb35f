"""The write path with a long history behind it, against the same with none; and the janitor's sweep of that history.

Two databases on one server, with services of their own: one empty, one with millions of changes in its log
(``history``). Both are sent the same batches, in turns, so that other load on the machine affects both.

Then the window is shortened so that half of the history may go, and the janitor sweeps.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from anabranch.bench import ingest
from anabranch.bench.cpu import Spent
from anabranch.bench.history import DAY_MS, write_history
from anabranch.bench.report import Result
from anabranch.bench.stage import Stage, fresh_database, server, staged
from anabranch.bench.workload import DATABASE
from anabranch.store.catalog.set_policy import set_database_policy
from anabranch.store.session.engine import connect
from anabranch.v1 import retention_pb2, retention_pb2_grpc

TARGET = 0.9
ROUNDS = 3
DAYS = 60
LONG_DAYS, SHORT_DAYS = 120, 30
"""How long the log is kept while it is measured, and at the sweep."""
_SWEEPS_AT_MOST = 5
_SWEEP_S = 600.0
_LOG_BYTES = """
select sum(pg_total_relation_size(relid))::int8 from pg_partition_tree('anabranch.log'::regclass) where isleaf
"""
_OTHER_BYTES = """
select sum(pg_total_relation_size(name::regclass))::int8
from unnest(array['anabranch.batches', 'anabranch.groups', 'anabranch.row_versions']) as name
"""
_CHANGES = "select count(*) from anabranch.log"
# Devices that read report their position with every call; the bench's own only write.
_ACKNOWLEDGE = """
update anabranch.nodes set acknowledged = (select max(position) from anabranch.groups)
"""


@dataclass(frozen=True, slots=True)
class Sweep:
    """``log_bytes``: the log's size after the sweep, with its indexes; ``changes``: how many changes are left in it."""

    seconds: float
    log_bytes: int
    changes: int
    unfinished: bool


def _number(url: str, statement: str) -> int:
    with connect(url, application_name="anabranch-bench", autocommit=True) as conn:
        [(found,)] = conn.execute(statement.encode()).fetchall()
    return int(found)


def _sweep(on: Stage) -> Sweep:
    with connect(on.url, application_name="anabranch-bench", autocommit=True) as conn:
        conn.execute(_ACKNOWLEDGE)
        set_database_policy(conn, DATABASE, {"retention_days": SHORT_DAYS})
    unfinished = True
    took = 0.0
    with grpc.insecure_channel(on.stack.addresses["retention-janitor"]) as channel:
        janitor = retention_pb2_grpc.RetentionJanitorServiceStub(channel)
        for _ in range(_SWEEPS_AT_MOST):
            began = time.perf_counter()
            answer = janitor.RunSweep(
                retention_pb2.RunSweepRequest(db_name=DATABASE),
                metadata=(("authorization", f"Bearer {on.stack.key}"),),
                timeout=_SWEEP_S,
            )
            took += time.perf_counter() - began
            unfinished = answer.unfinished
            if not unfinished:
                break
    return Sweep(took, _number(on.url, _LOG_BYTES), _number(on.url, _CHANGES), unfinished)


def growth(changes: int = 5_000_000, measured: int = 40_000) -> Result:
    """``measured`` row changes a round into a database with ``changes`` changes in its log, and into an empty one."""
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        server_url = stack.enter_context(server(folder))
        sides: list[Stage] = []
        began = time.perf_counter()
        for number, size in enumerate((0, changes)):
            url, database = stack.enter_context(fresh_database(server_url))
            if size:
                with connect(url, application_name="anabranch-bench", autocommit=True) as conn:
                    set_database_policy(conn, DATABASE, {"retention_days": LONG_DAYS})
                write_history(url, database, size, time.time_ns() // 1_000_000 - DAY_MS // 24, DAYS)
            sides.append(stack.enter_context(staged(server_url, folder / f"services-{number}", url, database)))
        filled_s = time.perf_counter() - began
        empty, full = sides
        there, log_bytes = _number(full.url, _CHANGES), _number(full.url, _LOG_BYTES)
        other_bytes = _number(full.url, _OTHER_BYTES)
        took = {id(side): Spent() for side in sides}
        for side in sides:
            ingest.ingest_some(side, measured // 4, Spent())
        for turn in range(ROUNDS):
            for side in sides if turn % 2 else reversed(sides):
                ingest.ingest_some(side, measured, took[id(side)])
        swept = _sweep(full)
    with_history, without = took[id(full)], took[id(empty)]
    sent = ROUNDS * measured
    details: dict[str, Any] = {
        "changes_in_the_log": there,
        "measured_changes": sent,
        "filled_s": round(filled_s, 1),
        "log_bytes_a_change": round(log_bytes / there, 1),
        "verdicts_groups_versions_bytes_a_change": round(other_bytes / there, 1),
        "log_mb": round(log_bytes / 1e6, 1),
        **with_history.details(sent),
        "cpu_us_a_change_empty": without.cpu_us(sent),
        "cpu_ratio": round(without.cpu_s / with_history.cpu_s, 3),
        "sweep_s": round(swept.seconds, 1),
        "sweep_unfinished": swept.unfinished,
        "log_mb_after_the_sweep": round(swept.log_bytes / 1e6, 1),
        "changes_after_the_sweep": swept.changes,
    }
    return Result(
        bench="growth",
        value=sent / with_history.wall_s,
        baseline=sent / without.wall_s,
        unit="changes/s",
        target=TARGET,
        direction="at least",
        details=details,
    )
