"""``anabranch bench``: measurements, each beside its baseline from the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from anabranch.bench import (
    capture,
    capture_drain,
    compact,
    drain,
    fanout,
    growth,
    ingest,
    latency,
    poison,
    pull,
    pull_parquet,
)
from anabranch.bench.report import Result, print_json, print_table

BENCHES: dict[str, Callable[[], Result]] = {
    "ingest": ingest.ingest,
    "ingest1": ingest.ingest1,
    "latency": latency.latency,
    "propagate": latency.propagate,
    "capture": capture_drain.capture,
    "capture_writer": capture.capture_writer,
    "pull": pull.pull,
    "bootstrap": pull.bootstrap,
    "pull_parquet": pull_parquet.pull_parquet,
    "fanout": fanout.fanout,
    "drain": drain.drain,
    "poison": poison.poison,
    "growth": growth.growth,
    "compact": compact.compact,
}

app = typer.Typer(add_completion=False)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(BENCHES)}; or all.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a bench.")] = False,
    table: Annotated[Path | None, typer.Option("--table", help="Also write the table into this file.")] = None,
) -> None:
    """Run a bench. Exit code 1 where a target is missed."""
    if name != "all" and name not in BENCHES:
        raise typer.BadParameter(f"{name} is none of {', '.join(BENCHES)}, all")
    results = [run() for key, run in BENCHES.items() if name in ("all", key)]
    if as_json:
        print_json(results)
    else:
        print_table(results)
    if table is not None:
        with table.open("w", encoding="utf-8") as file:
            print_table(results, Console(file=file, width=120))
    raise typer.Exit(0 if all(result.met for result in results) else 1)
