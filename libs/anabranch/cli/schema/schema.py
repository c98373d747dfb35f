"""``anabranch schema``: the versions of a database's schema, and what a migration will mean before it runs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from anabranch.cli.catalog.session import catalog_session, refuse
from anabranch.cli.installation import DataDir, PostgresUrl
from anabranch.cli.lines import show
from anabranch.cli.printable import say_json
from anabranch.cli.schema.log_lines import log_lines, version_json
from anabranch.store.catalog.databases import load_databases
from anabranch.store.log.version_log import version_log
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


def the_database(conn: Session, db: str | None) -> str:
    """The name of the database that is meant; the only one where none is named."""
    if db is not None:
        return db
    names = list(load_databases(conn))
    if len(names) != 1:
        raise refuse("NAME_A_DATABASE", f"there are {len(names)} databases: give one with --db")
    return names[0]
