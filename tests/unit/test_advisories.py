"""`make advisories`: a hole fails, a waiver ends, and what could not be looked up is said. A stand-in for pip-audit, a
program of its own, answers in its form.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from tests.tools import load_tool

TODAY = date(2026, 11, 29)
CLEAN = {"name": "sound", "version": "2.0", "vulns": []}
HOLE = {
    "name": "holed",
    "version": "1.0",
    "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["1.0.1", "1.1"], "aliases": ["CVE-2026-1"]}],
}


class Checks:
    """The tool with a stand-in for pip-audit, and what it has printed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._tool = load_tool("advisories")
        self._folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        self.waive("")

    def stand_in(self, then: str, dry: str = "answer([])") -> None:
        """Make a program that does ``dry`` for a dry run, and otherwise ``then``."""
        lines = [
            f"#!{sys.executable}",
            "import json, sys, time",
            "def answer(found):",
            '    print(json.dumps({"dependencies": found, "fixes": []}))',
            '    sys.exit(any(one.get("vulns") for one in found))',
            'if "--dry-run" in sys.argv:',
            f"    {dry}",
            then,
        ]
        program = self._folder / "pip-audit"
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)
        self._monkeypatch.setattr(self._tool, "PROGRAM", program)

    def finds(self, *found: dict[str, Any]) -> None:
        self.stand_in(f"answer(json.loads({json.dumps(found)!r}))")

    def waive(self, text: str) -> None:
        file = self._folder / "waivers.toml"
        file.write_text(text)
        self._monkeypatch.setattr(self._tool, "WAIVERS", file)

    def give_up_after(self, seconds: float) -> None:
        self._monkeypatch.setattr(self._tool, "TIMEOUT_S", seconds)

    def run(self) -> tuple[int, str, str]:
        status = self._tool.main(TODAY)
        out, err = self._capsys.readouterr()
        return status, out, err


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Checks:
    return Checks(tmp_path, monkeypatch, capsys)


def waiver(until: str, id: str = "CVE-2026-1", package: str = "holed") -> str:
    return f'[[waived]]\npackage = "{package}"\nid = "{id}"\nreason = "never called"\nuntil = {until}\n'


def test_packages_without_holes_pass(checks: Checks) -> None:
    checks.finds(CLEAN)
    assert checks.run() == (0, "1 packages: no known hole\n", "")


def test_a_hole_fails_with_package_version_id_and_the_versions_that_fix_it(checks: Checks) -> None:
    checks.finds(CLEAN, HOLE)
    assert checks.run() == (1, "", "known hole: holed 1.0: PYSEC-2026-1 (CVE-2026-1): fixed in 1.0.1, 1.1\n")


def test_a_hole_that_no_version_fixes_fails(checks: Checks) -> None:
    checks.finds({**HOLE, "vulns": [{"id": "PYSEC-2026-2", "fix_versions": []}]})
    assert checks.run() == (1, "", "known hole: holed 1.0: PYSEC-2026-2: no version fixes it yet\n")


def test_a_source_that_is_not_reached_is_one_line_and_passes(checks: Checks) -> None:
    checks.stand_in('sys.exit("Traceback\\n  in query\\nConnectionError: no such host")')
    status, out, err = checks.run()
    assert (status, err) == (0, "")
    assert out == "not checked: known holes of the locked packages: ConnectionError: no such host\n"


def test_a_source_that_never_answers_is_given_up(checks: Checks) -> None:
    checks.give_up_after(1.0)
    checks.stand_in("time.sleep(600)")
    assert checks.run() == (0, "not checked: known holes of the locked packages: no answer within 1 s\n", "")


def test_packages_that_the_source_does_not_know_are_named(checks: Checks) -> None:
    checks.finds(CLEAN, {"name": "own", "skip_reason": "not found"})
    status, out, _ = checks.run()
    assert status == 0
    assert out.splitlines() == [
        "not checked: the source of advisories does not know own",
        "1 packages: no known hole",
    ]


def test_a_lock_that_cant_be_read_fails(checks: Checks) -> None:
    checks.stand_in("answer([])", 'sys.exit("a.lock contains invalid lines")')
    assert checks.run() == (1, "", "the locks can't be read: a.lock contains invalid lines\n")


@pytest.mark.slow
def test_pip_audit_itself_reads_the_locks() -> None:
    read, why = load_tool("advisories").pip_audit("--dry-run", until=time.monotonic() + 60)
    assert read is not None, why


@pytest.mark.slow
def test_pip_audit_itself_takes_no_lock_without_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = load_tool("advisories")
    bare = tmp_path / "bare.lock"
    bare.write_text("sound==2.0\n")
    monkeypatch.setattr(tool, "LOCKS", (bare,))
    read, why = tool.pip_audit("--dry-run", until=time.monotonic() + 60)
    assert read is None
    assert "sound==2.0 does not contain a hash" in why


@pytest.mark.parametrize("id", ["CVE-2026-1", "PYSEC-2026-1"])
def test_a_waiver_passes_a_hole_to_the_end_of_its_day(checks: Checks, id: str) -> None:
    checks.finds(HOLE)
    checks.waive(waiver("2026-11-29", id))
    assert checks.run() == (0, "1 packages: no known hole but waived ones\n", "")


@pytest.mark.parametrize(
    "other",
    [waiver("2026-12-01", id="CVE-2026-2"), waiver("2026-12-01", package="sound")],
    ids=["another id", "another package"],
)
def test_a_waiver_of_something_else_passes_no_hole(checks: Checks, other: str) -> None:
    checks.finds(HOLE)
    checks.waive(other)
    assert checks.run()[0] == 1


def test_a_waiver_whose_date_has_passed_fails_also_where_nothing_is_checked(checks: Checks) -> None:
    checks.stand_in('sys.exit("no such host")')
    checks.waive(waiver("2026-11-28"))
    status, _, err = checks.run()
    assert (status, err) == (1, "the waiver of CVE-2026-1 for holed ended on 2026-11-28: never called\n")


@pytest.mark.parametrize(
    "text",
    [
        '[[waived]]\npackage = "holed"\nid = "CVE-2026-1"\nuntil = 2027-01-01\n',
        waiver("2027-01-01").replace("never called", " "),
        waiver('"2027-01-01"'),
        waiver("2027-01-01T00:00:00"),
        "[[waived",
    ],
)
def test_a_waiver_without_reason_or_date_fails(checks: Checks, text: str) -> None:
    checks.finds(HOLE)
    checks.waive(text)
    status, _, err = checks.run()
    assert status == 1
    assert err
    assert "known hole" not in err, "nothing was looked up"


def test_the_projects_own_waivers_are_in_form() -> None:
    tool = load_tool("advisories")
    tool.read_waivers(tool.WAIVERS)
