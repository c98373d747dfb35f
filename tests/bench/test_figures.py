"""The table of figures says of several runs what they say, and nothing where they say nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anabranch.bench.figures import BEGIN, END, FiguresError, put_into, read_runs, table
from anabranch.bench.figures_command import app
from anabranch.bench.report import Result


def result(value: float, *, holds: bool = True, bench: str = "ingest1") -> dict[str, Any]:
    found = Result(bench, value, 20_000, "changes/s", 0.25, "at least", {"8 clients ≥ 8,000/s": holds}).as_json()
    found["details"]["machine"] = "x86_64, 2 cores"
    found["details"]["measured_at"] = "2026-03-01T12:00:00+00:00"
    return found


def files(tmp_path: Path, *runs: dict[str, Any]) -> list[Path]:
    paths = [tmp_path / f"{number}.json" for number in range(len(runs))]
    for path, run in zip(paths, runs, strict=True):
        path.write_text(json.dumps(run) + "\n")
    return paths


def test_a_figure_is_the_median_of_its_runs_with_its_spread(tmp_path: Path) -> None:
    runs = read_runs(files(tmp_path, result(7_000), result(5_000), result(4_000, holds=False)))
    head, _, _, _, row = table(runs).splitlines()
    assert head.startswith("Measured on 2026-03-01, 3 runs each, on x86_64, 2 cores")
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[0] == "ingest1"
    assert cells[2] == "5,000 (4,000 to 7,000) changes/s"
    assert cells[3].startswith("20,000, ")
    assert cells[4] == "0.25 (0.2 to 0.35)"
    assert cells[5] == "≥ 0.25; missed 1 times: 8 clients ≥ 8,000/s"
    assert cells[6] == "in 2 of 3 runs"
    assert "Triplit" in cells[7]


@pytest.mark.parametrize(("values", "met"), [((5_000, 6_000), "yes"), ((1_000, 2_000), "no")])
def test_a_target_is_met_where_every_run_met_it(tmp_path: Path, values: tuple[float, ...], met: str) -> None:
    row = table(read_runs(files(tmp_path, *map(result, values)))).splitlines()[-1]
    assert row.strip("|").split("|")[6].strip() == met


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"bench": "unheard of"}', '{"bench": "ingest"}'])
def test_a_file_that_holds_no_result_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(FiguresError, match="no result"):
        read_runs([path])


def test_the_table_goes_between_its_marks(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    runs = [str(path) for path in files(tmp_path, result(5_000))]
    assert CliRunner().invoke(app, [*runs, "--into", str(document)]).exit_code == 0
    text = document.read_text()
    assert text.startswith(f"before\n{BEGIN}\nMeasured on")
    assert text.endswith(f"\n{END}\nafter\n")
    assert "old" not in text
    with pytest.raises(FiguresError, match="no place"):
        put_into(f"{END} {BEGIN}", "table")


def test_the_page_of_figures_has_a_place_for_the_table() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "figures.md").read_text(encoding="utf-8")
    assert "--into docs/reference/figures.md" in page
    assert f"{BEGIN}\nmade\n{END}" in put_into(page, "made")
