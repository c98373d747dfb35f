"""Compaction in pods: in the job's own, and with executors as pods, which go with their driver however it ends."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.api import Thing, until

from . import topologies
from .compaction import GONE_S, JOB_S, add_rows, begin, executors, is_ended, kill_the_driver, prove, run, said
from .trial import Trial

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("lake")]


@pytest.fixture
def local(trial: Trial, lake_claim: None) -> Trial:
    """The trial, with the compaction in one pod."""
    trial.release.upgrade(topologies.compacting("local"))
    return trial


@pytest.fixture
def spread(trial: Trial, lake_claim: None) -> Trial:
    """The trial, with two executors as pods."""
    trial.release.upgrade(topologies.compacting("kubernetes"))
    return trial


def test_in_one_pod(local: Trial) -> None:
    add_rows(local, "local", 1_000)
    prove(local, run(local, "compact-local"))


def test_with_two_executors(spread: Trial) -> None:
    add_rows(spread, "spread", 20_000)
    path = begin(spread, "compact-spread")
    most: dict[str, Thing] = {}

    def watched() -> bool:
        most.update({pod["metadata"]["name"]: pod for pod in executors(spread)})
        return is_ended(spread, path)

    until("the run is done", JOB_S, watched)
    text = said(spread, path)
    [driver] = spread.release.listed("v1/pods", labelSelector="job-name=compact-spread")
    assert len(most) == 2
    for pod in most.values():
        [owner] = pod["metadata"]["ownerReferences"]
        assert owner["uid"] == driver["metadata"]["uid"]
        resources: dict[str, Any] = pod["spec"]["containers"][0]["resources"]
        assert resources == {
            "requests": {"cpu": "100m", "memory": "2Gi"},
            "limits": {"memory": "2Gi"},
        }
    prove(spread, text)
    until("its executors are gone", GONE_S, lambda: not executors(spread))


def test_a_driver_that_is_killed_leaves_nothing_and_the_next_run_does_its_work(spread: Trial) -> None:
    add_rows(spread, "killed", 20_000)
    kill_the_driver(spread, begin(spread, "compact-killed"))
    prove(spread, run(spread, "compact-after"))
