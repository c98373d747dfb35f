"""Every scenario file of this folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.scenario.run import Runner

HEAVY_WORDS = ("parquet", "compact", "rewind")
"""Of stories that start Spark, or services of their own on a server that is taken back."""
HEAVY = frozenset({"109-a-large-row-by-sql", "113-what-looks-like-trouble-of-postgres"})
"""Stories with much data, or with batches that fail until they are given up."""
FILES = sorted(Path(__file__).parent.glob("*.yaml"))


def marks(file: Path) -> list[pytest.MarkDecorator]:
    text = file.read_text()
    return [pytest.mark.slow] if file.stem in HEAVY or any(word in text for word in HEAVY_WORDS) else []


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem, marks=marks(file)) for file in FILES])
def test_scenario(runner: Runner, file: Path) -> None:
    result = runner.run(file)
    assert result.ok, result.detail
