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
        *("62-a-million-characters", "73-batches-one-by-one", "91-what-waits-for-a-row-of-its-own"),
        *("98-child-far-larger-than-its-parent", "107-array-nulls-off-of-a-database", "109-a-large-row-by-sql"),
        *("113-what-looks-like-trouble-of-postgres", "140-what-waits-for-a-row-holds-up-nothing"),
        *("147-many-old-rows-granted", "153-cut-pull-and-a-grant", "154-deaths-around-a-grant"),
        *("10-late-batch-takes-its-place", "90-later-edit-of-three-nodes", "92-copies-of-copies"),
        *("141-owner-only", "142-claims-of-every-form", "143-one-of-two-audiences-lost", "146-moved-away-and-back"),
        *("148-revoked-with-a-queue", "149-a-room-with-all-that-is-in-it", "151-granted-and-revoked-at-once"),
        *("152-behind-the-floor-in-other-teams", "158-conflicts-of-seen-and-unseen-rows"),
        *("159-claims-change-between-two-syncs", "161-chosen-tables-and-audiences"),
        *("163-granted-revoked-and-granted-again-while-away", "164-the-answer-after-a-revocation"),
        *("165-references-between-open-and-restricted-tables", "168-devices-of-one-member"),
    }
)
"""Stories with much data or many nodes, with services that die, or with batches that wait or fail until they are given
up."""
FILES = sorted(Path(__file__).parent.glob("*.yaml"))


def marks(file: Path) -> list[pytest.MarkDecorator]:
    text = file.read_text()
    found = [pytest.mark.slow] if file.stem in HEAVY or any(word in text for word in HEAVY_WORDS) else []
    return [*found, pytest.mark.xdist_group("lake")] if any(word in text for word in LAKE_WORDS) else found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem, marks=marks(file)) for file in FILES])
def test_scenario(runner: Runner, file: Path) -> None:
    result = runner.run(file)
    assert result.ok, result.detail
