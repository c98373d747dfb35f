"""The demo from its first step to its last; every step prints its result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from anabranch.demo import airports, backend, compare, lake, plan, stage, sums, verdicts
from anabranch.demo.changes import Batch
from anabranch.demo.outcome import Outcome
from anabranch.demo.tablet import Tablet
from anabranch.embedded.postgres import EmbeddedPostgres
from anabranch.runtime.children import launch
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.session.engine import Session, connect
from anabranch.testkit.stack import Stack

# The new tablet waits until snapshot has proven the files, also on a busy machine.
_PATIENT = {"snapshot": {"ANABRANCH_BASE_PROOF_WAIT_MS": "120000"}}


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
        issuer = airports.Issuer()
        services_stack = stack.enter_context(
            Stack(url, folder=services, environment=issuer.settings, own_environment=_PATIENT, launch=launch)
        )
        console.print(f"Postgres and the services run. Files: {folder}")
        conn = stack.enter_context(connect(url, application_name="anabranch-demo", autocommit=True))
        departures, database = _load(conn, outcome, console)
        tablets = {name: stage.start_tablet(stack, name, folder, services_stack, issuer) for name in plan.TABLETS}
        for name, one in tablets.items():
            _pull(name, one, outcome, console)
        _work(tablets, plan.plan(departures, seed), outcome, console)
        _backend(url, departures, outcome, console)
        _come_back(tablets, outcome, console)
        backend.wait_until_logged(conn, database)
        # The release has changed what is synced.
        database = load_database(conn, database.name)
        outcome.verdicts = verdicts.read(conn, database)
        _lake(url, folder / "lake", conn, database, outcome, console)
        outcome.closing = backend.close_the_day(conn)
        _sweep(services_stack, conn, database, outcome, console)
        backend.wait_until_logged(conn, database)
        tablets[plan.NEW_TABLET] = stage.start_tablet(stack, plan.NEW_TABLET, folder, services_stack, issuer)
        _new_tablet(tablets[plan.NEW_TABLET], outcome, console)
        for name in plan.TABLETS:
            tablets[name].ask("come_back")
        outcome.server_sums = sums.of_server(conn, database)
        outcome.reports = {name: one.ask("report") for name, one in tablets.items()}
        for name, one in tablets.items():
            one.end()
            file = folder / f"{name}.db"
            outcome.sums[name] = sums.of_tablet(file)
            outcome.compared[name] = compare.whole(conn, database, file, plan.AIRPORTS[name])
            console.print(
                f"  {name}: {outcome.compared[name][0]:,} rows compared with those of Postgres that it may see, column"
                " by column"
            )
    outcome.seconds = time.perf_counter() - started
    return outcome


def _load(conn: Session, outcome: Outcome, console: Console) -> tuple[Sequence[Mapping[str, Any]], Database]:
    started = time.perf_counter()
    outcome.rows, departures = stage.load(conn)
    console.print(f"{sum(outcome.rows.values()):,} rows loaded in {time.perf_counter() - started:.1f} s:")
    console.print("  " + ", ".join(f"{table} {count:,}" for table, count in outcome.rows.items()))
    started = time.perf_counter()
    database = stage.register(conn)
    console.print(f"six tables registered for sync, their sums taken, in {time.perf_counter() - started:.1f} s")
    console.print(
        f"A tablet gets the rows of {' and '.join(airports.RESTRICTED)} whose audience, {airports.EXPRESSION}, is that"
        " of the airport in its token, and all rows of the other tables"
    )
    return departures, database


def _pull(name: str, one: Tablet, outcome: Outcome, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} rows"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        # The server tells nobody how many rows restricted tables have: how many there will be is known at the end.
        task = progress.add_task(f"{name} pulls", total=None)
        one.tell("pull")
        done: dict[str, int] = {}
        while True:
            kind, value = one.next_event()
            if kind == "done":
                break
            table, rows = value
            done[table] = rows
            progress.update(task, completed=sum(done.values()))
        progress.update(task, completed=value["rows"], total=value["rows"])
        outcome.pulls[name] = value


def _work(
    tablets: Mapping[str, Tablet], work: Mapping[str, Sequence[Batch]], outcome: Outcome, console: Console
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
        f" transactions and {done.seconds:.1f} s, and a release of it adds the column {'.'.join(backend.ADDED)}"
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


def _new_tablet(new: Tablet, outcome: Outcome, console: Console) -> None:
    """Have one more tablet begin: its rows come from the Parquet files, and later changes from the log."""
    name = plan.NEW_TABLET
    _pull(name, new, outcome, console)
    new.ask("come_back")
    pulled = outcome.pulls[name]
    source = "the Parquet files" if outcome.from_parquet else "Postgres"
    console.print(
        f"  {name}, new: {pulled['rows']:,} rows from {source} in {pulled['seconds']:.1f} s, and"
        f" {outcome.closing[plan.AIRPORTS[name]]:,} changes since then from the log"
    )
