"""Draining a machine: no budget of the chart is in the way, and one holds back what it should."""

from __future__ import annotations

import pytest

from .api import Refused, Thing, until
from .machines import Machines
from .release import Release
from .topologies import TRIAL

pytestmark = pytest.mark.timeout(1800)
MOVED_TIMEOUT_S = 300


def _evict(release: Release, name: str) -> None:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": release.space}}
    release.api.create(f"{release.at('v1/pods')}/{name}/eviction", eviction)


def _ready(pod: Thing) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


def _by_uid(release: Release) -> dict[str, Thing]:
    return {pod["metadata"]["uid"]: pod for pod in release.pods().values()}


def test_one_pod_of_each_can_be_drained(release: Release, pretended: Machines) -> None:
    """P07: at one replica nothing says that a pod may not go. Each machine is emptied in turn."""
    release.install(TRIAL)
    pods = len(release.pods())
    moved = sum(_drain(release, machine) for machine in pretended.names)
    assert moved >= pods, "every pod had to go at least once"


def _drain(release: Release, machine: str) -> int:
    """As `kubectl drain` does it: no new pods, and an eviction for each that is there. What goes comes back elsewhere.
    Returns how many went."""
    before = _by_uid(release)
    there = {uid: pod for uid, pod in before.items() if pod["spec"]["nodeName"] == machine}

    def are_elsewhere() -> bool:
        pods = _by_uid(release)
        return len(pods) == len(before) and not pods.keys() & there.keys() and all(map(_ready, pods.values()))

    release.api.patch(f"/api/v1/nodes/{machine}", {"spec": {"unschedulable": True}})
    try:
        for pod in there.values():
            _evict(release, pod["metadata"]["name"])
        until(f"all pods of {machine} run elsewhere", MOVED_TIMEOUT_S, are_elsewhere)
    finally:
        release.api.patch(f"/api/v1/nodes/{machine}", {"spec": {"unschedulable": False}})
    return len(there)


def test_of_two_pods_one_stays(release: Release, pretended: Machines) -> None:
    """The eviction of the second waits until the first one's successor is ready; so the test above can fail."""
    release.install({**TRIAL, "services": {"defaults": {"replicas": 2}}})
    pretended.held.add("ingest")
    first, second = release.pods("ingest")
    _evict(release, first)
    with pytest.raises(Refused, match="disruption budget") as refused:
        _evict(release, second)
    assert refused.value.code == 429
    pretended.held.clear()
    until("the budget allows one again", MOVED_TIMEOUT_S, lambda: _allowed(release) == 1)
    _evict(release, second)


def _allowed(release: Release) -> int:
    found: int = release.one("policy/v1/poddisruptionbudgets", "rel-anabranch-ingest")["status"]["disruptionsAllowed"]
    return found
