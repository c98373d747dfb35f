"""Where pods can't run, all that is missing is named; images are made anew where a source of theirs has changed."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from tests.tools import ROOT, load_tool


@pytest.fixture
def pods() -> ModuleType:
    return load_tool("pods")


@pytest.fixture
def made() -> ModuleType:
    return load_tool("pod_images")


def test_everything_that_is_missing_is_named_at_once(
    pods: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pods.shutil, "which", lambda name, **_: None)
    monkeypatch.setattr(pods.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(pods, "CNI", tmp_path)
    assert pods.main(["missing"]) == 2
    told = capsys.readouterr().err
    for package in {*pods.PROGRAMS.values(), "containernetworking-plugins"}:
        assert f"the Debian package {package}" in told
    assert "missing: root, " in told
    assert len(told.splitlines()) == 1


def test_the_kernel_is_asked_where_the_programs_are_there(
    pods: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in pods.PLUGINS:
        (tmp_path / name).touch()
    monkeypatch.setattr(pods.shutil, "which", lambda name, **_: f"/bin/{name}")
    monkeypatch.setattr(pods.os, "geteuid", lambda: 0)
    monkeypatch.setattr(pods, "CNI", tmp_path)
    asked: list[tuple[str, ...]] = []

    def fails(*command: str) -> bool:
        asked.append(command)
        return True

    monkeypatch.setattr(pods, "_tried", fails)
    kinds = ["network devices of type bridge in the kernel", "network devices of type veth in the kernel"]
    assert [one for one in pods.missing() if "overlay" not in one] == [*kinds, "nf_tables in the kernel"]
    assert {command[:2] for command in asked} == {("unshare", "--net")}, "nothing of the machine's own network"


@pytest.mark.parametrize("changed", ["source", "program"])
def test_images_are_made_anew_where_something_has_changed(made: ModuleType, tmp_path: Path, changed: str) -> None:
    files: dict[str, Path] = {"source": tmp_path / "libs" / "a.py", "program": tmp_path / "coredns"}
    for file in files.values():
        file.parent.mkdir(exist_ok=True)
        file.write_text("one")
    (tmp_path / "libs" / "__pycache__").mkdir()
    paths = [tmp_path / "libs", files["program"]]
    before = made.stamp(paths)
    (tmp_path / "libs" / "__pycache__" / "a.pyc").write_text("made by Python")
    assert made.stamp(paths) == before
    files[changed].write_text("two")
    assert made.stamp(paths) != before


def test_what_images_are_made_of_is_there(made: ModuleType) -> None:
    """A path that nothing lies at would never change."""
    assert all((ROOT / name).exists() for name in made.SOURCES)
    assert made.version()


def test_the_first_process_is_a_program_that_is_there(pods: ModuleType) -> None:
    assert pods.INSIDE.is_file()
