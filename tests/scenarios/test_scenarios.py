"""Every scenario file of this folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.scenario.run import Runner

FILES = sorted(Path(__file__).parent.glob("*.yaml"))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_scenario(runner: Runner, file: Path) -> None:
    result = runner.run(file)
    assert result.ok, result.detail
