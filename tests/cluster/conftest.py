"""One control plane for a run, with two machines, a volume for whoever claims one, and a namespace for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.tools import load_tool

from .api import Api, Refused, until
from .control_plane import ControlPlane, running
from .machines import Machines, machines
from .release import Release

VOLUMES = 12
MACHINES = ("one", "two")
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
ACCOUNT_TIMEOUT_S = 120


def _program(name: str) -> Path:
    tools = load_tool("cluster_tools")
    found: Path | None = tools.find(name)
    if found is None:
        pytest.skip(tools.missing(name))
    return found


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane, where its programs are; a skip that says which is missing, where they aren't."""
    names = load_tool("cluster_tools").CONTROL_PLANE
    programs = {name: _program(name) for name in names}
    with running(programs, tmp_path_factory.mktemp("control-plane")) as started:
        print(f"Kubernetes {started.version}")
        _volumes(started.api)
        priority = {"metadata": {"name": "high"}, "value": 1000}
        started.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", priority)
        yield started


@pytest.fixture(scope="session")
def api(plane: ControlPlane) -> Api:
    return plane.api


@pytest.fixture(scope="session")
def _machines(api: Api) -> Iterator[Machines]:
    with machines(api, MACHINES) as working:
        yield working


@pytest.fixture
def pretended(_machines: Machines) -> Iterator[Machines]:
    """The machines; nothing is held or failing."""
    yield _machines
    _machines.held.clear()
    _machines.failing.clear()
    assert _machines.failure is None


_numbers = itertools.count(1)


@pytest.fixture
def release(plane: ControlPlane, pretended: Machines, tmp_path: Path) -> Iterator[Release]:
    """A namespace that enforces Pod Security "restricted", and nothing in it yet; it goes with the test."""
    name = f"space-{next(_numbers)}"
    plane.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": RESTRICTED}})
    made = Release(_program("helm"), plane.kubeconfig, tmp_path, plane.api, name)
    until("the namespace has its account", ACCOUNT_TIMEOUT_S, _there(made, "v1/serviceaccounts", "default"))
    yield made
    plane.api.delete(f"/api/v1/namespaces/{name}")


def _there(made: Release, path: str, name: str) -> Callable[[], bool]:
    def look() -> bool:
        try:
            made.one(path, name)
        except Refused as refused:
            if refused.code == 404:
                return False
            raise
        return True

    return look


def _volumes(api: Api) -> None:
    """A storage class for claims that name none, and volumes of it, which the controllers bind."""
    kind = {
        "metadata": {"name": "by-hand", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
    }
    api.create("/apis/storage.k8s.io/v1/storageclasses", kind)
    for number in range(VOLUMES):
        spec = {
            "capacity": {"storage": "8Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "storageClassName": "by-hand",
            "hostPath": {"path": f"/nowhere/{number}"},
        }
        api.create("/api/v1/persistentvolumes", {"metadata": {"name": f"volume-{number}"}, "spec": spec})
