"""The result of a bench: one figure beside its baseline from the same run, and whether the target is met."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import psutil
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Result:
    """``ratio`` is ``value / baseline``. ``direction`` says which side of ``target`` it has to be on; ``conditions``
    maps the text of each further target to whether it is met."""

    bench: str
    value: float
    baseline: float
    unit: str
    target: float
    direction: Literal["at least", "at most"]
    conditions: Mapping[str, bool] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float:
        """The figure divided by its baseline."""
        return self.value / self.baseline

    @property
    def met(self) -> bool:
        """Whether the ratio is on the right side of the target and every further condition holds."""
        within = self.ratio >= self.target if self.direction == "at least" else self.ratio <= self.target
        return within and all(self.conditions.values())

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        return {
            "bench": self.bench,
            "value": round(self.value, 4),
            "baseline": round(self.baseline, 4),
            "ratio": round(self.ratio, 4),
            "unit": self.unit,
            "target": self.target,
            "met": self.met,
            "details": {
                **self.details,
                "direction": self.direction,
                "conditions": dict(self.conditions),
                "machine": machine(),
                "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            },
        }


def machine() -> str:
    """The machine in a few words: a figure means little without it."""
    memory_gib = round(psutil.virtual_memory().total / 2**30)
    return f"{platform.machine()}, {os.cpu_count()} cores, {memory_gib} GiB, Python {platform.python_version()}"


def print_json(results: Sequence[Result]) -> None:
    """Print one line of JSON for each result."""
    for result in results:
        print(json.dumps(result.as_json()))


def print_table(results: Sequence[Result], console: Console | None = None) -> None:
    """Print all results as a table."""
    table = Table("bench", "value", "baseline", "ratio", "target", "met", title=machine())
    for result in results:
        sign = "≥" if result.direction == "at least" else "≤"
        table.add_row(
            result.bench,
            f"{result.value:,.4g} {result.unit}" if result.value < 100 else f"{result.value:,.0f} {result.unit}",
            f"{result.baseline:,.4g}" if result.baseline < 100 else f"{result.baseline:,.0f}",
            f"{result.ratio:.3f}",
            f"{sign} {result.target:g}",
            "yes" if result.met else "no",
        )
        for text, holds in result.conditions.items():
            table.add_row("", "", "", "", text, "yes" if holds else "no", style="dim")
    (console or Console()).print(table)


def percentile(values: Sequence[float], part: float) -> float:
    """The value below which ``part`` (0 to 1) of ``values`` lie; ``values`` need not be sorted. Raises ValueError where
    there are none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]
