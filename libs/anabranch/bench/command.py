"""``anabranch bench``: measurements, each beside its baseline from the same run, and of two checkouts in turns."""

from __future__ import annotations

import json
from inspect import signature
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.bench.benches import BENCHES
from anabranch.bench.compare import CompareError, checkout_of, compare, print_figures, runner
from anabranch.bench.report import print_json, print_table

app = typer.Typer(add_completion=False)
COMPARE = "compare"


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHES)}; or all; or {COMPARE}, before A and B.")],
    checkouts: Annotated[
        list[Path] | None, typer.Argument(metavar="[A B]", help="Folders of the two checkouts to compare.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a bench, or a compared figure.")] = False,
    rows: Annotated[
        int | None, typer.Option("--rows", min=1, help="Rows of the table, of a bench that has one.")
    ] = None,
    table: Annotated[Path | None, typer.Option("--table", help="Also write the table into this file.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--bench", help="A bench to compare; again for more. All by default.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often each of the two runs.")] = 3,
) -> None:
    """Run a bench. Exit code 1 where a target is missed.

    `compare A B` runs benches of two checkouts in turns and prints the ratio of their medians, processor time and
    counts included.
    """
    if name == COMPARE:
        _compare(checkouts or [], only or list(BENCHES), rounds, rows, as_json, table)
        return
    if checkouts or only:
        raise typer.BadParameter(f"{name} takes neither checkouts nor --bench: only {COMPARE} does")
    if name != "all" and name not in BENCHES:
        raise typer.BadParameter(f"{name} is none of {', '.join(BENCHES)}, all, {COMPARE}")
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


def _compare(
    checkouts: list[Path], benches: list[str], rounds: int, rows: int | None, as_json: bool, table: Path | None
) -> None:
    if len(checkouts) != 2:
        raise typer.BadParameter(f"{COMPARE} takes two checkouts, A and B")
    console = Console(stderr=True)
    try:
        a, b = map(checkout_of, checkouts)
        run = runner([] if rows is None else ["--rows", str(rows)])
        figures = compare(a, b, benches, rounds, run, lambda text: console.print(text, style="dim"))
    except CompareError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        for figure in figures:
            print(json.dumps(figure.as_json()))
    else:
        print_figures(figures, a, b)
    if table is not None:
        with table.open("w", encoding="utf-8") as file:
            print_figures(figures, a, b, Console(file=file, width=160))
