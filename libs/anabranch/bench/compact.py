"""The compactor: a first run over many changes, then one with a hundredth more, against a bare reader and writer.

The log is made directly: groups as the resolver commits them, half of the changes inserts and half updates of two
columns, with the tables' rows and sums that belong to them. Times are those of the job itself, from its plan to its
last word; the start of Python, Java and Spark is told apart.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from ulid import ULID

from anabranch.bench.report import Result
from anabranch.bench.stage import fresh_database, server
from anabranch.bench.workload import DATABASE, SCHEMA, TABLE
from anabranch.canonical import SUM_MODULUS
from anabranch.columnar.manifest import Manifest, epoch_folder, from_json
from anabranch.runtime.compactor_job import Event, run_job
from anabranch.schema import Cell
from anabranch.store import compactions, group_records, log_files
from anabranch.store.capture import MARK_RESOLVER
from anabranch.store.catalog import Database, load_database
from anabranch.store.engine import Session, connect
from anabranch.store.group_records import GroupRow, LogRow, SumRow
from anabranch.store.rows import TableSql
from anabranch.wire.effects import Effect, EffectBuilder

TARGET = 0.5
LATER_SHARE = 0.15
GROUP = 5_000
_NODE = "01HZZZZZZZZZZZZZZZZZZZZZZZ"


class LogMaker:
    """Writes groups of inserts and updates, with the rows and sums that belong to them."""

    def __init__(self, conn: Session, database: Database) -> None:
        self._conn = conn
        self._database = database
        self._table = database.tables[TABLE]
        self._builder = EffectBuilder(self._table)
        self._sql = TableSql(SCHEMA, self._table)
        self._rows: list[list[Cell]] = []
        self._position = 1_700_000_000_000
        self._count = self._total = 0

    def write(self, changes: int) -> None:
        """Half of the changes insert rows, the others update some, spread over all."""
        self._conn.execute(MARK_RESOLVER)
        inserts = changes // 2
        for size in _sizes(inserts):
            first = len(self._rows)
            rows: list[list[Cell]] = [
                [str(ULID.from_int((first + i) << 40)), f"title {first + i} of the day", False, first + i, i / 7, i]
                for i in range(size)
            ]
            self._rows += rows
            self._commit([(row, self._builder.insert(row)) for row in rows])
            self._sql.insert(self._conn, self._table.column_names, rows)
        step = max(1, len(self._rows) // max(1, changes - inserts))
        at = 0
        for size in _sizes(changes - inserts):
            chosen = [self._rows[(at + i) * step % len(self._rows)] for i in range(size)]
            at += size
            done = []
            for row in chosen:
                after = [*row]
                after[1], after[2] = f"{row[1]!s} (done)", True
                done.append((row, self._builder.update(row, after)))
                row[:] = after
            self._commit(done)
            keys = [(row[0],) for row in chosen]
            self._sql.update(self._conn, ("title", "done"), keys, [(row[1], row[2]) for row in chosen])

    def _commit(self, done: list[tuple[list[Cell], Effect]]) -> None:
        conn, number, table_id = self._conn, self._database.id, self._table.id
        self._position += 1
        batch = str(ULID.from_int(self._position << 70))
        log = [
            LogRow(batch, i, _NODE, table_id, str(row[0]), e.type, e.data, e.changed, e.hash)
            for i, (row, e) in enumerate(done)
        ]
        self._count += sum(e.count_change for _, e in done)
        self._total = (self._total + sum(e.hash_change for _, e in done)) % SUM_MODULUS
        group_records.write_log(conn, number, self._position, log)
        total = self._total.to_bytes(16, "big")
        group_records.write_sums(conn, self._position, [SumRow(table_id, self._count, total)])
        group_records.write_group(conn, number, self._position, GroupRow(1, len(log), bytes(16), []))


def _sizes(total: int) -> Iterator[int]:
    for start in range(0, total, GROUP):
        yield min(GROUP, total - start)


@dataclass(frozen=True, slots=True)
class Job:
    """A run of the job: seconds before its plan, seconds of the run, and what it says at its end."""

    start_s: float
    run_s: float
    outcome: Event


def timed_run(url: str, root: Path) -> Job:
    """Run the compactor as a process.

    Raises:
        CompactorError: it failed.
        RuntimeError: it had nothing to say of any database.
    """
    began = time.perf_counter()
    planned, ended, outcome = began, began, None
    for event in run_job(url, str(root)):
        if event["step"] == "started":
            planned = time.perf_counter()
        elif event["step"] == "outcome":
            outcome, ended = event, time.perf_counter()
    if outcome is None:
        raise RuntimeError("the compactor found no database")
    return Job(planned - began, ended - planned, outcome)


def _manifest(conn: Session) -> Manifest:
    database = load_database(conn, DATABASE)
    published = compactions.last_published(conn, database.id, database.epoch)
    if published is None:
        raise RuntimeError("no run was published")
    return from_json(published.manifest)


def bare(url: str, database: Database, root: Path, manifest: Manifest) -> float:
    """Seconds of one process that reads the same log rows and the same table's rows as Arrow, and writes the same
    Parquet rows."""
    table, files = database.tables[TABLE], manifest.tables[TABLE]
    folder = root / epoch_folder(manifest.database, manifest.epoch)
    tables = [pq.read_table(folder / file.path, partitioning=None) for file in files.all_files]
    began = time.perf_counter()
    read = 0
    upto = manifest.to_position
    for batch in log_files.read_log(url, database.id, table.id, manifest.from_position, upto, 4 * 2**20):
        read += batch.num_rows
    for number, rows in enumerate(tables):
        pq.write_table(rows, root / f"bare-{number}.parquet", compression="zstd")
    took = time.perf_counter() - began
    if read != files.changes_count:
        raise RuntimeError(f"{read} log rows read, {files.changes_count} compacted")
    return took


def compact(changes: int = 1_000_000) -> Result:
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
            maker.write(changes // 100)
            conn.commit()
            later = timed_run(url, root)
    share = later.run_s / first.run_s
    return Result(
        bench="compact",
        value=changes / first.run_s,
        baseline=changes / baseline,
        unit="changes/s",
        target=TARGET,
        direction="at least",
        conditions={f"a run with 1 % new costs ≤ {LATER_SHARE:.0%} of the first": share <= LATER_SHARE},
        details={
            "changes": changes,
            "first_run_s": round(first.run_s, 1),
            "later_run_s": round(later.run_s, 1),
            "later_share": round(share, 3),
            "bare_s": round(baseline, 1),
            "start_s": round(first.start_s, 1),
            "files_mb": round(first.outcome["bytes"] / 1e6, 1),
        },
    )
