"""Values of the chart as they are installed where pods run."""

from __future__ import annotations

from typing import Any

from tests.cluster import topologies

POSTGRES = "docker.io/local/postgres:1"
SMALL = {"requests": {"cpu": "50m"}}
"""As much as pods ask for where several installs share two cores."""
TRIAL: dict[str, Any] = {
    **topologies.TRIAL,
    "bundledPostgres": {"enabled": True, "image": POSTGRES, "resources": SMALL},
    "services": {"defaults": {**topologies.TRIAL["services"]["defaults"], "resources": SMALL}},
}
"""Everything in the cluster, one pod of each service, as the chart has it but for the source of Postgres's image and
the processor that pods ask for."""


def changed() -> dict[str, Any]:
    """The same with other pods of each service, as a next release has them."""
    defaults = {**TRIAL["services"]["defaults"], "podAnnotations": {"example.org/release": "next"}}
    return {**TRIAL, "services": {"defaults": defaults}}


def next_release() -> dict[str, Any]:
    """The same of a next release, which has one migration more."""
    return {**TRIAL, "image": {"repository": "local/next", "tag": "1"}}


def watched() -> dict[str, Any]:
    """The same with the objects for the Prometheus operator and for Grafana."""
    kinds = ("serviceMonitor", "prometheusRule", "dashboards")
    return {**TRIAL, **{name: {"enabled": True} for name in kinds}}


def two_of_each() -> dict[str, Any]:
    """The same with two pods of each service, of which a drain may take one at a time."""
    return {**TRIAL, "services": {"defaults": {**TRIAL["services"]["defaults"], "replicas": 2}}}


def compacting(mode: str) -> dict[str, Any]:
    """The trial with the compaction, on a claim, when a test says so."""
    compactor: dict[str, Any] = {"enabled": True, "mode": mode, "volumeClaim": "lake", "schedule": "0 0 1 1 *"}
    # Pods that wait for half of the machine would wait for each other.
    compactor["resources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}
    compactor["executors"] = {"cpu": "100m"}
    return {**TRIAL, "compactor": compactor}


def on_s3(mode: str, root: str, secret: str, port: int) -> dict[str, Any]:
    """The same on an object store that listens on a port of its own."""
    values = compacting(mode)
    values["compactor"].update({"root": root, "environmentSecret": secret, "volumeClaim": ""})
    return {**values, "networkPolicy": {"objectStorePort": port}}


def entered(host: str, secret: str) -> dict[str, Any]:
    """The same behind an Ingress, with a public name."""
    return {**TRIAL, "ingress": {"enabled": True, "host": host, "tlsSecret": secret}}
