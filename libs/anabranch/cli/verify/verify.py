"""``anabranch verify``: a table against the sum that the log carries, and a device's file against the server."""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from anabranch.cli.catalog.session import catalog_session, refuse
from anabranch.cli.installation import DataDir, PostgresUrl
from anabranch.cli.printable import say
from anabranch.cli.verify.device import NotComparableError, check_device
from anabranch.cli.verify.log import RowComparison, contradictions
from anabranch.cli.verify.sums import differing_audiences, stored_sums
from anabranch.cli.verify.visibility import check_visibility
from anabranch.client.errors import ClientError
from anabranch.store.capture.rows import UndecodableError
from anabranch.store.capture.triggers import gathering
from anabranch.store.capture.undrained import UndrainedError, rows_before
from anabranch.store.catalog.adoption import Contradiction, adopt, held
from anabranch.store.catalog.cut_off import cut_off, in_words
from anabranch.store.catalog.databases import Database, load_database
from anabranch.store.catalog.sums import kept_audience_sums, sum_to_bytes
from anabranch.store.log.moment import moment
from anabranch.store.session.engine import Session
from anabranch.values import Table

app = typer.Typer()
DIFFERS = 1
"""Exit code where a table differs."""
MOST_SHOWN = 20
MOST_ADOPTED = 1_000_000
"""Rows that one adoption brings into the log."""
PATIENCE_S = 60.0
"""How long the command waits until the resolver has drained the changes."""
_PAUSE_S = 0.2
LOCK_TIMEOUT_MS = 10_000
STATEMENT_TIMEOUT_MS = 600_000


