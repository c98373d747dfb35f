"""One cluster for a run, whose pods run; a namespace for each test that installs the chart."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cluster import control_plane
from tests.cluster.api import Refused, until
from tests.cluster.control_plane import Beyond, ControlPlane
from tests.cluster.release import Release
from tests.tools import load_tool

from . import node, topologies
from .furniture import furnish
from .inside import NODE_ADDRESS
from .trial import Trial

RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
PORT = 6443
ACCOUNT_S = 60
NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


def _beyond(tokens: dict[str, str]) -> Beyond:
    users = {
        tokens["kubelet"]: (f"system:node:{node.NAME}", "system:nodes"),
        tokens["kube-proxy"]: ("system:kube-proxy", "system:kube-proxy"),
    }
    arguments = {
        "bind-address": "0.0.0.0",
        "advertise-address": NODE_ADDRESS,
        "endpoint-reconciler-type": "lease",
        "authorization-mode": "Node,RBAC",
        "kubelet-preferred-address-types": "InternalIP",
        "allow-privileged": "true",
    }
    return Beyond(PORT, (NODE_ADDRESS, "10.96.0.1"), NAMES, users, arguments)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """A control plane and its machine, with names and volumes."""
    if "ANABRANCH_PODS" not in os.environ:
        pytest.skip("pods run in namespaces of their own: `make pods-test` makes them")
    cache = Path(os.environ["ANABRANCH_PODS"])
    tools = load_tool("cluster_tools")
    programs: dict[str, Path] = {}
    for name in (*tools.CONTROL_PLANE, *tools.NODE, "helm"):
        found = tools.find(name)
        if found is None:
            pytest.skip(tools.missing(name))
        programs[name] = found
    tokens = {name: secrets.token_urlsafe() for name in ("kubelet", "kube-proxy")}
    folder = cache / "run"
    started = time.monotonic()
    with (
        control_plane.running(programs, folder, _beyond(tokens)) as made,
        node.running(programs, folder, cache, made.api, tokens),
    ):
        furnish(made.api, folder)
        print(f"Kubernetes {made.version}, ready after {time.monotonic() - started:.0f} s")
        yield made


@pytest.fixture(scope="session")
def trial(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    """The chart with its own Postgres, one pod of each service, installed once for a run. A test leaves it working."""
    with space(plane, "trial", tmp_path_factory.mktemp("trial")) as release:
        started = time.monotonic()
        release.install(topologies.TRIAL)
        print(f"installed in {time.monotonic() - started:.0f} s")
        made = Trial.of(release, load_tool("cluster_tools").find("kubectl"))
        made.furnish()
        yield made


@contextmanager
def space(plane: ControlPlane, name: str, folder: Path) -> Iterator[Release]:
    """A namespace that enforces Pod Security "restricted", and nothing in it yet."""
    api = plane.api
    api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": RESTRICTED}})
    helm = load_tool("cluster_tools").find("helm")
    made = Release(helm, plane.kubeconfig, folder, api, name)
    until("the namespace has its account", ACCOUNT_S, lambda: made.listed("v1/serviceaccounts"))
    yield made
    api.delete(f"/api/v1/namespaces/{name}")
    until("the namespace is gone", ACCOUNT_S * 2, lambda: _gone(plane, name))


def _gone(plane: ControlPlane, name: str) -> bool:
    try:
        plane.api.get(f"/api/v1/namespaces/{name}")
    except Refused as refused:
        if refused.code == 404:
            return True
        raise
    return False
