"""The demo from its first step to its last; every step prints its result."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from anabranch.demo import backend, compare, data, lake, plan, tablet, verdicts
from anabranch.demo.tablet import DATABASE, Tablet
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.store.catalog import registration
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.stack import Stack


@dataclass
class Outcome:
    """The demo's results, for the summary and for tests. Times are in seconds."""

    rows: dict[str, int] = field(default_factory=dict)
    pulls: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    work: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    returns: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    backend: backend.Done = field(default_factory=lambda: backend.Done(0, 0, 0.0))
    verdicts: verdicts.Verdicts = field(default_factory=verdicts.Verdicts)
    lake: lake.Lake = field(default_factory=lake.Lake)
    closing: int = 0
    compared: dict[str, tuple[int, int]] = field(default_factory=dict)
    server_sums: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def equal(self) -> bool:
        """Whether every tablet and the server hold the same rows, by the sums and by the comparison."""
        sums = all(report["sums"] == self.server_sums for report in self.reports.values())
        return sums and bool(self.compared) and not any(differing for _, differing in self.compared.values())

    @property
    def from_parquet(self) -> bool:
        """Whether the new tablet's rows were those of the Parquet files, and not those of the tables."""
        pulled = self.pulls.get(plan.NEW_TABLET)
        return pulled is not None and pulled["cursor"] == self.lake.position > 0


_REAL_COLUMNS = (
    *plan.KEY,
    "sched_dep_time",
    "dep_time",
    "dep_delay",
    "tailnum",
    "arr_time",
    "arr_delay",
    "air_time",
)
_REAL = """
select flight_date, carrier, flight, origin, sched_dep_time, dep_time, dep_delay, tailnum, arr_time, arr_delay, air_time
from airfield.flights where flight_date = %s
"""
_BLANK = """
update airfield.flights set dep_time = null, dep_delay = null, arr_time = null, arr_delay = null, air_time = null
where flight_date = %s
"""

# The new tablet waits until snapshot has proven the files, also on a busy machine.
_PATIENT = {"snapshot": {"ANABRANCH_BASE_PROOF_WAIT_MS": "120000"}}
_DRAIN_S = 30.0
_DRAIN_LOOK_S = 0.02


def tell(folder: Path, seed: int, console: Console) -> Outcome:
    """Run the whole story in ``folder``, which must be empty.

    Raises:
        TabletError: a tablet failed.
        CompactorError: the compactor failed.
        grpc.RpcError: the janitor's sweep failed.
        psycopg.Error, FleetError, PostgresUnavailableError: the server side could not be started or used.
    """
    outcome = Outcome()
    started = time.perf_counter()
    with ExitStack() as stack:
        postgres = stack.enter_context(EmbeddedPostgres(folder / "postgres"))
        url = postgres.start()
        services = folder / "services"
        services.mkdir()
        services_stack = stack.enter_context(Stack(url, folder=services, own_environment=_PATIENT))
        console.print(f"Postgres and the services run. Files: {folder}")
        conn = stack.enter_context(connect(url, application_name="anabranch-demo", autocommit=True))
        departures, database = _load(conn, outcome, console)
        tablets = _start_tablets(stack, folder, services_stack)
        _pull(tablets, outcome, console)
        _work(tablets, plan.plan(departures, seed), outcome, console)
        _backend(url, departures, outcome, console)
        _come_back(tablets, outcome, console)
        outcome.verdicts = verdicts.read(conn, database)
        _lake(url, folder / "lake", conn, database, outcome, console)
        outcome.closing = backend.close_the_day(conn)
        _sweep(services_stack, conn, database, outcome, console)
        _drained(conn, database)
        _new_tablet(stack, folder, services_stack, tablets, outcome, console)
        for name in plan.TABLETS:
            tablets[name].ask("come_back")
        outcome.server_sums = verdicts.read_sums(conn, database)
        outcome.reports = {name: one.ask("report") for name, one in tablets.items()}
        for name, one in tablets.items():
            one.end()
            outcome.compared[name] = _compare(conn, database, folder / f"{name}.db")
            console.print(f"  {name}: {outcome.compared[name][0]:,} rows compared with Postgres, column by column")
    outcome.seconds = time.perf_counter() - started
    return outcome


def _load(conn: Session, outcome: Outcome, console: Console) -> tuple[Sequence[Mapping[str, Any]], Database]:
    started = time.perf_counter()
    outcome.rows = data.load(conn)
    departures = [dict(zip(_REAL_COLUMNS, row, strict=True)) for row in conn.execute(_REAL, (plan.DAY,))]
    # The day's departures and arrivals are not known yet when it begins.
    conn.execute(_BLANK, (plan.DAY,))
    console.print(f"{sum(outcome.rows.values()):,} rows loaded in {time.perf_counter() - started:.1f} s:")
    console.print("  " + ", ".join(f"{table} {count:,}" for table, count in outcome.rows.items()))
    started = time.perf_counter()
    registration.create_database(conn, DATABASE, data.SCHEMA, {"retention_days": lake.RETENTION_DAYS})
    for table in data.TABLES:
        registration.add_table(conn, DATABASE, table)
    console.print(f"six tables registered for sync, their sums taken, in {time.perf_counter() - started:.1f} s")
    return departures, load_database(conn, DATABASE)


