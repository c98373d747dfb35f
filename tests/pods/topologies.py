"""Values of the chart as they are installed where pods run."""

from __future__ import annotations

from typing import Any

from tests.cluster import topologies

POSTGRES = "docker.io/local/postgres:1"
TRIAL: dict[str, Any] = {**topologies.TRIAL, "bundledPostgres": {"enabled": True, "image": POSTGRES}}
"""Everything in the cluster, one pod of each service, as the chart has it but for the source of Postgres's image."""


def changed() -> dict[str, Any]:
    """The same with other pods of each service, as a next release has them."""
    defaults = {**TRIAL["services"]["defaults"], "podAnnotations": {"example.org/release": "next"}}
    return {**TRIAL, "services": {"defaults": defaults}}


def compacting(mode: str) -> dict[str, Any]:
    """The trial with the compaction, on a claim, when a test says so."""
    compactor: dict[str, Any] = {"enabled": True, "mode": mode, "volumeClaim": "lake", "schedule": "0 0 1 1 *"}
    # Pods that wait for half of the machine would wait for each other.
    compactor["resources"] = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "3Gi"}}
    compactor["executors"] = {"cpu": "100m"}
    return {**TRIAL, "compactor": compactor}
