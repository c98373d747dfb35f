"""Compactions as a schedule starts them, and their executors, looked at from outside."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.cluster.api import Thing, until

from .trial import Trial

JOB_S = 400
GONE_S = 120
DRIVER, EXECUTOR = "compactor", "compactor-executor"
MORE_ROWS = "insert into shop.todo (id, title) select '{run}-' || n, repeat('x', 100) from generate_series(1, {rows}) n"


def add_rows(trial: Trial, run: str, rows: int) -> None:
    """Rows that the log has: what SQL wrote is drained into it."""
    trial.sql(MORE_ROWS.format(run=run, rows=rows))
    head = "select count(*) from anabranch.captured"
    until("the log has what SQL wrote", JOB_S, lambda: trial.sql(head) == [(0,)])


def begin(trial: Trial, name: str) -> str:
    """Start a job as the schedule would; gives its path in the API."""
    template = trial.release.one("batch/v1/cronjobs", "rel-anabranch-compactor")["spec"]["jobTemplate"]
    job: Thing = {"metadata": {"name": name, "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    trial.release.api.create(trial.release.at("batch/v1/jobs"), job)
    return f"{trial.release.at('batch/v1/jobs')}/{name}"


def is_ended(trial: Trial, path: str) -> bool:
    """Whether a job is over, one way or the other."""
    status = trial.release.api.get(path).get("status", {})
    return bool(status.get("succeeded") or status.get("failed"))


def said(trial: Trial, path: str) -> str:
    """The output of a job that is over. It has to have succeeded."""
    name = path.rpartition("/")[2]
    pods = trial.release.listed("v1/pods", labelSelector=f"job-name={name}")
    text = "\n".join(trial.log(pod) for pod in pods)
    assert trial.release.api.get(path)["status"].get("succeeded") == 1, text
    return text


def run(trial: Trial, name: str) -> str:
    """Run a compaction to its end; gives what it said. It has to succeed."""
    started = time.monotonic()
    path = begin(trial, name)
    until(f"{name} is done", JOB_S, lambda: is_ended(trial, path))
    text = said(trial, path)
    print(f"{name}: {time.monotonic() - started:.0f} s: {text.strip()[-400:]}")
    return text


def prove(trial: Trial, text: str) -> None:
    """A compaction's output says that its sums are those of Postgres; and `verify` finds no other difference."""
    assert "proven and published" in text
    print(trial.local("verify", "--db", "shop").strip())


def executors(trial: Trial) -> list[Thing]:
    """Pods of executors, ended ones too."""
    return trial.of_component(EXECUTOR)


def kill_the_driver(trial: Trial, path: str, when: Callable[[], bool] | None = None) -> None:
    """Kill a job's pod without any leave, with the job, ``when`` it is time, or else once both executors are there;
    these go, and nothing stays."""
    until("it is time", JOB_S, when or (lambda: len(executors(trial)) == 2))
    tried = trial.release.listed("v1/pods", labelSelector=f"job-name={path.rpartition('/')[2]}")
    # Where there is much else to do, a first try may have failed before.
    [driver] = [pod for pod in tried if pod["status"]["phase"] == "Running"]
    pod = f"{trial.release.at('v1/pods')}/{driver['metadata']['name']}"
    trial.release.api.delete(path, propagationPolicy="Orphan")
    trial.release.api.delete(pod, gracePeriodSeconds=0)
    until("its executors are gone", GONE_S, lambda: not executors(trial))
    for kind in ("v1/configmaps", "v1/services", "v1/persistentvolumeclaims"):
        found = trial.release.listed(kind, labelSelector="spark-app-selector")
        assert not found, [one["metadata"]["name"] for one in found]
