"""``anabranch bench``: measurements, each beside its baseline from the same run."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.bench.benches import BENCHES
from anabranch.bench.report import print_json, print_table

app = typer.Typer(add_completion=False)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHES)}; or all.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a bench.")] = False,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="Rows of the table, of a bench that has one.")
    ] = None,
    table: Annotated[Path | None, typer.Option("--table", help="Also write the table into this file.")] = None,
) -> None:
    """Run a bench. Exit code 1 where a target is missed."""
    if name != "all" and name not in BENCHES:
        raise typer.BadParameter(f"{name} is none of {', '.join(BENCHES)}, all")
    sized = {} if rows is None else {"rows": rows}
    if rows is not None and (name == "all" or "rows" not in signature(BENCHES[name].run).parameters):
        raise typer.BadParameter(f"{name} has no number of rows to choose", param_hint="--rows")
    results = []
    for key, one in BENCHES.items():
        if name in ("all", key):
            results.append(one.run(**sized))
            if as_json:
                # Printed at once, so that this result is kept if the next bench fails.
                print_json(results[-1:])
    if not as_json:
        print_table(results)
    if table is not None:
        with table.open("w", encoding="utf-8") as file:
            print_table(results, Console(file=file, width=120))
    raise typer.Exit(0 if all(result.met for result in results) else 1)
