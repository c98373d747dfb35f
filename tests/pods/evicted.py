"""Draining, as far as one machine can show it: each pod of two is asked to go through the Eviction API, as
`kubectl drain` does it, under load. There is no second machine, so that pods come back where they went from, and no
volume moves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.cluster.api import Refused, Thing

from . import topologies
from .judged import during, judge
from .trial import SERVICES, Trial, is_ready

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("writes")]
AGAIN_S = 300


def _evicted(trial: Trial, name: str) -> bool:
    """Ask for it, as often as the budget says no; that it did is what it is there for."""
    path = f"{trial.release.at('v1/pods')}/{name}/eviction"
    body: Thing = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    try:
        trial.release.api.create(path, body)
    except Refused as refused:
        if refused.code == 429:
            return False
        raise
    return True


def _ready(trial: Trial, service: str) -> int:
    return sum(is_ready(pod) for pod in trial.release.pods(service).values())


def test_pods_are_drained_one_after_the_other_under_load(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trial.release.upgrade(topologies.two_of_each())
    trial.release.settled()
    before = {name: service for service in SERVICES for name in trial.release.pods(service)}
    assert len(before) == 2 * len(SERVICES) - 1, "of the janitor one is enough"
    refused = 0

    def change() -> None:
        nonlocal refused
        for name in before:
            deadline = time.monotonic() + AGAIN_S
            while not _evicted(trial, name):
                refused += 1
                assert time.monotonic() < deadline, name
                assert _ready(trial, before[name]) >= 1, "of two pods one stays"
                time.sleep(1)
        trial.release.settled()

    load = during(trial, monkeypatch, tmp_path, "drained", change)
    print(f"the budget said no {refused} times")
    assert refused, "the second pod of a service goes once another is ready, not before"
    assert not before.keys() & trial.release.pods().keys()
    judge(trial, load)
    trial.release.upgrade(topologies.TRIAL)
    trial.release.settled()
