"""Every scenario file of this folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.scenario.run import Runner

FILES = sorted(Path(__file__).parent.glob("*.yaml"))

WAITING = {
    "20-server-restored-from-backup": "noticing a rewind",
}
"""Files that may fall short until the part that they speak of is there."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_scenario(runner: Runner, file: Path) -> None:
    result = runner.run(file)
    if not result.ok and file.stem in WAITING:
        pytest.xfail(f"waits for {WAITING[file.stem]}: {result.detail}")
    assert result.ok, result.detail
