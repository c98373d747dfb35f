"""The summary that the demo prints at its end."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from anabranch.demo import plan
from anabranch.demo.story import Outcome

SHOWN_LOSERS = 8
SHOWN_LETTERS = 16
SHOWN_STEPS = 20


def show(outcome: Outcome, console: Console) -> None:
    """Print everything that the story found."""
    console.rule("Summary")
    console.print(_tablets(outcome))
    console.print(_verdicts(outcome))
    console.print(_losers(outcome))
    console.print(_dead(outcome))
    console.print(_history(outcome))
    console.print(_files(outcome))
    console.print(_equality(outcome))
    batches = sum(int(value["pending"]) for value in outcome.returns.values())
    seconds = sum(float(value["seconds"]) for value in outcome.returns.values())
    console.print(f"drained {batches:,} queued batches in {seconds:.2f} s: {batches / seconds:,.0f} batches/s")
    batches, changes = outcome.verdicts.captured
    console.print(
        f"{outcome.backend.rows:,} rows changed by the backend's SQL; {changes:,} changes in {batches:,} batches of the"
        ' node "server" in the log, cascades among them'
    )
    _after(outcome, console)
    if not outcome.from_parquet:
        console.print(f"[bold red]{plan.NEW_TABLET} did not get its rows from the Parquet files.[/]")
    if outcome.equal:
        console.print(f"[bold green]All four tablets and Postgres hold equal rows.[/] {outcome.seconds:.0f} s in all.")
    else:
        console.print("[bold red]The tablets and Postgres differ.[/]")


def _after(outcome: Outcome, console: Console) -> None:
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
    console.print(
        f"a new tablet: {new['rows'] / new['seconds']:,.0f} rows/s into its file from Parquet;"
        f" {first['rows'] / first['seconds']:,.0f} rows/s from Postgres in the morning"
    )


def _history(outcome: Outcome) -> Table:
    found = outcome.lake
    title = f"What happened to flight {found.flight}, from Parquet"
    table = Table("at (UTC)", "by", "change", "column", "before", "after", title=title)
    for step in found.history[:SHOWN_STEPS]:
        table.add_row(*map(escape, step))
    if len(found.history) > SHOWN_STEPS:
        table.add_row(f"and {len(found.history) - SHOWN_STEPS} more")
    return table


def _files(outcome: Outcome) -> Table:
    table = Table("Parquet", "rows", "MB", title="The lake")
    for part, (rows, size) in outcome.lake.parts.items():
        table.add_row(part, f"{rows:,}", f"{size / 1e6:,.2f}")
    return table


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
    table = Table("verdict", *plan.TABLETS, title="Batches by verdict and reason, mutations by outcome")
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
    lost = outcome.verdicts.lost
    title = f"{len(lost)} values lost a conflict, and are kept"
    table = Table("row", "column", "value that lost", "from", "to", title=title)
    for entry in lost[:SHOWN_LOSERS]:
        table.add_row(
            f"{entry.table} {entry.key}",
            entry.column or "(the row)",
            str(entry.value),
            str(entry.losing_node),
            str(entry.winning_node),
        )
    if len(lost) > SHOWN_LOSERS:
        table.add_row(f"and {len(lost) - SHOWN_LOSERS} more")
    return table


def _dead(outcome: Outcome) -> Table:
    letters = [(name, letter) for name in plan.TABLETS for letter in outcome.reports[name]["dead"]]
    table = Table("tablet", "reason", "table", "key", title=f"{len(letters)} dead letters, kept on their tablets")
    for name, (reason, where, key, constraint) in letters[:SHOWN_LETTERS]:
        table.add_row(name, f"{reason} {constraint}".strip(), where, ", ".join(map(str, key)))
    if len(letters) > SHOWN_LETTERS:
        table.add_row(f"and {len(letters) - SHOWN_LETTERS} more")
    return table


def _equality(outcome: Outcome) -> Table:
    names = list(outcome.reports)
    table = Table("table", "rows", "sum on the server", *names, title="Table sums")
    for name, (count, digest) in sorted(outcome.server_sums.items()):
        marks = ["=" if outcome.reports[t]["sums"].get(name) == (count, digest) else "DIFFERS" for t in names]
        table.add_row(name, f"{count:,}", digest.hex()[:12] + "…", *marks)
    rows = max(compared for compared, _ in outcome.compared.values())
    wrong = [f"{differing:,} differ" if differing else "=" for _, differing in (outcome.compared[t] for t in names)]
    table.add_row("compared in full", f"{rows:,}", "", *wrong)
    return table
