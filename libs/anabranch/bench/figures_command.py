"""``anabranch figures``: the table of figures, made of the JSON of several runs of benches."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from anabranch.bench.figures import FiguresError, put_into, read_runs, table

app = typer.Typer(add_completion=False)


@app.command()
def figures(
    runs: Annotated[list[Path], typer.Argument(help="What `anabranch bench NAME --json` printed, a file a run.")],
    into: Annotated[
        Path | None, typer.Option("--into", help="Put the table between its two marks in this document.")
    ] = None,
) -> None:
    """Print the table: each figure's median and spread beside its baseline, with machine and day."""
    try:
        made = table(read_runs(runs))
        if into is None:
            print(made)
        else:
            into.write_text(put_into(into.read_text(encoding="utf-8"), made), encoding="utf-8")
    except (FiguresError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
