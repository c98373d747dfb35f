"""The chart's network policies, enforced: what must pass passes, and what must not does not.

Traffic of the machine's own processes, from where all other tests look, is not enforced.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.api import until
from tests.cluster.control_plane import ControlPlane, begin
from tests.tools import load_tool

from . import topologies
from .inside import NODE_ADDRESS
from .trial import Trial

pytestmark = pytest.mark.timeout(600)
ABROAD = "abroad"
READY_S = 120
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TRY = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 4).close()
except OSError as error:
    print(type(error).__name__)
else:
    print("open")
"""
STAY = "import http.server; http.server.HTTPServer(('', 8080), http.server.BaseHTTPRequestHandler).serve_forever()"
CLIENTS = {"networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"calls": "ingest"}}}]}}


@pytest.fixture(scope="session")
def enforced(plane: ControlPlane) -> Iterator[ControlPlane]:
    """The cluster, with somebody who enforces policies, from here on to the end of the run."""
    program = load_tool("cluster_tools").find("kube-network-policies")
    folder = Path(os.environ["ANABRANCH_PODS"]) / "run"
    # Where a program in a pod finds its account and the API server.
    ACCOUNT.mkdir(parents=True)
    (ACCOUNT / "token").write_text(plane.api.token)
    (ACCOUNT / "ca.crt").write_bytes(plane.api.authority.read_bytes())
    os.environ.update({"KUBERNETES_SERVICE_HOST": NODE_ADDRESS, "KUBERNETES_SERVICE_PORT": str(plane.api.port)})
    with ExitStack() as stack:
        arguments: dict[str, Any] = {
            "hostname-override": "node-1",
            "disable-nri": "true",
            "netfilter-bug-1766-fix": "false",
            "metrics-bind-address": "127.0.0.1:9080",
        }
        ended = begin(stack, folder, program, arguments)
        until("policies are enforced", READY_S, lambda: _has_rules(ended()))
        yield plane


def _has_rules(ended: str | None) -> bool:
    assert ended is None, ended
    done = subprocess.run(["nft", "list", "tables"], check=True, capture_output=True, text=True, timeout=READY_S)
    return "kube-network-policies" in done.stdout


@pytest.fixture(scope="module")
def visitors(enforced: ControlPlane, trial: Trial) -> Iterator[dict[str, str]]:
    """Pods of other namespaces: one of a namespace that may call, one that may not; namespaces to addresses."""
    api, found = enforced.api, {}
    image = trial.release.listed("apps/v1/deployments")[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    container = {"name": "it", "image": image, "command": ["python", "-c", STAY]}
    for name, labels in ((ABROAD, {}), ("friends", {"calls": "ingest"})):
        api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
        until("it has its account", READY_S, lambda accounts=accounts: api.items(accounts))  # type: ignore[misc]
        api.create(
            f"/api/v1/namespaces/{name}/pods", {"metadata": {"name": "visitor"}, "spec": {"containers": [container]}}
        )
    for name in (ABROAD, "friends"):
        path = f"/api/v1/namespaces/{name}/pods/visitor"
        status = until(
            "the visitor runs",
            READY_S,
            lambda path=path: (one := api.get(path)["status"]).get("phase") == "Running" and one,  # type: ignore[misc]
        )
        found[name] = status["podIP"]
    yield found
    for name in found:
        api.delete(f"/api/v1/namespaces/{name}")


def _tried(trial: Trial, space: str, pod: str, host: str, port: int) -> str:
    """Whether a connection out of a pod is taken: "open", or the type of the error."""
    given = ["--namespace", space, "exec", pod, "--", "python", "-c", TRY, host, str(port)]
    return trial.kubectl(*given).strip()


def _host(trial: Trial, service: str) -> str:
    return f"rel-anabranch-{service}.{trial.release.space}.svc.cluster.local"


def test_postgres_is_for_the_releases_own_pods(trial: Trial, visitors: dict[str, str]) -> None:
    for space in visitors:
        assert _tried(trial, space, "visitor", _host(trial, "postgres"), 5432) == "TimeoutError", space
    for service in ("ingest", "snapshot", "conflict-resolver", "retention-janitor"):
        deploy = f"deploy/rel-anabranch-{service}"
        assert _tried(trial, trial.release.space, deploy, _host(trial, "postgres"), 5432) == "open", service


def test_services_call_nobody_but_postgres_and_names(trial: Trial, visitors: dict[str, str]) -> None:
    for service in ("ingest", "snapshot", "conflict-resolver", "retention-janitor"):
        deploy = f"deploy/rel-anabranch-{service}"
        assert _tried(trial, trial.release.space, deploy, visitors[ABROAD], 8080) == "TimeoutError", service
        assert _tried(trial, trial.release.space, deploy, _host(trial, "ingest"), 7400) == "TimeoutError", service
    assert _tried(trial, "friends", "visitor", visitors[ABROAD], 8080) == "open", "or the others said nothing"


def test_everybody_may_call_the_services_until_clients_are_named(trial: Trial, visitors: dict[str, str]) -> None:
    for space in visitors:
        assert _tried(trial, space, "visitor", _host(trial, "ingest"), 7400) == "open", space
    trial.release.upgrade({**topologies.TRIAL, **CLIENTS})
    told = until(
        "the policy holds",
        READY_S,
        lambda: (one := _tried(trial, ABROAD, "visitor", _host(trial, "ingest"), 7400)) != "open" and one,
    )
    assert told == "TimeoutError"
    assert _tried(trial, "friends", "visitor", _host(trial, "ingest"), 7400) == "open"
    trial.release.test()
    trial.release.upgrade(topologies.TRIAL)
