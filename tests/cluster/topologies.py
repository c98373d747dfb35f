"""The chart's own topologies, as they are installed, with the objects that they find in their namespace."""

from __future__ import annotations

import copy
from typing import Any

from tests.chart.conftest import topology

from .release import Release

TRIAL: dict[str, Any] = {
    "bundledPostgres": {"enabled": True},
    "auth": {"hs256": {"enabled": True}},
    "services": {"defaults": {"replicas": 1}},
}
"""Everything in the cluster, one pod of each service; the chart makes the passwords."""
TRIAL_SECRETS = {f"rel-anabranch-{name}" for name in ("postgres", "tokens", "tls", "postgres-tls")}
"""The Secrets that it has: two of passwords and keys, two of certificates."""
OPTIONAL_KINDS = ("serviceMonitor", "prometheusRule", "gateway")
"""Values whose objects are of kinds that a bare Kubernetes does not have."""


def public() -> dict[str, Any]:
    """Autoscaling, Ingress, policies, and compaction with executors as pods, on a Postgres of one's own."""
    values = copy.deepcopy(topology("public"))
    values["compactor"] = copy.deepcopy(topology("compact-pods")["compactor"])
    return without_optional_kinds(values)


def without_optional_kinds(values: dict[str, Any]) -> dict[str, Any]:
    """Values without objects of the kinds that not every cluster has."""
    left = copy.deepcopy(values)
    for name in OPTIONAL_KINDS:
        left.pop(name, None)
    if left.get("tls", {}).pop("certManager", None):
        left["tls"] = {"secretName": "services-tls", "serverName": "anabranch.example.org"}
    return left


PROVIDED: dict[str, dict[str, str]] = {
    "db": {"password": "p@:/#?%[]&$()"},
    "cluster-app": {"uri": "postgresql://db.example.org/anabranch"},
    "tokens": {"secret": "0123456789abcdef0123456789abcdef"},
    "lake-credentials": {"AWS_ACCESS_KEY_ID": "x"},
    "services-tls": {"tls.crt": "x", "tls.key": "x", "ca.crt": "x"},
    "postgres-tls": {"tls.crt": "x", "tls.key": "x", "ca.crt": "x"},
    "postgres-ca": {"ca.crt": "x", "root.crt": "x"},
    "registry": {},
}
"""The Secrets that topologies name as their users' own."""


def provide(release: Release) -> None:
    """Make these Secrets, and the claim that is their users' own, too."""
    for name, data in PROVIDED.items():
        release.api.create(
            release.at("v1/secrets"), {"metadata": {"name": name}, "type": "own/any", "stringData": data}
        )
    claim = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    release.api.create(release.at("v1/persistentvolumeclaims"), {"metadata": {"name": "lake"}, "spec": claim})
