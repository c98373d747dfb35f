"""``anabranch scenario``: stories in YAML, run against real services."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from anabranch.scenario.run import Result, as_report, run_all
from anabranch.testkit.own_folder import own_folder

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def scenario() -> None:
    """Stories about a server and some nodes, and what must be true at their end."""


@app.command()
def run(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="Files, or folders of them.")],
    report: Annotated[Path | None, typer.Option("--report", help="Where to write the results as JSON.")] = None,
    node: Annotated[
        Path | None,
        typer.Option("--node", exists=True, dir_okay=False, help="A program to be the nodes: a client of your own."),
    ] = None,
) -> None:
    """Run scenario files. Exit code 1 where any falls short."""
    began = time.monotonic()

    def say(result: Result, took_s: float) -> None:
        typer.echo(f"{'ok   ' if result.ok else 'SHORT'} {result.file}: {result.name} ({took_s:.1f} s)")
        if not result.ok:
            typer.echo(f"      {result.detail}")

    with own_folder("scenario") as folder:
        try:
            results = run_all(paths, folder, say, node)
        except FileNotFoundError as error:
            raise typer.BadParameter(str(error), param_hint="PATH") from None
    if report is not None:
        report.write_text(json.dumps(as_report(results), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    short = sum(not result.ok for result in results)
    typer.echo(f"{len(results) - short} of {len(results)} hold, in {time.monotonic() - began:.0f} s")
    raise typer.Exit(1 if short else 0)
