"""The chart's network policies, enforced: what must pass passes, and what must not does not.

Traffic of the machine's own processes, from where all other tests look, is not enforced.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cluster.api import until
from tests.cluster.control_plane import ControlPlane

from . import topologies
from .trial import Trial

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("waits")]
ABROAD = "abroad"
READY_S = 120
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


@pytest.fixture(scope="module")
def visitors(plane: ControlPlane, trial: Trial) -> Iterator[dict[str, str]]:
    """Pods of other namespaces: one of a namespace that may call, one that may not; namespaces to addresses."""
    api, found = plane.api, {}
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
