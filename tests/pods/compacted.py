"""Compaction in pods: in the job's own, and with executors as pods, which go with their driver however it ends."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.cluster.api import Thing, until

from . import topologies
from .trial import Trial

pytestmark = pytest.mark.timeout(900)
JOB_S = 400
GONE_S = 120
DRIVER, EXECUTOR = "compactor", "compactor-executor"
MORE_ROWS = "insert into shop.todo (id, title) select '{run}-' || n, repeat('x', 100) from generate_series(1, {rows}) n"


@pytest.fixture(scope="module")
def _lake(trial: Trial) -> None:
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "5Gi"}}}
    path = trial.release.at("v1/persistentvolumeclaims")
    trial.release.api.create(path, {"metadata": {"name": "lake"}, "spec": claim})


@pytest.fixture
def local(trial: Trial, _lake: None) -> Trial:
    """The trial, with the compaction in one pod."""
    trial.release.upgrade(topologies.compacting("local"))
    return trial


@pytest.fixture
def spread(trial: Trial, _lake: None) -> Trial:
    """The trial, with two executors as pods."""
    trial.release.upgrade(topologies.compacting("kubernetes"))
    return trial


def _begin(trial: Trial, name: str) -> str:
    """Start a job as the schedule would; gives its path in the API."""
    template = trial.release.one("batch/v1/cronjobs", "rel-anabranch-compactor")["spec"]["jobTemplate"]
    job: Thing = {"metadata": {"name": name, "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    trial.release.api.create(trial.release.at("batch/v1/jobs"), job)
    return f"{trial.release.at('batch/v1/jobs')}/{name}"


def _ended(trial: Trial, path: str) -> bool:
    status = trial.release.api.get(path).get("status", {})
    return bool(status.get("succeeded") or status.get("failed"))


def _run(trial: Trial, name: str) -> str:
    """Run a compaction to its end; gives what it said. It has to succeed."""
    started = time.monotonic()
    path = _begin(trial, name)
    until(f"{name} is done", JOB_S, lambda: _ended(trial, path))
    pods = trial.release.listed("v1/pods", labelSelector=f"job-name={name}")
    said = "\n".join(trial.log(pod) for pod in pods)
    print(f"{name}: {time.monotonic() - started:.0f} s: {said.strip()[-400:]}")
    assert trial.release.api.get(path)["status"].get("succeeded") == 1, said
    return said


def _rows(trial: Trial, run: str, rows: int) -> None:
    """Rows that the log has: what SQL wrote is drained into it."""
    trial.sql(MORE_ROWS.format(run=run, rows=rows))
    head = "select count(*) from anabranch.captured"
    until("the log has what SQL wrote", JOB_S, lambda: trial.sql(head) == [(0,)])


def _proven(trial: Trial, said: str) -> None:
    assert "proven and published" in said
    print(trial.local("verify", "--db", "shop").strip())


def test_in_one_pod(local: Trial) -> None:
    _rows(local, "local", 1_000)
    _proven(local, _run(local, "compact-local"))


def _executors(trial: Trial) -> list[Thing]:
    return trial.of_component(EXECUTOR)


def test_with_two_executors(spread: Trial) -> None:
    _rows(spread, "spread", 20_000)
    path = _begin(spread, "compact-spread")
    most: dict[str, Any] = {}

    def watched() -> bool:
        most.update({pod["metadata"]["name"]: pod for pod in _executors(spread)})
        return _ended(spread, path)

    until("the run is done", JOB_S, watched)
    [driver] = spread.release.listed("v1/pods", labelSelector="job-name=compact-spread")
    said = spread.log(driver)
    assert spread.release.api.get(path)["status"].get("succeeded") == 1, said
    assert len(most) == 2
    for pod in most.values():
        [owner] = pod["metadata"]["ownerReferences"]
        assert owner["uid"] == driver["metadata"]["uid"]
        resources = pod["spec"]["containers"][0]["resources"]
        assert resources == {
            "requests": {"cpu": "100m", "memory": "2Gi"},
            "limits": {"memory": "2Gi"},
        }
    _proven(spread, said)
    until("its executors are gone", GONE_S, lambda: not _executors(spread))


def test_a_driver_that_is_killed_leaves_nothing_and_the_next_run_does_its_work(spread: Trial) -> None:
    _rows(spread, "killed", 20_000)
    path = _begin(spread, "compact-killed")
    until("executors are there", JOB_S, lambda: len(_executors(spread)) == 2)
    [driver] = spread.release.listed("v1/pods", labelSelector="job-name=compact-killed")
    pod = f"{spread.release.at('v1/pods')}/{driver['metadata']['name']}"
    spread.release.api.delete(path, propagationPolicy="Orphan")
    spread.release.api.delete(pod, gracePeriodSeconds=0)
    until("its executors are gone", GONE_S, lambda: not _executors(spread))
    _there_are_only_ours(spread)
    _proven(spread, _run(spread, "compact-after"))


def _there_are_only_ours(trial: Trial) -> None:
    """Nothing of Spark's is left, of any kind that it makes."""
    for kind in ("v1/configmaps", "v1/services", "v1/persistentvolumeclaims"):
        found = trial.release.listed(kind, labelSelector="spark-app-selector")
        assert not found, [one["metadata"]["name"] for one in found]
