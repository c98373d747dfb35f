"""A Prometheus in the cluster, which finds pods by the cluster's own lists, and has the chart's rules."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

from tests.cluster.api import Api, Thing, until
from tests.cluster.release import Release

from . import monitors

READY_S = 120
PORT = 9090
USER = 65534
NAME = "prometheus"


@dataclass(frozen=True, slots=True)
class Prometheus:
    """``address``: where its API is."""

    address: str

    def ask(self, path: str) -> Any:
        """The data of its API's answer. Raises OSError where it does not."""
        with urllib.request.urlopen(f"http://{self.address}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def scraped(self) -> dict[str, str]:
        """Pods that it asks for their metrics, and how that went: `up`, `down` or `unknown`."""
        return {one["labels"]["pod"]: one["health"] for one in self.ask("targets?state=active")["activeTargets"]}

    def rules(self) -> dict[str, str]:
        """Its rules, and whether each can be evaluated: `ok`, `err` or `unknown`."""
        return {one["name"]: one["health"] for group in self.ask("rules")["groups"] for one in group["rules"]}

    def firing(self, alert: str) -> set[str]:
        """Jobs for which an alert fires."""
        found = [one for one in self.ask("alerts")["alerts"] if one["state"] == "firing"]
        return {one["labels"]["job"] for one in found if one["labels"]["alertname"] == alert}


def run(release: Release, space: str) -> Prometheus:
    """Run one for a release, by what the chart has installed for the operator, in a namespace of its own."""
    api = release.api
    config = {
        "global": {"evaluation_interval": "15s"},
        "rule_files": ["/etc/prometheus/rules.json"],
        "scrape_configs": [monitors.scraping(monitors.monitor(release))],
    }
    # All JSON is YAML, too.
    files = {"prometheus.json": config, "rules.json": {"groups": monitors.rules(release)}}
    at = f"/api/v1/namespaces/{space}"
    data = {name: json.dumps(text) for name, text in files.items()}
    api.create(f"{at}/configmaps", {"metadata": {"name": NAME}, "data": data})
    _may_look(api, space, release.space)
    api.create(f"{at}/pods", {"metadata": {"name": NAME}, "spec": _pod()})

    def ready() -> Prometheus | None:
        status = api.get(f"{at}/pods/{NAME}")["status"]
        is_ready = any(one["ready"] for one in status.get("containerStatuses", []))
        return Prometheus(f"{status['podIP']}:{PORT}") if is_ready else None

    return until("Prometheus is ready", READY_S, ready)


def _may_look(api: Api, space: str, where: str) -> None:
    """Its account may see what there is in one namespace, as the operator's has it."""
    api.create(f"/api/v1/namespaces/{space}/serviceaccounts", {"metadata": {"name": NAME}})
    looks = ["get", "list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods"], "verbs": looks},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": looks},
    ]
    rights = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{where}"
    api.create(f"{rights}/roles", {"metadata": {"name": NAME}, "rules": rules})
    binding = {
        "metadata": {"name": NAME},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": space}],
    }
    api.create(f"{rights}/rolebindings", binding)


def _pod() -> Thing:
    container: Thing = {
        "name": NAME,
        "image": "docker.io/local/prometheus:1",
        "args": ["--config.file=/etc/prometheus/prometheus.json", "--storage.tsdb.path=/data"],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": PORT}, "periodSeconds": 1},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "config", "mountPath": "/etc/prometheus"}, {"name": "data", "mountPath": "/data"}],
    }
    return {
        "serviceAccountName": NAME,
        "containers": [container],
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [{"name": "config", "configMap": {"name": NAME}}, {"name": "data", "emptyDir": {}}],
    }
