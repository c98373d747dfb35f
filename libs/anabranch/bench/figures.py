"""The table of figures, made from the output of several runs of ``anabranch bench … --json``.

Each figure is the median of its runs, with the least and the greatest beside it: a figure without its spread says
little on a machine that others use, too.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from anabranch.bench.benches import BENCHES
from anabranch.errors import AnabranchError

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
Found = Mapping[str, Any]
"""One object that ``--json`` prints."""


class FiguresError(AnabranchError, ValueError):
    """The runs, or the document that is to take their table, are not as they have to be; the message says how."""


def read_runs(files: Iterable[Path]) -> list[Found]:
    """All results of ``files``, one object a line.

    Raises:
        FiguresError: a line is no result of a bench that is known.
        OSError: a file can't be read.
    """
    found: list[Found] = []
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                one = json.loads(line)
                known = one["bench"] in BENCHES and {"value", "baseline", "ratio", "unit", "target", "met"} <= set(one)
            except (ValueError, TypeError, KeyError):
                known = False
            if not known:
                raise FiguresError(f"{file}, line {number} is no result that anabranch bench --json printed")
            found.append(one)
    if not found:
        raise FiguresError("there is no result in these files")
    return found


def _number(value: float) -> str:
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _spread(values: Sequence[float]) -> str:
    middle = _number(median(values))
    return middle if len(values) == 1 else f"{middle} ({_number(min(values))} to {_number(max(values))})"


def _row(name: str, runs: Sequence[Found]) -> str:
    bench = BENCHES[name]
    sign = "≥" if runs[0]["details"]["direction"] == "at least" else "≤"
    targets = [f"{sign} {runs[0]['target']:g}", *_conditions(runs)]
    met = sum(bool(run["met"]) for run in runs)
    cells = [
        name,
        bench.work,
        f"{_spread([run['value'] for run in runs])} {runs[0]['unit']}",
        f"{_number(median(run['baseline'] for run in runs))}, {bench.baseline}",
        _spread([run["ratio"] for run in runs]),
        "; ".join(targets),
        {0: "no", len(runs): "yes"}.get(met, f"in {met} of {len(runs)} runs"),
        bench.others or "-",
    ]
    return f"| {' | '.join(cells)} |"


def _conditions(runs: Sequence[Found]) -> list[str]:
    """Further targets that a run missed, by their text."""
    missed: dict[str, int] = defaultdict(int)
    for run in runs:
        for text, holds in run["details"]["conditions"].items():
            # Without the run's figure, which some targets give in brackets.
            missed[text.split(" (is ")[0]] += not holds
    return [f"missed {count} times: {text}" for text, count in missed.items() if count]


def table(found: Sequence[Found]) -> str:
    """The table in Markdown, with the machine and the days above it."""
    runs: dict[str, list[Found]] = defaultdict(list)
    for one in found:
        runs[one["bench"]].append(one)
    machines = sorted({str(one["details"].get("machine", "a machine that is not named")) for one in found})
    days = sorted({str(one["details"].get("measured_at", "an unknown day"))[:10] for one in found})
    times = sorted({len(of) for of in runs.values()})
    head = (
        f"Measured on {' and '.join(days)}, {' or '.join(map(str, times))} runs each, on {'; '.join(machines)}: "
        "the median, with the least and the greatest in brackets."
    )
    lines = [
        head,
        "",
        "| bench | what | value | baseline | ratio | target | met | others |",
        "|---|---|---|---|---|---|---|---|",
        *(_row(name, runs[name]) for name in BENCHES if name in runs),
    ]
    return "\n".join(lines)


def put_into(document: str, made: str) -> str:
    """``document`` with ``made`` between its two marks. Raises FiguresError where it lacks them."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise FiguresError(f"the document has no place for the table: {BEGIN} and, after it, {END}")
    return f"{before}{begin}\n{made}\n{end}{after}"
