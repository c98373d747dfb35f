"""``anabranch compact``: one run of the Spark job on this machine, or on a Spark master."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from anabranch.cli.installation import POSTGRES_VARIABLE, DataDir, PostgresUrl, find_postgres

LAKE = "lake"
"""The root in the folder of an `anabranch up`."""
ROOT_VARIABLE = "ANABRANCH_LAKE_ROOT"

app = typer.Typer(add_completion=False)


def find_root(root: str | None, data_dir: Path | None) -> str:
    """The root: of the option, else of the folder given, else of the environment.

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
    """Make Parquet of what the log has since the last run; what was written is proven before anybody reads it."""
    environment = {
        **os.environ,
        POSTGRES_VARIABLE: find_postgres(postgres_url, data_dir),
        ROOT_VARIABLE: find_root(root, data_dir),
    }
    if db is not None:
        environment["ANABRANCH_COMPACT_DATABASE"] = db
    if master is not None:
        environment["ANABRANCH_SPARK_MASTER"] = master
    arguments = [sys.executable, "-m", "anabranch_compactor"]
    # Spark's own words at its start are nobody's; what goes wrong is printed last.
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as job,
    ):
        _follow(job, as_json=as_json)
        code = job.wait()
        errors.seek(0)
        said = errors.read()
    if code:
        own = [line for line in said.splitlines() if line.startswith("anabranch: ")]
        typer.echo("\n".join(own) or said, err=True)
        raise typer.Exit(code)


def _follow(job: subprocess.Popen[str], *, as_json: bool) -> None:
    assert job.stdout is not None
    if as_json:
        for line in job.stdout:
            typer.echo(line.rstrip("\n"))
        return
    console = Console()
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]}"), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("starting Spark", total=None, tasks="")
        for line in job.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["step"] == "started":
                progress.update(bar, description="planning")
            elif event["step"] == "planned":
                text = f"{event['database']}: {event['changes']:,} changes"
                progress.update(bar, description=text, total=max(1, event["tables"]), completed=0)
            elif event["step"] == "tasks":
                progress.update(bar, tasks=f"Spark tasks {event['done']}/{event['tasks']}")
            elif event["step"] == "table":
                progress.advance(bar)
            else:
                console.print(_line(event), highlight=False)


def _line(outcome: dict[str, Any]) -> str:
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
