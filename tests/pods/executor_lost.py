"""One of two executors is killed while a task runs in it: Spark has the task done elsewhere, and every change is in the
lake once."""

from __future__ import annotations

import os
import signal

import pytest
from tests.cluster.api import Thing, until

from . import topologies
from .compaction import GONE_S, JOB_S, add_rows, begin, executors, is_ended, prove, said
from .lake_content import claimed, judge_content
from .processes import of_pod
from .trial import Trial

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("lake")]
ROWS = 30_000
TASK = "pyspark.worker"
"""In the command line of the process of Python's that does a task's work."""


def test_an_executor_that_is_killed_at_its_work_costs_nothing(trial: Trial, lake_claim: None) -> None:
    trial.release.upgrade(topologies.compacting("kubernetes"))
    add_rows(trial, "lost", ROWS)
    path = begin(trial, "compact-lost")
    seen: dict[str, Thing] = {}

    def look() -> list[Thing]:
        found = executors(trial)
        seen.update({pod["metadata"]["name"]: pod for pod in found})
        return found

    def at_work() -> Thing | None:
        found = look()
        return next((pod for pod in found if of_pod(pod, TASK)), None) if len(found) == 2 else None

    def over() -> bool:
        look()
        return is_ended(trial, path)

    victim = until("an executor has a task", JOB_S, at_work)
    for process in of_pod(victim, ""):
        os.kill(process, signal.SIGKILL)
    until("the run is done", JOB_S, over)
    prove(trial, said(trial, path))
    print(f"executors: {sorted(seen)}, killed: {victim['metadata']['name']}")
    judge_content(trial, claimed(trial), "lost-", ROWS)
    until("its executors are gone", GONE_S, lambda: not executors(trial))
