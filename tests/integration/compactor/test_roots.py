"""Roots with names that mean something to somebody on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.compactor.conftest import Lake
from tests.integration.compactor.test_runs import history, rows_of_base

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("spark"), pytest.mark.timeout(400)]


@pytest.mark.parametrize("name", ["a b é %41 co:lon #x", "[x] {y,z} *? back\\slash", "linked"])
def test_files_are_found_and_put_together_whatever_the_root_is_called(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    from anabranch_compactor import base, merge

    monkeypatch.setattr(merge, "MOST_OF_A_SIZE", 1)
    monkeypatch.setattr(base, "MOST_DELTAS", 0)
    lake.folder = tmp_path / name
    if name == "linked":
        (tmp_path / "real").mkdir()
        lake.folder.symlink_to(tmp_path / "real")
    writer = lake.writer()
    for number in range(3):
        writer.insert("todo", [(f"k{number}", "t", None, number)])
        lake.compact(orphan_grace_ms=0)
    assert sorted(rows_of_base(lake)) == ["k0", "k1", "k2"]
    assert [row["n"] for row in history(lake)] == [0, 1, 2]
    assert len(lake.paths("todo", "changes")) == len(lake.paths("todo", "base")) == 1
