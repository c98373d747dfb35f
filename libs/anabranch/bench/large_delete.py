"""A great many rows deleted by one transaction, on their way through the compactor and the janitor: how long each
takes, and how much memory.

    python -m anabranch.bench.large_delete 1000000

The rows' inserts are compacted first, so that the deletes find a base with all of them. The log is made directly
(``log_maker``); the janitor is the real service, beside the others.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc

from anabranch.bench.compact import Job, log_bytes, timed_run
from anabranch.bench.log_maker import LogMaker
from anabranch.bench.stage import Stage, fresh_database, server, staged
from anabranch.bench.workload import DATABASE
from anabranch.store.session.engine import connect
from anabranch.testkit.process_memory import forget_peak, has_bytes, peak_bytes
from anabranch.v1 import retention_pb2, retention_pb2_grpc

_MIB = 2**20
_SWEEPS_AT_MOST = 20
_SWEEP_S = 600.0
_LEFT = "select (select count(*) from anabranch.log), (select count(*) from anabranch.row_versions)"


def _sweep(on: Stage) -> dict[str, Any]:
    pid = on.stack.pid("retention-janitor")
    assert pid is not None, "the janitor runs"
    forget_peak(pid)
    before = has_bytes(pid)
    request = retention_pb2.RunSweepRequest(db_name=DATABASE)
    metadata = (("authorization", f"Bearer {on.stack.key}"),)
    began = time.perf_counter()
    unfinished, sweeps = True, 0
    with grpc.insecure_channel(on.stack.addresses["retention-janitor"]) as channel:
        janitor = retention_pb2_grpc.RetentionJanitorServiceStub(channel)
        while unfinished and sweeps < _SWEEPS_AT_MOST:
            unfinished = janitor.RunSweep(request, metadata=metadata, timeout=_SWEEP_S).unfinished
            sweeps += 1
    with connect(on.url, application_name="anabranch-bench", autocommit=True) as conn:
        [(log, versions)] = conn.execute(_LEFT).fetchall()
    return {
        "sweep_s": round(time.perf_counter() - began, 1),
        "sweeps": sweeps,
        "unfinished": unfinished,
        "janitor_mib": peak_bytes(pid) // _MIB,
        "janitor_mib_before": before // _MIB,
        "log_rows_left": log,
        "tombstones_left": versions,
    }


def _job_figures(name: str, job: Job) -> dict[str, Any]:
    return {
        f"{name}_s": round(job.run_s, 1),
        f"{name}_cpu_s": round(job.cpu_s, 1),
        f"{name}_start_s": round(job.start_s, 1),
        f"{name}_peak_mib": job.peak.as_mib(),
        f"{name}_changes": job.outcome["changes"],
        f"{name}_files": job.outcome["files"],
        f"{name}_files_mb": round(job.outcome["bytes"] / 1e6, 1),
    }


def large_delete(rows: int) -> dict[str, Any]:
    """Return the figures; each one is also printed, as JSON, as soon as it is known."""
    found: dict[str, Any] = {}

    def tell(figures: dict[str, Any]) -> None:
        print(json.dumps(figures), flush=True)
        found.update(figures)

    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as name:
        folder = Path(name)
        with server(folder) as server_url, fresh_database(server_url) as (url, database):
            with connect(url, application_name="anabranch-bench") as conn:
                maker = LogMaker(conn, database)
                maker.insert(rows)
                conn.commit()
                tell(_job_figures("inserted", timed_run(url, folder / "lake")))
                maker.delete_all()
                conn.commit()
                tell({"log_mb": round(log_bytes(conn) / 1e6, 1)})
            tell(_job_figures("deleted", timed_run(url, folder / "lake")))
            with staged(server_url, folder / "services", url, database) as on:
                tell(_sweep(on))
    return found


if __name__ == "__main__":
    large_delete(int(sys.argv[1]))
