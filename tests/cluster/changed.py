"""An installed release may become some things and not others; the cluster refuses those."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.chart.conftest import topology

from .api import until
from .release import HelmFailed, Release
from .topologies import TRIAL, provide

pytestmark = pytest.mark.timeout(1800)
SCALED_TIMEOUT_S = 300
OPTIONAL = {
    "networking.k8s.io/v1/ingresses": 1,
    "autoscaling/v2/horizontalpodautoscalers": 1,
    "policy/v1/poddisruptionbudgets": 3,
    "batch/v1/cronjobs": 1,
    "rbac.authorization.k8s.io/v1/roles": 1,
}


def _more() -> dict[str, Any]:
    values = copy.deepcopy(TRIAL)
    values["services"] = {
        "defaults": {"replicas": 2, "podLabels": {"team": "sync"}, "preStopSeconds": 1},
        "ingest": {"autoscaling": {"enabled": True, "minReplicas": 3}},
    }
    values["compactor"] = topology("compact-pods")["compactor"]
    values["ingress"] = {"enabled": True, "host": "sync.example.org", "tlsSecret": "sync-tls"}
    return values


def test_all_that_can_be_turned_on_later_can_be_turned_off_again(release: Release) -> None:
    """More pods, labels, an Ingress, an autoscaler, compaction: the server takes each in a release that runs."""
    provide(release)
    release.install(TRIAL)
    secrets = release.secrets()
    assert {path: len(release.listed(path)) for path in OPTIONAL} == dict.fromkeys(OPTIONAL, 0)

    release.upgrade(_more())
    assert {path: len(release.listed(path)) for path in OPTIONAL} == OPTIONAL
    release.await_behind("rel-anabranch-ingest", "grpc", 3)
    assert all(pod["metadata"]["labels"]["team"] == "sync" for pod in release.settled().values() if _ours(pod))

    release.upgrade(TRIAL)
    assert {path: len(release.listed(path)) for path in OPTIONAL} == dict.fromkeys(OPTIONAL, 0)
    assert len(release.settled()) == 5
    assert release.secrets() == secrets


def _ours(pod: dict[str, Any]) -> bool:
    return bool(pod["metadata"]["labels"]["app.kubernetes.io/component"] != "postgres")


def test_the_bundled_volume_keeps_its_size(release: Release) -> None:
    """As the chart's README says: a StatefulSet's claims can't be changed, and the release goes on as it was."""
    release.install(TRIAL)
    pods = release.settled().keys()
    with pytest.raises(HelmFailed, match="updates to statefulset spec"):
        release.upgrade({**TRIAL, "bundledPostgres": {"enabled": True, "storageSize": "16Gi"}})
    assert release.settled().keys() == pods
    release.upgrade(TRIAL)
    assert release.settled().keys() == pods


def test_an_autoscaler_turned_on_later_has_its_fewest_soon(release: Release) -> None:
    """Helm takes the number of pods back and the server's default is one, until the autoscaler looks; as the chart's
    README says."""
    release.install({**TRIAL, "services": {"defaults": {"replicas": 2}}})
    pods = {pod["metadata"]["uid"] for pod in release.pods("ingest").values()}
    release.upgrade({**TRIAL, "services": {"defaults": {"replicas": 2}, "ingest": {"autoscaling": {"enabled": True}}}})
    until("ingest has its fewest", SCALED_TIMEOUT_S, lambda: len(release.pods("ingest")) == 2)
    kept = {pod["metadata"]["uid"] for pod in release.settled().values()} & pods
    assert kept, "there is never none"
