"""After all that the other tests did, no container was ended for want of memory. The most that each used is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.api import Thing

from .trial import Trial

pytestmark = pytest.mark.timeout(120)
GROUPS_OF_TESTS = ("writes", "waits", "lake")
"""Each may have an install of its own, and comes to its own end."""
GROUPS = Path("/sys/fs/cgroup")
MOST = ("memory.max_usage_in_bytes", "memory.peak")
"""The file that has it, in the first and in the second version of control groups."""
UNITS = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}


@pytest.mark.parametrize("after", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in GROUPS_OF_TESTS])
def test_no_container_was_ended_for_want_of_memory(trial: Trial, after: str) -> None:
    killed = [
        pod["metadata"]["name"]
        for pod in trial.release.listed("v1/pods")
        for one in pod["status"]["containerStatuses"]
        for state in (one["state"], one.get("lastState", {}))
        if state.get("terminated", {}).get("reason") == "OOMKilled"
    ]
    assert not killed
    for pod in trial.release.pods().values():
        most, limit = _most(pod), _limit(pod)
        print(f"after {after}: {pod['metadata']['name']}: at most {most / 1024**2:.0f} MiB of {limit / 1024**2:.0f}")
        assert most <= limit


def _limit(pod: Thing) -> int:
    given = pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
    return int(given[:-2]) * UNITS[given[-2:]]


def _most(pod: Thing) -> int:
    """The most memory of the pod's container, files in the cache included, in bytes."""
    [status] = pod["status"]["containerStatuses"]
    number = status["containerID"].rpartition("/")[2]
    [file] = [
        folder / name
        for top in (GROUPS / "memory" / "kubepods", GROUPS / "kubepods")
        for folder in top.rglob(number)
        for name in MOST
        if (folder / name).exists()
    ]
    return int(file.read_text(encoding="ascii"))
