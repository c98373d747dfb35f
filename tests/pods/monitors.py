"""The Prometheus operator, as far as the chart needs it: its kinds, and what it would make of a ServiceMonitor."""

from __future__ import annotations

from typing import Any

from tests.cluster.api import Api, Refused, Thing, until
from tests.cluster.release import Release

GROUP = "monitoring.coreos.com"
KINDS = {"servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"}
TAKEN_S = 60


def _kind(plural: str, kind: str) -> Thing:
    """A kind with nothing but its name: any object of it is taken."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind}
    spec = {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": f"{plural}.{GROUP}"}, "spec": spec}


def add_kinds(api: Api) -> None:
    """Have the cluster know the kinds, and wait until it does."""
    for plural, kind in KINDS.items():
        try:
            api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", _kind(plural, kind))
        except Refused as refused:
            if refused.code != 409:
                raise
    until("the kinds are served", TAKEN_S, lambda: KINDS.keys() <= _served(api))


def _served(api: Api) -> set[str]:
    try:
        return {one["name"] for one in api.get(f"/apis/{GROUP}/v1")["resources"]}
    except Refused as refused:
        if refused.code == 404:  # not yet
            return set()
        raise


def monitor(release: Release) -> Thing:
    """The release's one ServiceMonitor."""
    [found] = release.listed(f"{GROUP}/v1/servicemonitors")
    return found


def rules(release: Release) -> list[Thing]:
    """The groups of rules of its one PrometheusRule."""
    [found] = release.listed(f"{GROUP}/v1/prometheusrules")
    groups: list[Thing] = found["spec"]["groups"]
    return groups


def _label(name: str) -> str:
    """How Prometheus calls a label of a Service that it has found."""
    return "__meta_kubernetes_service_label_" + name.replace(".", "_").replace("/", "_").replace("-", "_")


def scraping(monitor: Thing) -> dict[str, Any]:
    """Prometheus' own settings for what a ServiceMonitor asks for, as the operator makes them."""
    spec = monitor["spec"]
    [endpoint] = spec["endpoints"]
    keep = [
        {"action": "keep", "source_labels": [_label(name)], "regex": value}
        for name, value in spec["selector"]["matchLabels"].items()
    ]
    keep.append(
        {
            "action": "keep",
            "source_labels": ["__meta_kubernetes_endpointslice_port_name"],
            "regex": endpoint["port"],
        }
    )
    named = [
        {"source_labels": [_label(spec["jobLabel"])], "target_label": "job"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
    ]
    return {
        "job_name": f"serviceMonitor/{monitor['metadata']['namespace']}/{monitor['metadata']['name']}",
        "scrape_interval": endpoint["interval"],
        "kubernetes_sd_configs": [
            {"role": "endpointslice", "namespaces": {"names": spec["namespaceSelector"]["matchNames"]}}
        ],
        "relabel_configs": [*keep, *named],
    }
