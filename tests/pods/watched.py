"""Metrics of the pods, and the objects for the Prometheus operator where its kinds are there."""

from __future__ import annotations

import urllib.request
from typing import Any

import pytest
from tests.cluster.api import Thing, until

from . import topologies
from .trial import SERVICES, Trial

pytestmark = pytest.mark.timeout(300)
GROUP = "monitoring.coreos.com"
KINDS = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}
TAKEN_S = 60
WATCHED: dict[str, Any] = {
    **topologies.TRIAL,
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
}


def test_every_pod_tells_its_metrics(trial: Trial) -> None:
    for service in SERVICES:
        for name, pod in trial.release.pods(service).items():
            with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9464/metrics", timeout=10) as answer:
                text = answer.read().decode()
            assert "\nanabranch_" in text, name


def _kind(plural: str, kind: str) -> Thing:
    """A kind with nothing but its name: any object of it is taken."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": f"{plural}.{GROUP}"}, "spec": spec}


def test_monitors_and_rules_are_taken_where_their_kinds_are_there(trial: Trial) -> None:
    api = trial.release.api
    for plural, kind in KINDS.items():
        api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _kind(plural, kind))
    served = f"/apis/{GROUP}/v1"
    until("the kinds are served", TAKEN_S, lambda: KINDS.keys() <= _served(trial, served))
    trial.release.upgrade(WATCHED)
    [monitor] = trial.release.listed(f"{GROUP}/v1/servicemonitors")
    [rule] = trial.release.listed(f"{GROUP}/v1/prometheusrules")
    alerts = [one["alert"] for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]
    assert len(alerts) >= 20
    # A monitor finds the Services by their labels, and their ports by name.
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    found = [one for one in trial.release.listed("v1/services") if wanted <= one["metadata"]["labels"].items()]
    ports = {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
    scraped = [one for one in found if ports & {port.get("name") for port in one["spec"]["ports"]}]
    assert len(scraped) == len(SERVICES)


def _served(trial: Trial, group: str) -> set[str]:
    if GROUP not in {one["name"] for one in trial.release.api.get("/apis")["groups"]}:
        return set()
    return {one["name"] for one in trial.release.api.get(group)["resources"]}
