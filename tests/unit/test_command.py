"""The command where only some of the wheels are installed."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from anabranch.cli import app

OF_THE_TESTKIT = {name: module for name, (module, _) in app.COMMANDS.items() if module.startswith(app.TESTKIT)}


class Missing:
    """Has Python find no module of that name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == self._name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_what_the_testkit_brings_is_what_its_packages_have() -> None:
    assert sorted(OF_THE_TESTKIT) == ["bench", "demo", "figures", "scenario"]


@pytest.mark.parametrize("command", sorted(OF_THE_TESTKIT))
def test_a_command_without_its_wheel_says_which_one_it_needs(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = OF_THE_TESTKIT[command].rpartition(".")[0]
    for loaded in [name for name in sys.modules if f"{name}.".startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setattr(sys, "meta_path", [Missing(package), *sys.meta_path])
    done = CliRunner().invoke(app.app, [command])
    assert done.exit_code == 1
    assert done.stderr == f"anabranch: `anabranch {command}` needs the package anabranch-testkit, of the same version\n"


def test_a_module_that_is_missing_otherwise_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "anabranch.bench.command", raising=False)
    monkeypatch.setitem(sys.modules, "anabranch.bench.benches", None)
    with pytest.raises(ModuleNotFoundError, match=r"anabranch\.bench\.benches"):
        CliRunner().invoke(app.app, ["bench"], catch_exceptions=False)
