"""The summary's proof that each tablet holds the rows of Postgres that it may see, and no others."""

from __future__ import annotations

from rich.table import Table

from anabranch.demo import plan
from anabranch.demo.airports import RESTRICTED, audience_of
from anabranch.demo.outcome import Outcome


def narrow(tablet: str) -> str:
    """A tablet's name over a narrow column."""
    return tablet.replace("-", "-\n", 1)


def sums(outcome: Outcome) -> Table:
    """The server's sum of each open table, and of each airport's rows of the others, beside those of the tablets."""
    title = "Sums of the server's tables, and whether the tablets have them"
    heads = ("table", "rows", "sum", *map(narrow, plan.AIRPORTS))
    table = Table(*heads, title=title, caption="blank: rows that the tablet may not see")
    for name, audience in sorted(outcome.server_sums):
        if audience or name not in RESTRICTED:
            count, digest = outcome.server_sums[name, audience]
            rows = f"{name}, {audience.removeprefix('airport:')}" if audience else name
            marks = [_mark(outcome, tablet, name, audience) for tablet in plan.AIRPORTS]
            table.add_row(rows, f"{count:,}", digest.hex()[:7] + "…", *marks)
    return table


def _mark(outcome: Outcome, tablet: str, name: str, audience: str) -> str:
    found = outcome.sums[tablet].get((name, audience))
    if audience not in ("", audience_of(tablet)):
        return "" if found is None else "HELD"
    return "=" if found == outcome.server_sums[name, audience] else "≠"


def held(outcome: Outcome) -> Table:
    """The rows that each tablet holds of the server's, and the results of the comparison with Postgres."""
    title = "Each tablet's rows, compared with those of Postgres that it may see"
    heads = [f"{name}\nof {outcome.server_sums[name, ''][0]:,}" for name in RESTRICTED]
    table = Table("tablet", "airport", *heads, "rows\ncompared", "differ", "equal", title=title)
    for tablet, airport in plan.AIRPORTS.items():
        compared, differing = outcome.compared[tablet]
        shares = [f"{outcome.sums[tablet][name, ''][0]:,}" for name in RESTRICTED]
        equal = "yes" if outcome.agrees(tablet) else "NO"
        table.add_row(tablet, airport, *shares, f"{compared:,}", f"{differing:,}", equal)
    return table
