"""The summary that the demo prints at its end: its order, and the verdicts."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from anabranch.demo import backend, plan, summary_of_copies, summary_of_lake
from anabranch.demo.outcome import Outcome
from anabranch.demo.verdicts import Lost

SHOWN_LOSERS = 8
SHOWN_LETTERS = 16


def show(outcome: Outcome, console: Console) -> None:
    """Print everything that the story found."""
    console.rule("Summary")
    console.print(_tablets(outcome))
    console.print(_verdicts(outcome))
    console.print(_losers(outcome))
    console.print(_dead(outcome))
    console.print(summary_of_lake.history(outcome))
    console.print(summary_of_lake.files(outcome))
    console.print(summary_of_copies.sums(outcome))
    console.print(summary_of_copies.held(outcome))
    batches = sum(int(value["pending"]) for value in outcome.returns.values())
    seconds = sum(float(value["seconds"]) for value in outcome.returns.values())
    console.print(f"drained {batches:,} queued batches in {seconds:.2f} s: {batches / seconds:,.0f} batches/s")
    batches, changes = outcome.verdicts.captured
    console.print(
        f"{outcome.backend.rows:,} rows changed by the backend's SQL; {changes:,} changes in {batches:,} batches of the"
        ' node "server" in the log, cascades among them'
    )
    if not outcome.behind_the_release:
        table, column = backend.ADDED
        console.print(
            f"A release of the backend added the column {column} to {table} while the tablets were away: each has it in"
            " all its rows, and none has pulled them again"
        )
    summary_of_lake.show(outcome, console)
    if not outcome.from_parquet:
        console.print(f"[bold red]{plan.NEW_TABLET} did not get its rows from the Parquet files.[/]")
    for text in outcome.untold:
        console.print(f"[bold red]{text}[/]")
    if outcome.equal:
        console.print(
            "[bold green]All five tablets hold exactly the rows of Postgres that they may see.[/]"
            f" {outcome.seconds:.0f} s in all."
        )
    else:
        console.print("[bold red]A tablet holds other rows than those of Postgres that it may see.[/]")


def _tablets(outcome: Outcome) -> Table:
    table = Table(
        "tablet", "rows pulled", "rows/s", "batches offline", "local writes/s", "left in queue", title="Tablets"
    )
    for name in plan.TABLETS:
        pull, work = outcome.pulls[name], outcome.work[name]
        table.add_row(
            name,
            f"{pull['rows']:,}",
            f"{pull['rows'] / pull['seconds']:,.0f}",
            f"{work['batches']:,}",
            f"{work['batches'] / work['seconds']:,.0f}",
            str(outcome.reports[name]["queued"]),
        )
    return table


def _verdicts(outcome: Outcome) -> Table:
    found = outcome.verdicts
    heads = map(summary_of_copies.narrow, plan.TABLETS)
    table = Table("verdict", *heads, title="Batches by verdict and reason, mutations by outcome")
    rows = [("batches APPLIED", found.batches, "APPLIED")]
    rows += [(f"  mutations {name}", found.outcomes, name) for name in ("APPLIED", "MERGED", "OVERWROTE", "SUPERSEDED")]
    rows += [("batches REJECTED", found.batches, "REJECTED")]
    rows += [(f"  {reason}", found.reasons, reason) for reason in sorted({reason for _, reason in found.reasons})]
    for label, counter, name in rows:
        counts = [counter[tablet, name] for tablet in plan.TABLETS]
        if any(counts) or not label.startswith(" "):
            table.add_row(label, *(f"{count:,}" for count in counts))
    return table


def _losers(outcome: Outcome) -> Table:
    # Those between tablets come first: the backend has written many more.
    lost = sorted(outcome.verdicts.lost, key=_is_servers)
    title = f"{len(lost)} values lost a conflict, and are kept; {len(lost) - sum(map(_is_servers, lost))} among tablets"
    table = Table("row", "column", "value that lost", "from", "to", title=title)
    for entry in lost[:SHOWN_LOSERS]:
        table.add_row(
            entry.row,
            entry.column or "(the row)",
            str(entry.value),
            str(entry.losing_node),
            str(entry.winning_node),
        )
    if len(lost) > SHOWN_LOSERS:
        table.add_row(f"and {len(lost) - SHOWN_LOSERS} more")
    return table


def _is_servers(lost: Lost) -> bool:
    return "server" in (lost.losing_node, lost.winning_node)


def _dead(outcome: Outcome) -> Table:
    letters = [(name, letter) for name in plan.TABLETS for letter in outcome.reports[name]["dead"]]
    title = f"{len(letters)} dead letters, kept on their tablets"
    table = Table("tablet", "reason", "row", title=title)
    for name, (reason, constraint, row) in letters[:SHOWN_LETTERS]:
        table.add_row(name, f"{reason} {constraint}".strip(), row)
        if reason == "FORBIDDEN":
            table.caption = "FORBIDDEN: a tablet writes rows of its own airport alone"
    if len(letters) > SHOWN_LETTERS:
        table.add_row(f"and {len(letters) - SHOWN_LETTERS} more")
    return table
