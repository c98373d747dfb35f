"""``anabranch table``: which tables are synced."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from anabranch.cli.catalog import audience as audiences
from anabranch.cli.catalog import policy as policies
from anabranch.cli.catalog.remedies import in_one_line
from anabranch.cli.catalog.session import REFUSED, PolicyOption, catalog_session, read_policy
from anabranch.cli.catalog.table_lines import tables_lines
from anabranch.cli.installation import DataDir, PostgresUrl
from anabranch.cli.lines import show
from anabranch.cli.printable import say
from anabranch.clock import clock_from_environment
from anabranch.store.catalog.databases import load_database
from anabranch.store.catalog.gather import add_tables, restart_captures
from anabranch.store.catalog.judging import refusals, unsynced_tables
from anabranch.store.catalog.out_of_sync import capture_off
from anabranch.store.catalog.registration import remove_table
from anabranch.store.catalog.unsynced import look

app = typer.Typer(no_args_is_help=True, help="Register tables for sync, and list them.")
DatabaseName = Annotated[str, typer.Argument(help="The database's name.", show_default=False)]

app.command("policy")(policies.table)
app.command("audience")(audiences.table)


class Switch(StrEnum):
    """The new state of a table's capture."""

    ON = "on"
    OFF = "off"


@app.command()
def add(
    database: DatabaseName,
    tables: Annotated[
        list[str] | None, typer.Argument(help="Names of tables in its schema.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All tables of its schema that are not synced yet.")] = False,
    skip_refused: Annotated[
        bool, typer.Option("--skip-refused", help="Add those that can be synced, and tell why the others can't.")
    ] = False,
    every_device_sees_every_row: Annotated[
        bool,
        typer.Option(
            "--every-device-sees-every-row",
            help="Also tables whose row-level security shows people only some rows: devices get all of them.",
        ),
    ] = False,
    audience: Annotated[
        str | None,
        typer.Option(
            "--audience",
            help="SQL over the row's columns that says who sees it, as in \"'team:' || team_id\"; for one table.",
            show_default=False,
        ),
    ] = None,
    policy: PolicyOption = None,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Sync tables from now on: all that are named, or none. Their rows are read once, while everybody goes on
    writing. For each table that can't be synced, the reason and the remedy are printed."""
    given = read_policy(policy)
    if every_device_sees_every_row:
        given["every_device_sees_every_row"] = True
    if bool(tables) == every:
        raise typer.BadParameter("name tables, or give --all")
    if audience is not None and (every or len(tables or ()) != 1):
        raise typer.BadParameter("--audience is for one table")
    with catalog_session(postgres_url, data_dir, "table") as conn:
        names = unsynced_tables(conn, database) if every else list(dict.fromkeys(tables or ()))
        refused = refusals(conn, database, names, given, audience)
        schema = load_database(conn, database).schema_name
        names = [name for name in names if name not in {one.about for one in refused}]
        told = [in_one_line(one, schema) for one in refused]
        if refused and names and not skip_refused:
            others = "other one" if len(names) == 1 else f"other {len(names)}"
            told[-1] += f"; nothing was added: --skip-refused adds the {others}"
        for line in told:
            say(f"anabranch: {line}", err=True)
        if refused and not (skip_refused and names):
            raise typer.Exit(REFUSED)
        if not names:
            say(f'every table of schema "{schema}" is synced already')
            return
        now_ms = clock_from_environment().now_ms()
        added = add_tables(conn, database, names, given, audience=audience, now_ms=now_ms)
    for table in added:
        say(f'table "{table.table.sql_name}" is synced: {table.rows} rows')
        for warning in table.warnings:
            say(f"warning: {warning}", err=True)


@app.command()
def remove(
    database: DatabaseName,
    tables: Annotated[list[str], typer.Argument(help="Names of synced tables.", show_default=False)],
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Sync tables no longer: all that are named, or none. The tables themselves stay as they are."""
    with catalog_session(postgres_url, data_dir, "table") as conn, conn.transaction():
        before = load_database(conn, database)
        for name in tables:
            remove_table(conn, database, name)
    for name in tables:
        say(f'table "{name}" is no longer synced')
        table = before.by_sql_name.get(name)
        if table is not None and any(table.name in one.tables for one in before.audience_rules.memberships):
            text = "a membership query reads it: whose audiences it changes is not noticed until it is added again"
            say(f'warning: table "{name}": {text}', err=True)


@app.command("capture")
def capture_(
    switch: Annotated[Switch, typer.Argument(help="on or off.", show_default=False)],
    database: DatabaseName,
    tables: Annotated[list[str], typer.Argument(help="Names of synced tables.", show_default=False)],
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Turn the capture of direct writes off before a restore or a load of many rows, and on again after it. "on"
    registers the tables anew with their policies: their rows are read once, while everybody goes on writing, and
    devices compare with the new sum."""
    with catalog_session(postgres_url, data_dir, "table") as conn:
        if switch is Switch.ON:
            for added in restart_captures(conn, database, tables, now_ms=clock_from_environment().now_ms()):
                say(f'direct writes to table "{added.table.sql_name}" are captured: {added.rows} rows')
            return
        with conn.transaction():
            for name in tables:
                capture_off(conn, database, name)
            found = load_database(conn, database)
    for name in tables:
        called = name if (table := found.find(name)) is None else table.sql_name
        say(f'direct writes to table "{called}" are not captured until capture is turned on')


@app.command("list")
def list_(database: DatabaseName, data_dir: DataDir = None, postgres_url: PostgresUrl = None) -> None:
    """Show the columns of a database's synced tables, and in red which of these are not synced, and why."""
    with catalog_session(postgres_url, data_dir, "table") as conn:
        found = load_database(conn, database)
        tables = look(conn, found)
    console = Console()
    show(console, tables_lines(found, tables, console.width))
