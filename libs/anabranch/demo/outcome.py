"""The demo's results, and whether they are as they have to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anabranch.demo import backend, lake, plan, verdicts
from anabranch.demo.airports import audience_of
from anabranch.demo.sums import Sums, visible


@dataclass
class Outcome:
    """The demo's results, for the summary and for tests. Times are in seconds. ``closing``: rows that the backend
    changed last, by airport. ``compared``: for each tablet the rows that were compared with Postgres, and those of them
    that differ. ``sums``: those of each tablet."""

    rows: dict[str, int] = field(default_factory=dict)
    pulls: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    work: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    returns: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    reports: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    backend: backend.Done = field(default_factory=lambda: backend.Done(0, 0, 0.0))
    verdicts: verdicts.Verdicts = field(default_factory=verdicts.Verdicts)
    lake: lake.Lake = field(default_factory=lake.Lake)
    closing: Counter[str] = field(default_factory=Counter)
    compared: dict[str, tuple[int, int]] = field(default_factory=dict)
    sums: dict[str, Sums] = field(default_factory=dict)
    server_sums: Sums = field(default_factory=dict)
    seconds: float = 0.0

    def agrees(self, tablet: str) -> bool:
        """Whether a tablet holds exactly the server's rows that it may see: by the sums, by the comparison, and by what
        it says itself."""
        compared, differing = self.compared.get(tablet, (0, 0))
        sums = self.sums.get(tablet) == visible(self.server_sums, audience_of(tablet))
        report = self.reports[tablet]
        return sums and compared > 0 and not differing and not report["disagreeing"] and not report["queued"]

    @property
    def equal(self) -> bool:
        """Whether every tablet holds exactly the server's rows that it may see."""
        return self.reports.keys() == plan.AIRPORTS.keys() and all(map(self.agrees, plan.AIRPORTS))

    @property
    def from_parquet(self) -> bool:
        """Whether the new tablet's rows were those of the Parquet files, and not those of the tables."""
        pulled = self.pulls.get(plan.NEW_TABLET)
        return pulled is not None and pulled["cursor"] == self.lake.position > 0 and bool(self.closing.total())

    @property
    def untold(self) -> list[str]:
        """The sentences of the story that are not true, if any."""
        found = []
        if self.lake.floor != self.lake.position:
            found.append(f"the log's floor is at {self.lake.floor}, and the Parquet ends at {self.lake.position}")
        refused = self.verdicts.reasons[plan.STRAYING, "FORBIDDEN"]
        if refused != 1:
            found.append(
                f"{refused} batches for another airport's rows were refused, and not the one of {plan.STRAYING}"
            )
        return [*found, *self.behind_the_release]

    @property
    def behind_the_release(self) -> list[str]:
        """The tablets that have not got the column of the release as they should, and how, if any."""
        return [f"{name} {what}" for name in plan.TABLETS if (what := self._lacks_column(name))]

    def _lacks_column(self, tablet: str) -> str:
        """The way in which a tablet has not got the column of the release as it should; "" where it has."""
        table, column = backend.ADDED
        report = self.reports[tablet]
        if column not in report["columns"].get(table, ()):
            return f"has no column {column} in {table}"
        return "" if report["pulls"] == 1 else f"has pulled {report['pulls']} times, to get the column {column}"
