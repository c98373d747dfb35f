"""One cluster for a run, whose pods run, and which workers share; a namespace for each install of the chart."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import control_plane
from tests.cluster.api import Api, until
from tests.cluster.control_plane import Beyond, ControlPlane
from tests.cluster.release import Release, Values
from tests.tools import load_tool

from . import enforcer, monitors, node, prometheus, topologies
from .furniture import furnish
from .inside import NODE_ADDRESS
from .outage import Outage, away
from .prometheus import Prometheus
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


def _programs() -> dict[str, Path] | str:
    """Those of a cluster, or why one of them is not there."""
    if "ANABRANCH_PODS" not in os.environ:
        return "pods run in namespaces of their own: `make pods-test` makes them"
    tools = load_tool("cluster_tools")
    programs: dict[str, Path] = {}
    for name in (*tools.CONTROL_PLANE, *tools.NODE, "helm"):
        found = tools.find(name)
        if found is None:
            return str(tools.missing(name))
        programs[name] = found
    return programs


@contextmanager
def _cluster(programs: dict[str, Path]) -> Iterator[ControlPlane]:
    """A control plane and its machine, with names and volumes, and somebody who enforces network policies."""
    cache = Path(os.environ["ANABRANCH_PODS"])
    folder = cache / "run"
    tokens = {name: secrets.token_urlsafe() for name in ("kubelet", "kube-proxy")}
    started = time.monotonic()
    with (
        control_plane.running(programs, folder, _beyond(tokens)) as made,
        node.running(programs, folder, cache, made.api, tokens),
        enforcer.running(made, folder),
    ):
        furnish(made.api, folder)
        print(f"Kubernetes {made.version}, ready after {time.monotonic() - started:.0f} s")
        yield made


_STACK, _PLANE = pytest.StashKey[ExitStack](), pytest.StashKey[ControlPlane]()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Where workers run the tests, begin the cluster that they share, before any of them is there."""
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        return
    programs = _programs()
    if not isinstance(programs, str):
        config.stash[_STACK] = ExitStack()
        config.stash[_PLANE] = config.stash[_STACK].enter_context(_cluster(programs))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where the cluster is."""
    made = node.config.stash.get(_PLANE, None)
    if made is not None:
        api = made.api
        node.workerinput["plane"] = (api.port, api.token, str(api.authority), str(made.kubeconfig), made.version)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the cluster that workers shared."""
    if _STACK in config.stash:
        config.stash[_STACK].close()


@pytest.fixture(scope="session")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """The cluster: shared with other workers, or this process's own."""
    shared = getattr(request.config, "workerinput", {}).get("plane")
    if shared is not None:
        port, token, authority, kubeconfig, version = shared
        yield ControlPlane(Api(port, token, Path(authority)), Path(kubeconfig), version)
        return
    programs = _programs()
    if isinstance(programs, str):
        pytest.skip(programs)
    with _cluster(programs) as made:
        yield made


@pytest.fixture(scope="session")
def trial(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Trial]:
    """The chart with its own Postgres, one pod of each service, installed once for a worker. A test leaves it
    working."""
    name = "trial" if worker_id == "master" else f"trial-{worker_id}"
    with installed(plane, name, tmp_path_factory.mktemp("trial"), topologies.TRIAL) as made:
        yield made


@pytest.fixture(scope="session")
def lake_claim(trial: Trial) -> None:
    """The claim that the compaction writes to, and services read, where the chart is told so."""
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "5Gi"}}}
    path = trial.release.at("v1/persistentvolumeclaims")
    trial.release.api.create(path, {"metadata": {"name": "lake"}, "spec": claim})


@pytest.fixture(scope="session")
def watching(plane: ControlPlane, trial: Trial, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that goes by the objects that the chart has for the operator, which are there from here on."""
    monitors.add_kinds(plane.api)
    trial.release.upgrade(topologies.watched())
    with space(plane, "watching", tmp_path_factory.mktemp("watching")) as own:
        yield prometheus.run(trial.release, own.space)


@pytest.fixture(scope="session")
def outage(trial: Trial, watching: Prometheus) -> Outage:
    """A long absence of Postgres, as it was seen: once for all tests, since it takes minutes."""
    return away(trial, watching)


@contextmanager
def installed(
    plane: ControlPlane, name: str, folder: Path, values: Values, secrets: Mapping[str, Mapping[str, str]] | None = None
) -> Iterator[Trial]:
    """The chart, in a namespace of its own that has ``secrets``, by name, before, with a synced table in it."""
    with space(plane, name, folder) as release:
        for secret, data in (secrets or {}).items():
            release.api.create(release.at("v1/secrets"), {"metadata": {"name": secret}, "stringData": data})
        started = time.monotonic()
        release.install(values)
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
    # Nobody makes another of the name, so nobody waits until its pods have ended in their own time.
    api.delete(f"/api/v1/namespaces/{name}")