@app.command()
def verify(
    db: Annotated[str, typer.Option("--db", help="The database's name.", show_default=False)],
    table: Annotated[str | None, typer.Option("--table", help="Only this table.", show_default=False)] = None,
    device: Annotated[
        Path | None,
        typer.Option("--device", help="Compare this file of a device instead.", exists=True, dir_okay=False),
    ] = None,
    take: Annotated[
        bool, typer.Option("--adopt", help="Take tables that differ as they are, and bring them into the log.")
    ] = False,
    visibility: Annotated[
        list[str] | None,
        typer.Option(
            "--visibility",
            metavar="PRINCIPAL",
            help="Compare what this principal's audiences show with what policies let it read instead: its name, or "
            "its token's claims as a JSON object with sub. May be given several times.",
            show_default=False,
        ),
    ] = None,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Compare each synced table with the sum that the log carries, at one moment, while everybody goes on writing; or a
    device's file with the server.

    A table that differs was changed behind the capture triggers (disabled, or a restore): devices don't know of it.
    Rows of which the log tells something else are named. With --adopt writers wait while the table is read; rows that
    the log knows are brought into it as changes of the node "server", and the sum becomes the table's: devices that
    hold something else see that they disagree, and repair it.

    Ends with 1 where something differs, with 2 where they can't be compared.
    """
    with catalog_session(postgres_url, data_dir, "verify") as conn, _readable():
        database = load_database(conn, db)
        named = database.find(table) if table is not None else None
        if table is not None and named is None:
            raise refuse("NOT_SYNCED", f'"{table}" is no synced table of "{db}"')
        names = list(database.table_order) if named is None else [named.name]
        for one in cut_off(conn, db):
            say(f"warning: {in_words(db, one.table)}", err=True)
        if device is not None:
            if take:
                raise refuse("INVALID_OPTIONS", "--adopt is for the server's tables: a device mends itself")
            differs = _device(conn, database, device, None if named is None else named.sql_name)
        elif visibility:
            if take:
                raise refuse("INVALID_OPTIONS", "--adopt is for the server's tables, not for what is seen of them")
            differs = check_visibility(conn, database, names, visibility)
        else:
            found = [name for name in names if not _table(conn, database, database.tables[name])]
            if take:
                for name in found:
                    _adopt(conn, database, database.tables[name])
                found = [name for name in found if not _table(conn, database, database.tables[name])]
            differs = bool(found)
    if differs:
        raise typer.Exit(DIFFERS)


@contextmanager
def _readable() -> Iterator[None]:
    """End the command where a table's captured changes can't be read."""
    try:
        yield
    except UndecodableError as error:
        raise refuse("TABLE_CHANGED", f"{error}: remove the table and add it again") from error


def _patiently(what: str) -> Iterator[None]:
    """Yield again and again, with pauses, for ``PATIENCE_S`` seconds; then refuse."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        yield
        time.sleep(_PAUSE_S)
    raise refuse("UNDRAINED", f"{what} for {PATIENCE_S:g} s: does a conflict-resolver run?")


def _table(conn: Session, database: Database, table: Table) -> bool:
    """Whether a table is what the log says; print the differences."""
    for _ in _patiently(f"too many changes of {table.sql_name} wait to be drained"):
        with moment(conn, database, table) as now:
            kept = next(((row.count, row.hash) for row in now.rows if row.table == table.name), None)
            if kept is None:
                raise refuse("NOT_SYNCED", f'"{table.sql_name}" has no sum: it has just been removed')
            try:
                stored = stored_sums(conn, database, table)
            except UndrainedError:
                continue
            others = {}
            if table.name in database.restricted:
                others = differing_audiences(stored, kept_audience_sums(conn, table.id))
            if kept == (stored.count, sum_to_bytes(stored.total)) and not others:
                say(f"{table.sql_name}: {stored.count} rows are those of the log at {now.head}")
                return True
            say(f"{table.sql_name}: DIFFERS from the log at {now.head}: {stored.count} rows, {kept[0]} logged")
            _name_audiences(others)
            _name_rows(table, contradictions(conn, database, table, rows_before(conn, database, table)))
            return False
    raise AssertionError("patience ends with an error")


def _name_audiences(found: Mapping[str, tuple[int, int]]) -> None:
    for audience, (here, logged) in itertools.islice(found.items(), MOST_SHOWN):
        say(f"  audience {audience}: {here} rows, {logged} logged")
    if len(found) > MOST_SHOWN:
        say(f"  and {len(found) - MOST_SHOWN} more audiences")


def _name_rows(table: Table, found: Iterator[Contradiction]) -> None:
    comparison = RowComparison(table)
    number = 0
    for number, one in enumerate(found, 1):
        if number <= MOST_SHOWN:
            names = ("in the table", "in the log")
            say(f"  {comparison.describe(one.key, one.stored, one.logged, names)}")
    if number > MOST_SHOWN:
        say(f"  and {number - MOST_SHOWN} more rows")
    if not number:
        say("  rows that the log has never had, or not whole: compare a device's file (--device)")


def _adopt(conn: Session, database: Database, table: Table) -> None:
    for _ in _patiently(f"changes of {table.sql_name} wait to be drained"):
        with held(conn, database, table, LOCK_TIMEOUT_MS, STATEMENT_TIMEOUT_MS) as drained:
            if gathering(conn, database.schema_name, table.sql_name, database.id):
                raise refuse("BUSY", f"{table.sql_name} is being registered anew: try again after that")
            if not drained:
                continue
            found = list(itertools.islice(contradictions(conn, database, table, {}), MOST_ADOPTED + 1))
            if len(found) > MOST_ADOPTED:
                raise refuse("TOO_MANY", f"more than {MOST_ADOPTED} rows of {table.sql_name} differ: register it anew")
            adopt(conn, database, table, found)
        say(f"{table.sql_name}: adopted; {len(found)} rows go into the log")
        return


def _device(conn: Session, database: Database, file: Path, only: str | None) -> bool:
    """Whether the file differs; print the result for each table."""
    differs = False
    try:
        for check in check_device(conn, database, file, only):
            left_out = f"; {check.changed} rows changed since are left out" if check.changed else ""
            told = f"{len(check.differences)} rows DIFFER" if check.differences else "the rows are the server's"
            say(f"{check.table}: at {check.position} {told}{left_out}")
            for difference in check.differences[:MOST_SHOWN]:
                say(f"  {difference}")
            if len(check.differences) > MOST_SHOWN:
                say(f"  and {len(check.differences) - MOST_SHOWN} more rows")
            differs |= bool(check.differences)
    except NotComparableError as error:
        raise refuse("NOT_COMPARABLE", str(error)) from error
    except UndrainedError as error:
        raise refuse("UNDRAINED", str(error)) from error
    except ClientError as error:
        raise refuse("INVALID_FILE", str(error)) from error
    except sqlite3.Error as error:
        raise refuse("INVALID_FILE", f"{file}: {error}") from error
    return differs
