"""After all that the other tests did, no container was ended for want of memory. The most that each used is printed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.api import Thing

from .trial import Trial

pytestmark = pytest.mark.timeout(120)
GROUPS = Path("/sys/fs/cgroup")
MOST = ("memory.max_usage_in_bytes", "memory.peak")
"""The file that has it, in the first and in the second version of control groups."""
UNITS = {"Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}


def test_no_container_was_ended_for_want_of_memory(trial: Trial) -> None:
    killed = [
        pod["metadata"]["name"]
        for pod in trial.release.listed("v1/pods")
        for one in pod["status"]["containerStatuses"]
        for state in (one["state"], one.get("lastState", {}))
        if state.get("terminated", {}).get("reason") == "OOMKilled"
    ]
    assert not killed
    for pod in trial.release.pods().values():
        print(f"{pod['metadata']['name']}: at most {_most(pod) / 1024**2:.0f} MiB of {_limit(pod) / 1024**2:.0f}")
        assert _most(pod) <= _limit(pod)


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
