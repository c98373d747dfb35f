"""``make setup`` says how far it is, with pip itself on wheels that are made on the spot."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from tests.tools import load_tool

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load_tool("setup_venv")
    monkeypatch.setattr(module, "PYTHON", sys.executable)
    # pip alone takes longer to begin.
    monkeypatch.setattr(module, "INTERVAL_S", 0.02)
    return module


def wheel(folder: Path, name: str) -> None:
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}.py", "")
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")


@pytest.mark.slow
def test_each_phase_says_how_much_there_is_and_how_far_it_is(
    setup: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("anbone", "anbtwo", "anbthree")
    for name in names:
        wheel(tmp_path, name)
    where = ("--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "made"))
    setup.pip("3 packages", 3, *where, *names)
    said = capfd.readouterr().out
    assert "\r" not in said, "whole lines, on a terminal as in a log"
    first, *between, last = said.splitlines()
    assert first == "3 packages …"
    assert between, "something is said while it goes on"
    assert all(" of 3 packages" in line and line.endswith(" s") for line in between), said
    assert last.startswith("  done in ")
    assert (tmp_path / "made" / "anbone.py").exists()


def test_a_failure_says_what_pip_says(setup: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    where = ("--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / "made"))
    with pytest.raises(subprocess.CalledProcessError):
        setup.pip("1 package", 1, *where, "anbnone")
    assert "No matching distribution found for anbnone" in capfd.readouterr().err


def test_packages_of_a_lock_are_counted(setup: ModuleType) -> None:
    assert setup.packages("requirements-build.lock") > 3
    assert setup.packages("requirements.lock") > 50


def test_nothing_is_said_where_nothing_is_to_be_done(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    current = {
        "interpreter": setup.digest(),
        "packages": setup.digest(*setup.LOCKS),
        "project": setup.digest("pyproject.toml"),
    }
    monkeypatch.setattr(setup, "stamps", lambda: current)
    assert setup.main() == 0
    assert capfd.readouterr() == ("", "")


def test_a_link_to_the_packages_of_another_checkout_is_left_as_it_is(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "kept").touch()
    (tmp_path / ".venv").symlink_to("other")
    monkeypatch.setattr(setup, "VENV", tmp_path / ".venv")
    assert setup.main() == 1
    assert f"{tmp_path / '.venv'} is a link to {tmp_path / 'other'}" in capsys.readouterr().err
    assert (tmp_path / "other" / "kept").exists()
