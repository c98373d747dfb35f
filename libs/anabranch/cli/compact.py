"""``anabranch compact``: one run of the Spark job on this machine, or on a Spark master."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from anabranch.cli.installation import DataDir, PostgresUrl, find_postgres
from anabranch.cli.lines import show
from anabranch.cli.printable import say, say_json
from anabranch.runtime.compactor_job import ROOT_VARIABLE, CompactorError, Event, run_job, show_job

LAKE = "lake"
"""The root in the folder of an `anabranch up`."""

app = typer.Typer(add_completion=False)


def find_root(root: str | None, data_dir: Path | None) -> str:
    """The lake's root: that of the option, else of the folder given, else of the environment.

    Raises:
        typer.BadParameter: there is none.
    """
    if root is not None:
        return root
    if data_dir is not None:
        return str(data_dir / LAKE)
    given = os.environ.get(ROOT_VARIABLE)
    if not given:
        raise typer.BadParameter(f"give --root or --data-dir, or set {ROOT_VARIABLE}")
    return given


@app.command()
def compact(
    db: Annotated[str | None, typer.Option("--db", help="The database. Left out: all.")] = None,
    root: Annotated[str | None, typer.Option("--root", help=f"Where the lake lies. Left out: {ROOT_VARIABLE}.")] = None,
    master: Annotated[str | None, typer.Option("--master", help="Spark's master. Left out: this machine.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a step, as the job prints them.")] = False,
    data_dir: DataDir = None,
    postgres_url: PostgresUrl = None,
) -> None:
    """Make Parquet of the log's changes since the last run; the new files are proven before anybody reads them."""
    events = run_job(find_postgres(postgres_url, data_dir), find_root(root, data_dir), database=db, master=master)
    try:
        if as_json:
            for event in events:
                say_json(event)
            return
        console = Console()
        for outcome in show_job(events, console):
            show(console, [Text(_line(outcome))])
    except CompactorError as error:
        for line in str(error).expandtabs().splitlines():
            say(line, err=True)
        raise typer.Exit(error.code) from error


def _line(outcome: Event) -> str:
    name = outcome["database"]
    if outcome["run_id"] is None:
        return f"{name}: nothing new since {outcome['from_position']}"
    text = (
        f"{name}: {outcome['changes']:,} changes up to {outcome['to_position']}, proven and published as "
        f"{outcome['run_id']}: {outcome['files']} files, {outcome['bytes'] / 1e6:,.1f} MB"
    )
    if outcome["without_base"]:
        text += f"; no base yet of {', '.join(outcome['without_base'])}"
    return text
