"""``anabranch schema``: the versions of a database's schema, and what a migration will mean before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.cli.catalog.session import catalog_session, refuse
from anabranch.cli.installation import DataDir, PostgresUrl, find_postgres
from anabranch.cli.lines import show
from anabranch.cli.printable import say_json
from anabranch.cli.schema.log_lines import log_lines, version_json
from anabranch.cli.schema.plan import make_plan
from anabranch.cli.schema.plan_lines import plan_json, plan_lines
from anabranch.embedded.binaries import PostgresUnavailableError
from anabranch.store.catalog.databases import load_databases
from anabranch.store.log.version_log import version_log
from anabranch.store.plan.scratch import MigrationPlanError
from anabranch.store.plan.script import ScriptError
from anabranch.store.plan.structure import StructureError
from anabranch.store.session.engine import Session

app = typer.Typer(no_args_is_help=True, help="Show how a schema has changed, and what a migration will mean.")
DbOption = Annotated[str | None, typer.Option("--db", help="The database. Left out: the only one.", show_default=False)]


@app.callback()
def schema() -> None:
    """Show how a schema has changed, and what a migration will mean."""


@app.command("log")
def log(
    db: DbOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Show each version of a database's schema, the newest first: when and by whom it was made, what changed, how many
    nodes have read up to it and no further, how many are before it, and how many have an app that was built for it.

    An app that names no version follows today's, and is counted with none."""
    with catalog_session(postgres_url, data_dir, "schema") as conn:
        found = version_log(conn, the_database(conn, db))
    if as_json:
        for one in found.versions:
            say_json(version_json(one))
        return
    console = Console()
    show(console, log_lines(found, console.width))


@app.command("plan")
def plan(
    file: Annotated[Path, typer.Argument(help="The migration, a file of SQL.", exists=True, dir_okay=False)],
    db: DbOption = None,
    search_path: Annotated[
        str | None,
        typer.Option("--search-path", help="Where names are looked up. Left out: as by your role's sessions."),
    ] = None,
    scratch_url: Annotated[
        str | None,
        typer.Option("--scratch-url", help="A superuser's server to run it on. Left out: one is started here for it."),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit code 1 where a table is pulled, stops or goes, or batches are refused."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Say what a migration will mean for devices, before it runs: nothing of it runs in your database.

    The database's structure is copied, without rows, into a Postgres that is started for it in a temporary folder (by
    the package anabranch-server[embedded]), or into a database of its own on the server --scratch-url. There the
    migration runs, statement by statement, so that it may begin and commit and make indices concurrently; and there the
    services' own code notices and understands it. Of your database the structure, registrations and batches that wait
    are read, which locks no more than a SELECT does, for a second or so. --scratch-url is for schemas that need
    extensions, or another release of Postgres.

    Each table has its costs. free: a few bytes in the log. recounts: its rows are read once. sends: values of some
    columns go to every device. new, gone: the table comes to devices, or leaves them. pull: every device pulls it anew.
    stops: it can't be synced as it then is. Rows that the migration itself writes follow one by one; how many these are
    is not known without rows.
    """
    with catalog_session(postgres_url, data_dir, "plan") as conn:
        url = find_postgres(postgres_url, data_dir)
        try:
            made = make_plan(
                conn, url, the_database(conn, db), file.read_text(encoding="utf-8"), search_path, scratch_url
            )
        except ScriptError as error:
            raise refuse("SCRIPT", f"{file}: {error}") from error
        except MigrationPlanError as error:
            raise refuse("MIGRATION_FAILS", str(error)) from error
        except (StructureError, PostgresUnavailableError) as error:
            raise refuse("NO_COPY", str(error)) from error
    if as_json:
        say_json(plan_json(made), indent=2)
    else:
        console = Console()
        show(console, plan_lines(made, console.width))
    if strict and made.is_hard:
        raise typer.Exit(1)


def the_database(conn: Session, db: str | None) -> str:
    """The name of the database that is meant; the only one where none is named."""
    if db is not None:
        return db
    names = list(load_databases(conn))
    if len(names) != 1:
        raise refuse("NAME_A_DATABASE", f"there are {len(names)} databases: give one with --db")
    return names[0]
