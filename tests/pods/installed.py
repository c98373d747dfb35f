"""The chart with its own Postgres, as it comes: pods under Pod Security "restricted", and its test."""

from __future__ import annotations

import time

import pytest
from tests.cluster.release import Release

from . import topologies

pytestmark = pytest.mark.timeout(600)


def test_it_installs_with_its_own_postgres_and_its_test_passes(release: Release) -> None:
    started = time.monotonic()
    release.install(topologies.TRIAL)
    installed = time.monotonic()
    release.test()
    tested = time.monotonic()
    print(f"installed in {installed - started:.0f} s, tested in {tested - installed:.0f} s")
    for name, pod in release.pods().items():
        for one in pod["status"]["containerStatuses"]:
            assert one["ready"], name
            assert one["restartCount"] == 0, name
    for job in release.listed("batch/v1/jobs"):
        assert job["status"].get("failed", 0) == 0, "the first migration waits for Postgres"
