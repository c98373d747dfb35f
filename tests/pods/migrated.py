"""A next release with a migration, and back, under load: the schema stays the newer one, and the release before works
with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import topologies
from .judged import during, judge
from .trial import SERVICES, Trial

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("writes")]
NEXT = "9001"
REVISION = "select version_num from anabranch.schema_revision"
ADDED = (
    "select count(*) from information_schema.columns where table_schema = 'anabranch' and column_name = 'next_release'"
)


def _images(trial: Trial) -> set[str]:
    """Images of the services' pods."""
    pods = [pod for service in SERVICES for pod in trial.release.pods(service).values()]
    return {one["image"] for pod in pods for one in pod["spec"]["containers"]}


def _versions(trial: Trial) -> set[str]:
    """Versions, as each service's installation says them."""
    ask = "import importlib.metadata as m; print(m.version('anabranch-server'))"
    return {
        trial.kubectl("exec", f"deploy/rel-anabranch-{service}", "--", "python", "-c", ask).strip()
        for service in SERVICES
    }


def test_a_release_with_a_migration_and_back_under_load(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before, image, version = trial.sql(REVISION), _images(trial), _versions(trial)
    assert before != [(NEXT,)]

    def change() -> None:
        trial.release.upgrade(topologies.next_release())
        trial.release.settled()
        job = trial.release.one("batch/v1/jobs", "rel-anabranch-migration")
        assert job["status"]["succeeded"] == 1
        assert job["status"].get("failed", 0) == 0, "services that write are no reason to try again"
        assert trial.sql(REVISION) == [(NEXT,)]
        assert trial.sql(ADDED)[0][0] > 10, "tables that services write to were altered meanwhile"
        assert _images(trial) == {"local/next:1"}
        assert _versions(trial) == {"9.0.1"}
        trial.release.rollback()
        trial.release.settled()

    load = during(trial, monkeypatch, tmp_path, "next release with a migration, and back", change)
    assert _images(trial) == image
    assert _versions(trial) == version
    assert trial.sql(REVISION) == [(NEXT,)], "a rollback leaves the schema as it is"
    judge(trial, load)
    # The migration of the release before finds a schema that it works with, and its services pass the chart's test.
    trial.release.upgrade(topologies.TRIAL)
    assert trial.sql(REVISION) == [(NEXT,)]
    trial.release.test()
