"""Every scenario file of this folder holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from anabranch.scenario.run import Runner

LAKE_WORDS = ("parquet", "compact")
"""Of stories that need Spark: one process tells them all, and so Spark is started once."""
HEAVY_WORDS = (*LAKE_WORDS, "rewind", "alter table", "alter type", "drop table")
"""Of those, of stories that start services of their own on a server that is taken back, and of those that change the
schema: there are many."""
HEAVY = frozenset(
    {
        *("17-crash-between-commit-and-answer", "51-services-killed-one-after-the-other"),
        *("52-ingest-dies-around-its-append", "53-resolver-dies-after-its-claim"),
        *("62-a-million-characters", "73-batches-one-by-one"),
        *("91-what-waits-for-a-row-of-its-own", "98-child-far-larger-than-its-parent"),
        *("10-late-batch-takes-its-place", "90-later-edit-of-three-nodes"),
        "92-copies-of-copies",
    }
)
"""Stories with much data or many nodes, with services that die, or with batches that wait or fail until they are given
up."""
QUICK_UP_TO = 30
"""The first stories are told by `make test`; those behind them, of audiences, of tables that change and of rarer ways
to the same ends, by `make test-slow`."""
FILES = sorted(Path(__file__).parent.glob("*.yaml"))


def marks(file: Path) -> list[pytest.MarkDecorator]:
    text = file.read_text()
    is_slow = int(file.stem.partition("-")[0]) > QUICK_UP_TO or file.stem in HEAVY
    found = [pytest.mark.slow] if is_slow or any(word in text for word in HEAVY_WORDS) else []
    return [*found, pytest.mark.xdist_group("lake")] if any(word in text for word in LAKE_WORDS) else found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem, marks=marks(file)) for file in FILES])
def test_scenario(runner: Runner, file: Path) -> None:
    result = runner.run(file)
    assert result.ok, result.detail
