"""The demo's second half on the server's side: the log becomes Parquet, one flight's history is read from there, and
the log is cut."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import grpc
from rich.console import Console

from anabranch.columnar.lake import LakeTable
from anabranch.columnar.manifest import Manifest, from_json
from anabranch.columnar.row_states import DELETE, INSERT, Change
from anabranch.demo.changes import named
from anabranch.runtime.compactor_job import run_job, show_job
from anabranch.store.catalog.databases import Database
from anabranch.store.lake import compactions
from anabranch.store.session.engine import Session
from anabranch.testkit.stack import Stack
from anabranch.v1 import retention_pb2, retention_pb2_grpc
from anabranch.values import Cell, Column, key_cells
from anabranch.values.parquet import file_codecs
from anabranch.values.postgres_text import element_printer

DAYS_LATER = 8
"""The janitor's clock is ahead by so many days: one more than its database keeps the log."""
RETENTION_DAYS = 7
SHOWN = "flights"
"""The table of the flight whose history is shown."""
_DAY_MS = 86_400_000
_SWEEP_S = 60.0

_BUSIEST = """
select l.key from anabranch.log l join anabranch.synced_tables t on t.id = l.table_id
where l.database_id = %s and t.name = %s
group by l.key order by count(distinct l.node_id) desc, count(*) desc, l.key limit 1
"""
_NAMES = "select node_id, name from anabranch.nodes where database_id = %s"
_LOG = """
select count(*), coalesce(sum(octet_length(effect)), 0)::bigint
from anabranch.log where database_id = %s
"""


class Step(NamedTuple):
    """The effect of one change on one column of the flight."""

    at: str
    node: str
    type: str
    column: str
    before: str
    after: str


@dataclass
class Lake:
    """The results of the second half. ``parts``: of changes, conflicts and base, rows and bytes of their files.
    ``log_rows`` and ``log_bytes``: rows of the log before the sweep, and the bytes of their effects."""

    changes: int = 0
    files: int = 0
    seconds: float = 0.0
    position: int = 0
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    flight: str = ""
    history: list[Step] = field(default_factory=list)
    log_rows: int = 0
    log_bytes: int = 0
    floor: int = 0
    removed: dict[str, int] = field(default_factory=dict)
    sweep_seconds: float = 0.0


def compact(url: str, root: Path, conn: Session, database: Database, console: Console) -> Lake:
    """Make Parquet of the log, and read from it the history of the flight that the most nodes have written.

    Raises:
        CompactorError: the job failed.
        psycopg.Error: Postgres is not available.
    """
    started = time.perf_counter()
    (outcome,) = show_job(run_job(url, f"file:{root}", database=database.name), console)
    found = Lake(outcome["changes"], outcome["files"], time.perf_counter() - started, outcome["to_position"])
    published = compactions.last_published(conn, database.id, database.epoch)
    assert published is not None
    manifest = from_json(published.manifest)
    found.parts = _parts(manifest)
    row = conn.execute(_BUSIEST, (database.id, SHOWN)).fetchone()
    if row is not None:
        key = key_cells(database.tables[SHOWN], row[0])
        found.flight = named(SHOWN, dict(zip(database.tables[SHOWN].key_columns, key, strict=True)))
        found.history = _history(published.root, manifest, key, conn, database)
    return found


def _parts(manifest: Manifest) -> dict[str, tuple[int, int]]:
    tables = manifest.tables.values()
    files = {
        "every change": [f for t in tables for f in t.changes],
        "values that lost": [f for t in tables for f in t.conflicts],
        "the latest rows": [f for t in tables if t.base is not None for f in t.base.files],
    }
    return {part: (sum(f.rows for f in found), sum(f.bytes for f in found)) for part, found in files.items()}


def _history(root: str, manifest: Manifest, key: tuple[Cell, ...], conn: Session, database: Database) -> list[Step]:
    lake = LakeTable(root, manifest, SHOWN, file_codecs)
    names: dict[str, str] = dict(conn.execute(_NAMES, (database.id,)).fetchall())
    changes = lake.whole_changes(lake.registrations[-1], key=key)
    return [step for change in changes for step in _steps(change, lake.table.columns, names)]


def _steps(change: Change, columns: Sequence[Column], names: Mapping[str, str]) -> list[Step]:
    at = datetime.fromtimestamp(change.position / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    who = names.get(change.node_id, change.node_id)
    steps: list[Step] = []
    changed = {INSERT: (), DELETE: change.before}.get(change.type, change.changed)
    for column in columns:
        if column.name in changed:
            head = ("", "", "") if steps else (at, who, change.type)
            # The log begins where the table is registered: no file says how a column was before its first change.
            before = _text(column, change.before[column.name]) if column.name in change.before else "not known"
            after = "" if change.row is None else _text(column, change.row.get(column.name))
            steps.append(Step(*head, column.name, before, after))
    return steps or [Step(at, who, change.type, "", "", "")]


def _text(column: Column, cell: Cell) -> str:
    return "NULL" if cell is None else cell if isinstance(cell, str) else element_printer(column.kind)(cell)


def sweep(stack: Stack, conn: Session, database: Database, found: Lake) -> None:
    """Have the janitor sweep as if it were ``DAYS_LATER`` days later.

    Raises:
        grpc.RpcError: the sweep failed.
    """
    (found.log_rows, found.log_bytes), *_ = conn.execute(_LOG, (database.id,)).fetchall()
    request = retention_pb2.RunSweepRequest(db_name=database.name)
    started = time.perf_counter()
    stack.set_clock_offset(DAYS_LATER * _DAY_MS)
    try:
        with grpc.insecure_channel(stack.addresses["retention-janitor"]) as channel:
            response = retention_pb2_grpc.RetentionJanitorServiceStub(channel).RunSweep(
                request, metadata=(("authorization", f"Bearer {stack.key}"),), timeout=_SWEEP_S, wait_for_ready=True
            )
    finally:
        stack.set_clock_offset(0)
    found.sweep_seconds = time.perf_counter() - started
    found.floor = response.floor
    found.removed = {one.what: one.rows for one in response.removed if one.rows}
