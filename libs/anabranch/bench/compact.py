"""The compactor: a first run over many changes, then one with a hundredth more, against a bare reader and writer.

The log is made directly (``log_maker``), half of the changes inserts and half updates of two columns. Times are those
of the job itself: its plan, and the time from when Spark is ready to the job's last line; the start of Python, Java and
Spark is reported separately.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from anabranch.bench.cpu import Spent, spent
from anabranch.bench.log_maker import LogMaker
from anabranch.bench.memory import Peak, peak_of
from anabranch.bench.report import Result
from anabranch.bench.stage import fresh_database, server
from anabranch.bench.workload import DATABASE, TABLE
from anabranch.columnar.manifest import Manifest, epoch_folder, from_json
from anabranch.runtime.compactor_job import Event, run_job
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.lake import compactions, log_files
from anabranch.store.session.engine import Session, connect

TARGET = 0.5
LATER_SHARE = 0.15
_LOG_BYTES = """
select coalesce(sum(pg_total_relation_size(relid)), 0)::int8
from pg_partition_tree('anabranch.log'::regclass) where isleaf
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A run of the job: seconds before its plan, seconds of the run by the clock and of all processors together (those
    of a Postgres of the bench's own among them), the memory that it took, and its report at the end."""

    start_s: float
    run_s: float
    cpu_s: float
    peak: Peak
    outcome: Event


def timed_run(url: str, root: Path) -> Job:
    """Run the compactor as a process.

    Raises:
        CompactorError: it failed.
        RuntimeError: it reported no database.
    """
    began = time.perf_counter()
    start_s, outcome = 0.0, None
    measurements: list[Spent] = []
    with peak_of("anabranch_compactor") as peak, ExitStack() as measured:
        for event in run_job(url, str(root)):
            now = time.perf_counter()
            if event["step"] in ("begun", "started"):
                start_s += now - began
                measurements.append(measured.enter_context(spent()))
            elif event["step"] in ("planned", "outcome"):
                measured.close()
                began = now
            if event["step"] == "outcome":
                outcome = event
    if outcome is None:
        raise RuntimeError("the compactor found no database")
    run = Spent()
    for one in measurements:
        run.add(one)
    return Job(start_s, run.wall_s, run.cpu_s, peak, outcome)


def log_bytes(conn: Session) -> int:
    """The size of the log, with its indexes."""
    [(size,)] = conn.execute(_LOG_BYTES).fetchall()
    return int(size)


def _manifest(conn: Session) -> Manifest:
    database = load_database(conn, DATABASE)
    published = compactions.last_published(conn, database.id, database.epoch)
    if published is None:
        raise RuntimeError("no run was published")
    return from_json(published.manifest)


def read_s(url: str, database: Database, after: int, upto: int) -> tuple[float, int]:
    """Seconds of one process that reads log rows as Arrow, and how many it read."""
    began = time.perf_counter()
    read = sum(batch.num_rows for batch in log_files.read_log(url, database.id, after, upto, 4 * 2**20))
    return time.perf_counter() - began, read


def write_s(tables: Sequence[pa.Table], root: Path) -> float:
    """Seconds of one process that writes rows, which it has in memory, as Parquet."""
    began = time.perf_counter()
    for number, rows in enumerate(tables):
        pq.write_table(rows, root / f"bare-{number}.parquet", compression="zstd")
    return time.perf_counter() - began


def bare(url: str, database: Database, root: Path, manifest: Manifest) -> float:
    """Seconds of one process that reads the same log rows, and writes the same Parquet rows."""
    files = manifest.tables[TABLE]
    folder = root / epoch_folder(manifest.database, manifest.epoch)
    tables = [pq.read_table(folder / file.path, partitioning=None) for file in files.all_files]
    reading_s, read = read_s(url, database, manifest.from_position, manifest.to_position)
    if read != files.changes_count:
        raise RuntimeError(f"{read} log rows read, {files.changes_count} compacted")
    return reading_s + write_s(tables, root)


@dataclass(frozen=True, slots=True)
class _Measured:
    """``bare_s``: seconds of the bare reader and writer of the first run's output. ``log_bytes``: the log's size."""

    first: Job
    later: Job
    bare_s: float
    log_bytes: int

    @property
    def share(self) -> float:
        """The later run's time as a fraction of the first run's."""
        return self.later.run_s / self.first.run_s

    def details(self, changes: int) -> dict[str, Any]:
        """Everything that was measured, for ``changes`` changes of the first run."""
        first, later = self.first, self.later
        return {
            "changes": changes,
            "first_run_s": round(first.run_s, 1),
            "later_run_s": round(later.run_s, 1),
            "later_share": round(self.share, 3),
            "first_cpu_s": round(first.cpu_s, 1),
            "later_cpu_s": round(later.cpu_s, 1),
            "later_cpu_share": round(later.cpu_s / first.cpu_s, 3),
            "bare_s": round(self.bare_s, 1),
            "start_s": round(first.start_s, 1),
            "files": first.outcome["files"],
            "files_mb": round(first.outcome["bytes"] / 1e6, 1),
            "later_files": later.outcome["files"],
            "later_files_mb": round(later.outcome["bytes"] / 1e6, 1),
            "log_mb": round(self.log_bytes / 1e6, 1),
            "first_peak_mib": first.peak.as_mib(),
            "later_peak_mib": later.peak.as_mib(),
        }


def _measure(changes: int) -> _Measured:
    """A first run over ``changes`` changes, and one over a hundredth more."""
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as name:
        folder = Path(name)
        with (
            server(folder) as server_url,
            fresh_database(server_url) as (url, database),
            connect(url, application_name="anabranch-bench") as conn,
        ):
            maker = LogMaker(conn, database)
            maker.write(changes)
            conn.commit()
            root = folder / "lake"
            first = timed_run(url, root)
            manifest = _manifest(conn)
            conn.commit()
            baseline = bare(url, database, root, manifest)
            size = log_bytes(conn)
            maker.write(changes // 100)
            conn.commit()
            return _Measured(first, timed_run(url, root), baseline, size)


def compact(changes: int = 1_000_000) -> Result:
    """A first run over ``changes`` changes."""
    found = _measure(changes)
    return Result(
        bench="compact",
        value=changes / found.first.run_s,
        baseline=changes / found.bare_s,
        unit="changes/s",
        target=TARGET,
        direction="at least",
        details=found.details(changes),
    )


def compact_later(changes: int = 5_000_000) -> Result:
    """A run over a hundredth of ``changes``, after one over all of them, which is its baseline."""
    found = _measure(changes)
    return Result(
        bench="compact_later",
        value=found.later.run_s,
        baseline=found.first.run_s,
        unit="s",
        target=LATER_SHARE,
        direction="at most",
        details=found.details(changes),
    )
