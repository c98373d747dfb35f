"""``anabranch demo``: the main job on real data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.demo import story, summary

app = typer.Typer(add_completion=False)


@app.command()
def demo(
    seed: Annotated[int, typer.Option("--seed", help="What the tablets do follows from it.")] = 2013,
    keep: Annotated[
        Path | None,
        typer.Option("--keep", help="An empty folder for all files, which stay. Left out: a temporary one."),
    ] = None,
) -> None:
    """Four gate tablets, each with its own airport's flights, work offline through a real day's departures and come
    back; the log becomes Parquet and is cut, and a fifth tablet starts from the Parquet. Exit code 1 where one ends up
    with other rows than those that it may see on the server, or where something else is not as told."""
    console = Console()
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise typer.BadParameter(f"{keep} is not empty", param_hint="--keep")
        outcome = story.tell(keep, seed, console)
    else:
        with tempfile.TemporaryDirectory(prefix="anabranch-demo-") as folder:
            outcome = story.tell(Path(folder), seed, console)
    summary.show(outcome, console)
    raise typer.Exit(0 if outcome.equal and outcome.from_parquet and not outcome.untold else 1)
