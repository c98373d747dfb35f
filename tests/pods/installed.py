"""The chart with its own Postgres, as it comes: pods under Pod Security "restricted", its test, and NOTES' commands."""

from __future__ import annotations

import time

import pytest

from .trial import Trial

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("writes")]


def test_every_pod_runs_and_none_was_started_twice(trial: Trial) -> None:
    pods = trial.release.pods()
    assert len(pods) == 5
    for name, pod in pods.items():
        for one in pod["status"]["containerStatuses"]:
            assert one["ready"], name
            assert one["restartCount"] == 0, name


def test_the_first_migration_waited_for_postgres(trial: Trial) -> None:
    [job] = trial.release.listed("batch/v1/jobs")
    assert job["status"]["succeeded"] == 1
    assert job["status"].get("failed", 0) == 0


def test_its_test_passes_and_leaves_no_node(trial: Trial) -> None:
    for _ in range(2):
        started = time.monotonic()
        trial.release.test()
        print(f"tested in {time.monotonic() - started:.1f} s")
    nodes = "select count(*) from anabranch.nodes n join anabranch.databases d on d.id = n.database_id"
    assert trial.sql(f"{nodes} where d.name = 'anabranch-smoke'") == [(0,)]


def test_status_in_a_pod_cuts_no_name(trial: Trial) -> None:
    """Where no terminal is, lines have 80 columns."""
    shown = trial.command("status")
    assert f"database {'shop'}" in shown
    assert "anabranch-smoke" in shown
    assert "…" not in shown
    print(shown)
