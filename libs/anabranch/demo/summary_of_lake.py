"""The summary of the demo's second half: one flight's history, the Parquet files, and the log that is cut."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anabranch.demo import plan
from anabranch.demo.outcome import Outcome

SHOWN_STEPS = 20


def show(outcome: Outcome, console: Console) -> None:
    """Print the results in sentences."""
    found = outcome.lake
    console.print(
        f"{found.changes:,} changes compacted in {found.seconds:.1f} s, proven and published; the log has"
        f" {found.log_rows:,} rows, {found.log_bytes / 1e6:,.2f} MB of effects"
    )
    removed = ", ".join(f"{rows:,} {what}" for what, rows in sorted(found.removed.items())) or "nothing"
    console.print(
        f"swept in {found.sweep_seconds:.1f} s: the floor is where the Parquet ends, gone are {removed}; rows of the"
        " log go with their partition when its day is over"
    )
    new, first = outcome.pulls[plan.NEW_TABLET], outcome.pulls[next(iter(plan.TABLETS))]
    source = "Parquet" if outcome.from_parquet else "Postgres"
    console.print(
        f"a new tablet: {new['rows'] / new['seconds']:,.0f} rows/s into its file from {source};"
        f" {first['rows'] / first['seconds']:,.0f} rows/s from Postgres in the morning"
    )


def history(outcome: Outcome) -> Table:
    """Every change of one flight."""
    found = outcome.lake
    title = f"What happened to flight {found.flight}, from Parquet"
    table = Table("at (UTC)", "by", "change", "column", "before", "after", title=title)
    for step in found.history[:SHOWN_STEPS]:
        table.add_row(*map(escape, step))
    if len(found.history) > SHOWN_STEPS:
        table.add_row(f"and {len(found.history) - SHOWN_STEPS} more")
    return table


def files(outcome: Outcome) -> Table:
    """The Parquet files, by what is in them."""
    table = Table("Parquet", "rows", "MB", title="The lake")
    for part, (rows, size) in outcome.lake.parts.items():
        table.add_row(part, f"{rows:,}", f"{size / 1e6:,.2f}")
    return table
