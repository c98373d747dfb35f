"""Every scenario file of this folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.scenario.run import Runner

HEAVY = ("parquet", "compact", "rewind")
"""Words of stories that start Spark, or services of their own on a server that is taken back."""


FILES = sorted(Path(__file__).parent.glob("*.yaml"))


def marks(file: Path) -> list[pytest.MarkDecorator]:
    text = file.read_text()
    return [pytest.mark.long] if any(word in text for word in HEAVY) else []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem, marks=marks(file)) for file in FILES])
def test_scenario(runner: Runner, file: Path) -> None:
    result = runner.run(file)
    assert result.ok, result.detail
