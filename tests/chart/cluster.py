"""As much of a Kubernetes API as Helm asks for when it renders against a cluster: discovery, Secrets and Services.

It is no Kubernetes: it lets Helm's own `lookup` speak to something over HTTP, so that what the chart keeps over
upgrades can be told from what it makes anew.
"""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OBJECT = re.compile(r"/api/v1/namespaces/([^/]+)/(secrets|services)/([^/?]+)")
KINDS = {
    "v1": "ConfigMap Pod Secret Service ServiceAccount",
    "apps/v1": "Deployment StatefulSet",
    "autoscaling/v2": "HorizontalPodAutoscaler",
    "batch/v1": "CronJob Job",
    "cert-manager.io/v1": "Certificate",
    "gateway.networking.k8s.io/v1": "BackendTLSPolicy GRPCRoute",
    "monitoring.coreos.com/v1": "PrometheusRule ServiceMonitor",
    "networking.k8s.io/v1": "Ingress NetworkPolicy",
    "policy/v1": "PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1": "Role RoleBinding",
}
"""Group and version to the kinds that the chart has."""


def _resources(version: str) -> dict[str, Any]:
    kinds = KINDS[version].split()
    resources = [
        {"name": f"{kind.lower()}{'es' if kind == 'Ingress' else 's'}", "namespaced": True, "kind": kind, "verbs": []}
        for kind in kinds
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


def _groups() -> list[dict[str, Any]]:
    found = []
    for name in KINDS:
        group, _, version = name.rpartition("/")
        if group:
            one = {"groupVersion": name, "version": version}
            found.append({"name": group, "versions": [one], "preferredVersion": one})
    return found


class Cluster:
    """Its address, and the Secrets and Services in it by namespace and name."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.secrets: dict[tuple[str, str], dict[str, Any]] = {}
        self.services: dict[tuple[str, str], dict[str, Any]] = {}
        self.asked: list[str] = []

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        self.asked.append(path)
        bare = path.partition("?")[0]
        if bare == "/version":
            return 200, {"major": "1", "minor": "34", "gitVersion": "v1.34.0"}
        if bare == "/api":
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if bare == "/apis":
            return 200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups()}
        version = bare.removeprefix("/apis/").removeprefix("/api/")
        if version in KINDS:
            return 200, _resources(version)
        if re.fullmatch(r"/api/v1/namespaces/[^/]+/secrets", bare):
            return 200, {"kind": "SecretList", "apiVersion": "v1", "items": []}  # Helm looks for its releases.
        match = OBJECT.fullmatch(bare)
        if match is not None:
            found = {"secrets": self.secrets, "services": self.services}[match[2]].get((match[1], match[3]))
            if found is not None:
                return 200, found
        status = {"kind": "Status", "apiVersion": "v1", "status": "CallError", "reason": "NotFound", "code": 404}
        return 404, status


@contextmanager
def cluster() -> Iterator[Cluster]:
    """One that listens on loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = made.answer(self.path)
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """The requests are in `asked`."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made = Cluster(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