def _start_tablets(stack: ExitStack, folder: Path, services: Stack) -> dict[str, Tablet]:
    return {name: _start_tablet(stack, name, folder, services) for name in plan.TABLETS}


def _start_tablet(stack: ExitStack, name: str, folder: Path, services: Stack) -> Tablet:
    key = services.new_key(name, database=DATABASE)
    started = tablet.start(multiprocessing.get_context("spawn"), name, folder, services.addresses, key)
    stack.callback(started.end)
    return started


def _pull(tablets: Mapping[str, Tablet], outcome: Outcome, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    total = sum(outcome.rows.values())
    with Progress(*columns, console=console) as progress:
        for name, one in tablets.items():
            task = progress.add_task(f"{name} pulls", total=total)
            one.tell("pull")
            done: dict[str, int] = {}
            while True:
                kind, value = one.next_event()
                if kind == "done":
                    break
                table, rows, _ = value
                done[table] = rows
                progress.update(task, completed=sum(done.values()))
            outcome.pulls[name] = value


def _work(
    tablets: Mapping[str, Tablet], work: Mapping[str, Sequence[plan.Batch]], outcome: Outcome, console: Console
) -> None:
    console.print(f"\nThe network is gone. {plan.DAY:%d %B %Y}, {sum(map(len, work.values())):,} batches offline:")
    for name, one in tablets.items():
        one.tell("work", work[name])
    for name, one in tablets.items():
        _, value = one.next_event()
        outcome.work[name] = value
        console.print(f"  {name}: {value['batches']:,} batches, {value['mutations']:,} mutations pending")


def _backend(url: str, departures: Sequence[Mapping[str, Any]], outcome: Outcome, console: Console) -> None:
    outcome.backend = done = backend.work(url, departures)
    console.print(
        f"\nMeanwhile the airline's own backend changes {done.rows:,} rows with plain SQL, in {done.transactions}"
        f" transactions and {done.seconds:.1f} s"
    )


def _come_back(tablets: Mapping[str, Tablet], outcome: Outcome, console: Console) -> None:
    console.print(f"\nThey come back: {', then '.join(plan.RETURN_ORDER)}")
    for name in plan.RETURN_ORDER:
        outcome.returns[name] = value = tablets[name].ask("come_back")
        console.print(f"  {name}: {value['pending']:,} batches sent and decided in {value['seconds']:.1f} s")
    for name in plan.RETURN_ORDER:
        tablets[name].ask("come_back")


def _lake(url: str, root: Path, conn: Session, database: Database, outcome: Outcome, console: Console) -> None:
    console.print("\nThe day is over. Spark makes Parquet of the log:")
    outcome.lake = found = lake.compact(url, root, conn, database, console)
    console.print(
        f"  {found.changes:,} changes and the latest rows of six tables in {found.files} files, proven and published in"
        f" {found.seconds:.0f} s, the start of Spark included"
    )


def _sweep(stack: Stack, conn: Session, database: Database, outcome: Outcome, console: Console) -> None:
    found = outcome.lake
    lake.sweep(stack, conn, database, found)
    console.print(
        f"The janitor, as if {lake.DAYS_LATER} days had passed, proves the Parquet once more and puts the log's floor"
        f" where it ends, in {found.sweep_seconds:.1f} s"
    )


def _drained(conn: Session, database: Database) -> None:
    """Wait until the backend's last writes are in the log."""
    until = time.monotonic() + _DRAIN_S
    waiting = "select exists (select from anabranch.captured where database_id = %s)"
    while (row := conn.execute(waiting, (database.id,)).fetchone()) is not None and row[0]:
        if time.monotonic() > until:
            raise TimeoutError(f"the backend's changes were not in the log after {_DRAIN_S:g} s")
        time.sleep(_DRAIN_LOOK_S)


def _new_tablet(
    stack: ExitStack,
    folder: Path,
    services: Stack,
    tablets: dict[str, Tablet],
    outcome: Outcome,
    console: Console,
) -> None:
    """Start one more tablet: its rows come from the Parquet files, and later changes from the log."""
    name = plan.NEW_TABLET
    new = _start_tablet(stack, name, folder, services)
    _pull({name: new}, outcome, console)
    tablets[name] = new
    new.ask("come_back")
    pulled = outcome.pulls[name]
    source = "the Parquet files" if outcome.from_parquet else "Postgres"
    console.print(
        f"  {name}, new: {pulled['rows']:,} rows from {source} in {pulled['seconds']:.1f} s, and"
        f" {outcome.closing:,} changes since then from the log"
    )


def _compare(conn: Session, database: Database, file: Path) -> tuple[int, int]:
    compared = differing = 0
    for table in database.tables.values():
        rows, wrong = compare.differing_rows(conn, database.schema_name, table, file)
        compared += rows
        differing += wrong
    return compared, differing
