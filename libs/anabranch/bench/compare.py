"""Two checkouts side by side: their benches are run in turns, so that a busy machine meets both alike.

Each run is a process of its own, of this Python and its packages, that imports the checkout's ``libs`` and
``services``. The order changes from round to round (A B, B A, A B): whatever grows with time falls on both. A figure is
the median of its rounds; processor time and counts stand beside it, as they say more than wall time where others use
the machine, too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from rich.console import Console
from rich.table import Table

from anabranch.errors import AnabranchError

Found: TypeAlias = Mapping[str, Any]
"""One object that ``--json`` prints."""
Run: TypeAlias = Callable[[Path, str], Found]
"""Runs a bench, by its name, of a checkout."""
MEANT = ("cpu_us", "statements", "round_trips", "fsyncs", "switches", "messages_a", "bytes_a", "pages")
"""Parts of the names of details that are processor time or counts."""
_ROOMS = ("libs", "services")
# Packages that are installed in place of the checkout's would be measured twice, and seem to be the same.
_MAIN = """
import sys
from pathlib import Path
from anabranch.cli import entry
if Path(sys.argv.pop(1)) not in Path(entry.__file__).parents:
    sys.exit(f"{entry.__file__} is no module of the checkout")
sys.argv[0] = "anabranch"
sys.exit(entry.main())
"""
_LAST_CHARACTERS = 2_000


class CompareError(AnabranchError, ValueError):
    """A folder is no checkout, or a run gave no result; the message says which."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a bench in both checkouts, one value a round. ``ratio`` is B's median by A's; None where that is
    0."""

    bench: str
    name: str
    a: tuple[float, ...]
    b: tuple[float, ...]

    @property
    def ratio(self) -> float | None:
        """B by A."""
        return median(self.b) / median(self.a) if median(self.a) else None

    def as_json(self) -> dict[str, Any]:
        """The object that ``--json`` prints."""
        ratio = self.ratio
        return {
            "bench": self.bench,
            "figure": self.name,
            "a": list(self.a),
            "b": list(self.b),
            "median_a": median(self.a),
            "median_b": median(self.b),
            "ratio": None if ratio is None else round(ratio, 4),
        }


def runner(more: Sequence[str] = ()) -> Run:
    """Runs benches as ``anabranch bench NAME --json`` does, with ``more`` arguments."""

    def run(checkout: Path, bench: str) -> Found:
        rooms = os.pathsep.join(str(checkout / room) for room in _ROOMS)
        done = subprocess.run(
            [sys.executable, "-c", _MAIN, str(checkout), "bench", bench, "--json", *more],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": rooms},
            capture_output=True,
            text=True,
            check=False,
        )
        # A target that is missed gives exit code 1, too.
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        try:
            [found] = map(json.loads, lines)
            return {**found, "value": float(found["value"]), "baseline": float(found["baseline"])}
        except (ValueError, KeyError, TypeError):
            said = done.stderr[-_LAST_CHARACTERS:]
            raise CompareError(f"{bench} of {checkout} gave no result (exit code {done.returncode}):\n{said}") from None

    return run


def checkout_of(folder: Path) -> Path:
    """The folder as a checkout. Raises CompareError where it is none."""
    found = folder.resolve()
    if not (found / "libs" / "anabranch" / "bench").is_dir():
        raise CompareError(f"{folder} is no checkout: it has no libs/anabranch/bench")
    return found


def compare(
    a: Path, b: Path, benches: Sequence[str], rounds: int, run: Run, say: Callable[[str], None] = lambda text: None
) -> list[Figure]:
    """The figures of ``benches``, each run ``rounds`` times of either checkout, or in as many rounds as were complete
    when the user interrupted. ``say`` is told of every run before it begins. Those that only one checkout has are left
    out.

    Raises:
        CompareError: a run gave no result.
        KeyboardInterrupt: no round was complete.
    """
    values: dict[tuple[str, str], dict[Path, list[float]]] = defaultdict(lambda: defaultdict(list))
    complete = 0
    try:
        for number in range(rounds):
            turn = (a, b) if number % 2 == 0 else (b, a)
            for bench in benches:
                for checkout in turn:
                    say(f"round {number + 1} of {rounds}: {bench} of {checkout}")
                    for name, value in _figures(run(checkout, bench)):
                        values[bench, name][checkout].append(value)
            complete = number + 1
    except KeyboardInterrupt:
        if not complete:
            raise
        say(f"interrupted: these are the figures of {complete} of {rounds} rounds")
    return [
        Figure(bench, name, tuple(of[a][:complete]), tuple(of[b][:complete]))
        for (bench, name), of in values.items()
        if min(len(of[a]), len(of[b])) >= complete
    ]


def _figures(found: Found) -> Iterator[tuple[str, float]]:
    yield "value", found["value"]
    yield "baseline", found["baseline"]
    if found["baseline"]:
        yield "ratio", found["value"] / found["baseline"]
    yield from _meant(found.get("details", {}), "", False)


def _meant(details: Mapping[str, Any], prefix: str, within: bool) -> Iterator[tuple[str, float]]:
    """Numbers among the details that are processor time or counts, by dotted names."""
    for name, value in details.items():
        meant = within or any(part in name for part in MEANT)
        if isinstance(value, Mapping):
            yield from _meant(value, f"{prefix}{name}.", meant)
        elif meant and isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)


def print_figures(figures: Sequence[Figure], a: Path, b: Path, console: Console | None = None) -> None:
    """Print all as a table."""
    table = Table("bench", "figure", "A", "B", "B / A", title=f"A: {a}\nB: {b}")
    before = ""
    for figure in figures:
        ratio = figure.ratio
        table.add_row(
            figure.bench if figure.bench != before else "",
            figure.name,
            _spread(figure.a),
            _spread(figure.b),
            "-" if ratio is None else f"{ratio:.3f}",
        )
        before = figure.bench
    (console or Console()).print(table)


def _spread(values: Sequence[float]) -> str:
    middle = f"{median(values):,.4g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):,.4g} to {max(values):,.4g})"
