"""Values of the chart as they are installed where pods run."""

from __future__ import annotations

from typing import Any

from tests.cluster import topologies

POSTGRES = "docker.io/local/postgres:1"
TRIAL: dict[str, Any] = {**topologies.TRIAL, "bundledPostgres": {"enabled": True, "image": POSTGRES}}
"""Everything in the cluster, one pod of each service, as the chart has it but for the source of Postgres's image."""
