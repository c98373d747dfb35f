"""Two checkouts are run in turns, each with its own code, and their medians are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from anabranch.bench.command import app
from anabranch.bench.compare import CompareError, checkout_of, compare, runner

A, B = Path("/a"), Path("/b")
FAKE = """
import json, sys
from pathlib import Path
import anabranch_told

def main():
    assert sys.argv[1:4] == ["bench", "log", "--json"], sys.argv
    print("a line of something else")
    print(json.dumps({"bench": "log", "value": anabranch_told.VALUE, "baseline": 2, "details": {"rows": sys.argv[4:]}}))
    return 1
"""


def result(value: float, **details: Any) -> dict[str, Any]:
    return {"value": value, "baseline": 2.0, "details": details}


def test_checkouts_take_turns_and_the_order_changes() -> None:
    ran: list[tuple[Path, str]] = []

    def run(checkout: Path, bench: str) -> dict[str, Any]:
        ran.append((checkout, bench))
        return result(1.0)

    said: list[str] = []
    compare(A, B, ["log", "pull"], 2, run, said.append)
    assert ran == [
        *((c, n) for n in ("log", "pull") for c in (A, B)),
        *((c, n) for n in ("log", "pull") for c in (B, A)),
    ]
    assert len(said) == len(ran)


def test_a_figure_is_the_median_of_its_rounds_and_processor_time_and_counts_are_among_them() -> None:
    values = {A: iter([4.0, 100.0, 5.0]), B: iter([10.0, 9.0, 50.0])}

    def run(checkout: Path, bench: str) -> dict[str, Any]:
        more = {"statements_a_change": 12.0} if checkout == B else {}
        return result(
            next(values[checkout]),
            cpu_us_a_change_by_process={"postgres": 3 if checkout == A else 6},
            machine="x86_64",
            rows=7,
            met_cpu_us=True,
            one_batch_a_call={"cpu_us_a_change": 0},
            **more,
        )

    found = {figure.name: figure for figure in compare(A, B, ["log"], 3, run)}
    assert (found["value"].ratio, found["ratio"].ratio, found["baseline"].ratio) == (2.0, 2.0, 1.0)
    assert found["cpu_us_a_change_by_process.postgres"].ratio == 2.0
    assert found["one_batch_a_call.cpu_us_a_change"].ratio is None
    # One checkout has no such count, and the rest is neither.
    assert {"statements_a_change", "rows", "met_cpu_us", "machine"}.isdisjoint(found)
    as_json = found["value"].as_json()
    assert (as_json["a"], as_json["median_a"], as_json["median_b"]) == ([4.0, 100.0, 5.0], 5.0, 10.0)


@pytest.mark.parametrize("after", [4, 5])
def test_rounds_that_were_complete_are_kept_where_the_user_interrupts(after: int) -> None:
    ran: list[str] = []

    def run(checkout: Path, bench: str) -> dict[str, Any]:
        if len(ran) == after:
            raise KeyboardInterrupt
        ran.append(bench)
        return result(float(len(ran)))

    said: list[str] = []
    found = {(f.bench, f.name): (f.a, f.b) for f in compare(A, B, ["log", "pull"], 3, run, said.append)}
    assert found["log", "value"] == ((1.0,), (2.0,))
    assert found["pull", "value"] == ((3.0,), (4.0,))
    assert "1 of 3" in said[-1]
    del ran[:]
    after = 3
    with pytest.raises(KeyboardInterrupt):
        compare(A, B, ["log", "pull"], 3, run)


def a_checkout(folder: Path, value: int, source: str = FAKE) -> Path:
    for room in ("libs/anabranch/cli", "libs/anabranch/bench", "services"):
        (folder / room).mkdir(parents=True)
    for package in ("libs/anabranch", "libs/anabranch/cli"):
        (folder / package / "__init__.py").touch()
    (folder / "libs/anabranch/cli/entry.py").write_text(source)
    (folder / "services/anabranch_told.py").write_text(f"VALUE = {value}")
    return folder


def test_each_checkout_runs_its_own_code_whatever_the_exit_code(tmp_path: Path) -> None:
    a, b = a_checkout(tmp_path / "a", 3), a_checkout(tmp_path / "b", 9)
    run = runner(["--rows", "5"])
    assert [run(checkout_of(one), "log")["value"] for one in (a, b)] == [3.0, 9.0]
    assert run(a, "log")["details"]["rows"] == ["--rows", "5"]
    printed = CliRunner().invoke(app, ["compare", str(a), str(b), "--bench", "log", "--rounds", "1", "--json"])
    assert printed.exit_code == 0, printed.output
    figures = [json.loads(line) for line in printed.stdout.splitlines() if line.startswith("{")]
    assert [(f["figure"], f["ratio"]) for f in figures] == [("value", 3.0), ("baseline", 1.0), ("ratio", 3.0)]
    table = tmp_path / "table.txt"
    CliRunner().invoke(app, ["compare", str(a), str(b), "--bench", "log", "--rounds", "1", "--table", str(table)])
    assert "3.000" in table.read_text()


def test_code_that_is_not_the_checkouts_is_not_measured(tmp_path: Path) -> None:
    a = a_checkout(tmp_path / "a", 3)
    # Then the installed package takes its place.
    (a / "libs/anabranch/__init__.py").unlink()
    with pytest.raises(CompareError, match="is no module of the checkout"):
        runner()(a, "log")


@pytest.mark.parametrize("source", ["import sys\ndef main(): sys.exit('it broke')", "def main(): print('{}')"])
def test_a_run_without_a_result_is_told_with_its_last_words(tmp_path: Path, source: str) -> None:
    a = a_checkout(tmp_path / "a", 3, source)
    with pytest.raises(CompareError, match=r"log of .*/a gave no result") as caught:
        runner()(a, "log")
    assert "it broke" in str(caught.value) or "it broke" not in source


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["compare"], "two checkouts"),
        (["compare", "/", "/"], "no checkout"),
        (["log", "/", "/"], "neither checkouts"),
        (["log", "--bench", "log"], "neither checkouts"),
        (["nothing"], "is none of"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: list[str], why: str) -> None:
    found = CliRunner().invoke(app, arguments, env={"COLUMNS": "300", "TERM": "dumb"})
    assert found.exit_code == 2
    assert why in " ".join(found.output.split())
