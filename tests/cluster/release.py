"""Helm on a cluster: what is done with a release, and what is looked at afterwards."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chart.conftest import CHART

from .api import Api, Thing, until

Values = Mapping[str, Any]
WAIT_S = 600
"""The longest that Helm waits for pods and hooks; it gets as long again to end."""
COMPONENT = "app.kubernetes.io/component"
MADE_TYPES = ("Opaque", "kubernetes.io/tls")
"""Types of the Secrets that the chart makes; Helm's own, and those of its users, are of others."""


class HelmFailed(Exception):
    """Helm's own message."""


@dataclass(frozen=True, slots=True)
class Release:
    """The release `rel` in a namespace. Every call of Helm raises HelmFailed, and TimeoutExpired."""

    helm: Path
    kubeconfig: Path
    home: Path
    api: Api
    space: str

    def install(self, values: Values, *more: str) -> None:
        """Install, and wait until all is ready."""
        self._helm("install", "rel", str(CHART), *more, *self._waiting(), values=values)

    def upgrade(self, values: Values, *more: str) -> None:
        """Upgrade, and wait until all is ready."""
        self._helm("upgrade", "rel", str(CHART), *more, *self._waiting(), values=values)

    def rollback(self, *revision: str) -> None:
        """Go back to the revision before, or to the one given."""
        self._helm("rollback", "rel", *revision, *self._waiting())

    def uninstall(self) -> None:
        """Remove it, and wait until it is gone."""
        self._helm("uninstall", "rel", *self._waiting())

    def test(self) -> str:
        """Run the chart's test, and what Helm says of it."""
        return self._helm("test", "rel", "--timeout", f"{WAIT_S}s")

    def rendered(self, values: Values, *more: str) -> str:
        """The objects that an install would send, with this cluster asked for what there is."""
        return self._helm("template", "rel", str(CHART), "--dry-run=server", "--validate", *more, values=values)

    def listed(self, path: str, **query: str) -> list[Thing]:
        """Objects of the namespace; ``path`` as `apps/v1/deployments` or `v1/pods`."""
        return self.api.items(self.at(path), **query)

    def one(self, path: str, name: str) -> Thing:
        """An object of the namespace."""
        return self.api.get(f"{self.at(path)}/{name}")

    def at(self, path: str) -> str:
        """Its path in the API."""
        version, kind = path.rsplit("/", 1)
        return f"/{'apis' if '/' in version else 'api'}/{version}/namespaces/{self.space}/{kind}"

    def pods(self, component: str = "") -> dict[str, Thing]:
        """Pods that live, by name: of a component, or of all services."""
        return {
            pod["metadata"]["name"]: pod
            for pod in self.listed("v1/pods")
            if pod["spec"]["restartPolicy"] == "Always"
            and not pod["metadata"].get("deletionTimestamp")
            and component in ("", pod["metadata"]["labels"].get(COMPONENT))
        }

    def settled(self) -> dict[str, Thing]:
        """Pods that live once no Deployment has one of an older kind, by name: Helm waits for new pods only."""

        def look() -> bool:
            return all(_settled(one) for one in self.listed("apps/v1/deployments"))

        until("all Deployments have the pods that they want", WAIT_S, look)
        return self.pods()

    def behind(self, service: str, port: str) -> list[str]:
        """Addresses of ready pods behind a Service's port."""
        label = f"kubernetes.io/service-name={service}"
        return [
            address
            for part in self.listed("discovery.k8s.io/v1/endpointslices", labelSelector=label)
            if any(one["name"] == port for one in part["ports"] or [])
            for endpoint in part["endpoints"] or []
            if endpoint["conditions"]["ready"]
            for address in endpoint["addresses"]
        ]

    def await_behind(self, service: str, port: str, count: int) -> None:
        """Wait until so many are."""
        until(f"{service} has {count} ready pods", WAIT_S, lambda: len(self.behind(service, port)) == count)

    def secrets(self) -> dict[str, dict[str, str]]:
        """Data of the Secrets that the chart made, by name."""
        found = self.listed("v1/secrets")
        return {one["metadata"]["name"]: one.get("data", {}) for one in found if one["type"] in MADE_TYPES}

    def _waiting(self) -> tuple[str, ...]:
        return ("--wait", "--timeout", f"{WAIT_S}s")

    def _helm(self, *arguments: str, values: Values | None = None) -> str:
        given = () if values is None else ("--values", "-")
        # Where Helm keeps things, and nothing of whoever runs the tests.
        homes = {f"HELM_{name}_HOME": str(self.home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        done = subprocess.run(
            [self.helm, *arguments, *given, "--namespace", self.space, "--kubeconfig", self.kubeconfig],
            input=None if values is None else json.dumps(dict(values)),
            env={**os.environ, **homes},
            capture_output=True,
            text=True,
            timeout=2 * WAIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise HelmFailed(f"helm {arguments[0]}: {done.stderr}{done.stdout[-2000:]}")
        return done.stdout


def _settled(deployment: Thing) -> bool:
    status, wanted = deployment["status"], deployment["spec"]["replicas"]
    seen = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    return seen and {status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")} == {wanted}
