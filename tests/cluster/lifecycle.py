"""Install, upgrade, rollback and uninstall on a real API server, with real controllers; only the machines pretend."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from .api import Thing, until
from .machines import Machines
from .release import HelmFailed, Release
from .topologies import TRIAL, TRIAL_SECRETS, provide, public

pytestmark = pytest.mark.timeout(2700)
SERVICES = {"ingest", "conflict-resolver", "snapshot", "retention-janitor"}
GONE_TIMEOUT_S = 300


def _jobs(release: Release) -> dict[str, Thing]:
    return {one["metadata"]["name"]: one for one in release.listed("batch/v1/jobs")}


def _uids(pods: dict[str, Thing]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods.values()}


def _debugging(values: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(values)
    changed["services"]["defaults"]["settings"] = {"log_level": "debug"}
    return changed


def test_everything_in_the_cluster_from_install_to_uninstall(release: Release) -> None:
    """P01, P04: the trial with the bundled Postgres, its passwords made by the chart."""
    release.install(TRIAL)
    components = {pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in release.pods().values()}
    assert components == SERVICES | {"postgres"}
    for service in SERVICES:
        release.await_behind(f"rel-anabranch-{service}", "grpc", 1)
    release.await_behind("rel-anabranch-postgres", "postgres", 1)
    until("the first migration has run", GONE_TIMEOUT_S, lambda: _succeeded(release, "rel-anabranch-first-migration"))
    secrets, pods = release.secrets(), _uids(release.settled())
    assert secrets.keys() == TRIAL_SECRETS

    release.upgrade(TRIAL)
    assert release.secrets() == secrets
    assert _uids(release.settled()) == pods, "an upgrade without a change moves no pod"
    assert _jobs(release).keys() == {"rel-anabranch-migration"}

    release.upgrade(_debugging(TRIAL))
    rolled = _uids(release.settled())
    assert release.secrets() == secrets
    assert len(rolled) == len(pods)
    kept = rolled & pods
    assert kept == _uids(release.pods("postgres")), "every service rolls, and Postgres stays"
    settings = release.one("v1/configmaps", "rel-anabranch-ingest")["data"]
    assert settings["ANABRANCH_LOG_LEVEL"] == "debug"

    release.rollback()
    assert release.secrets() == secrets
    settings = release.one("v1/configmaps", "rel-anabranch-ingest")["data"]
    assert "ANABRANCH_LOG_LEVEL" not in settings
    assert not _uids(release.settled()) & (rolled - kept), "pods with the change are gone"
    assert _jobs(release).keys() == {"rel-anabranch-migration"}

    # The test's program is not run here, no more than any other: its pod is taken and finds what it names.
    assert "Phase:          Succeeded" in release.test()
    release.uninstall()
    until("what is left is what is documented", GONE_TIMEOUT_S, lambda: _left(release) <= DOCUMENTED)
    assert _left(release) == DOCUMENTED
    for path in ("batch/v1/jobs", "v1/pods", "v1/persistentvolumeclaims"):
        query = {"labelSelector": "app.kubernetes.io/instance=rel", "propagationPolicy": "Background"}
        release.api.call("DELETE", release.at(path), query=query)
    until("nothing is left", GONE_TIMEOUT_S, lambda: not _left(release))


DOCUMENTED = {
    ("persistentvolumeclaims", "data-rel-anabranch-postgres-0"),
    ("jobs", "rel-anabranch-migration"),
    ("pods", "rel-anabranch-smoke"),
}
"""The objects that `helm uninstall` leaves, and `kubectl delete` by label takes away, as the chart's README says."""
ALWAYS = {("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")}
"""The objects that every namespace has."""


def _left(release: Release) -> set[tuple[str, str]]:
    """Objects of every kind that the namespace still has, by kind and name; a Job stands for its pods."""
    found: set[tuple[str, str]] = set()
    for version in _versions(release):
        for kind in release.api.get(version)["resources"]:
            if not kind["namespaced"] or "list" not in kind["verbs"] or kind["name"] in ("events", "endpoints"):
                continue
            for one in release.api.items(f"{version}/namespaces/{release.space}/{kind['name']}"):
                owners = {owner["kind"] for owner in one["metadata"].get("ownerReferences", [])}
                if owners != {"Job"}:
                    found.add((kind["name"], one["metadata"]["name"]))
    return found - ALWAYS


def _versions(release: Release) -> list[str]:
    groups = release.api.get("/apis")["groups"]
    return ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]


def _succeeded(release: Release, name: str) -> bool:
    return bool(release.one("batch/v1/jobs", name)["status"].get("succeeded", 0) == 1)


def test_a_postgres_of_ones_own_with_autoscaling_and_compaction(release: Release) -> None:
    """The public topology, compaction with executors as pods: Ingress, policies, HPA, PDB and CronJob are there, the
    first migration is a hook that has run before anything else is, and what an HPA set is kept by an upgrade."""
    values = public()
    provide(release)
    release.install(values)
    migrated = _jobs(release)["rel-anabranch-migration"]["status"]
    assert migrated["succeeded"] == 1
    for pod in release.pods().values():
        assert pod["metadata"]["creationTimestamp"] >= migrated["completionTime"], "no service before the schema"
    assert "rel-anabranch-migration" not in release.secrets(), "the hook's own Secret goes with it"
    for path, count in {
        "networking.k8s.io/v1/ingresses": 1,
        "networking.k8s.io/v1/networkpolicies": 5,
        "autoscaling/v2/horizontalpodautoscalers": 1,
        "policy/v1/poddisruptionbudgets": 3,
        "batch/v1/cronjobs": 1,
    }.items():
        assert len(release.listed(path)) == count, path
    # Only the autoscaler says how many; without metrics it holds to the fewest.
    release.await_behind("rel-anabranch-ingest", "grpc", 3)
    _budgets_see_pods(release)

    path = f"{release.at('apps/v1/deployments')}/rel-anabranch-ingest/scale"
    release.api.patch(path, {"spec": {"replicas": 5}})
    release.await_behind("rel-anabranch-ingest", "grpc", 5)
    pods = _uids(release.settled())
    release.upgrade(values)
    assert _uids(release.settled()) == pods
    _run_compaction(release)
    release.uninstall()


def _budgets_see_pods(release: Release) -> None:
    """Each allows one pod to go, so its selector finds them."""

    def seen() -> bool:
        budgets = release.listed("policy/v1/poddisruptionbudgets")
        return all(one["status"].get("disruptionsAllowed") == 1 for one in budgets)

    until("every budget allows one pod to go", GONE_TIMEOUT_S, seen)


def _run_compaction(release: Release) -> None:
    """As the schedule would: a Job from the CronJob's template; its pod finds all that it names."""
    spec = release.one("batch/v1/cronjobs", "rel-anabranch-compactor")["spec"]["jobTemplate"]["spec"]
    release.api.create(release.at("batch/v1/jobs"), {"metadata": {"name": "compaction"}, "spec": spec})
    until("the compaction's pod could run", GONE_TIMEOUT_S, lambda: _succeeded(release, "compaction"))


def test_a_failed_migration_leaves_the_release_as_it_was(release: Release, pretended: Machines) -> None:
    values = {**_debugging(TRIAL), "migration": {"retries": 0}}
    release.install(TRIAL)
    pods = _uids(release.settled())
    pretended.failing.add("migration")
    with pytest.raises(HelmFailed, match="rel-anabranch-migration"):
        release.upgrade(values)
    assert _uids(release.settled()) == pods
    settings = release.one("v1/configmaps", "rel-anabranch-ingest")["data"]
    assert "ANABRANCH_LOG_LEVEL" not in settings
    pretended.failing.clear()
    release.upgrade(values)
    settings = release.one("v1/configmaps", "rel-anabranch-ingest")["data"]
    assert settings["ANABRANCH_LOG_LEVEL"] == "debug"


def test_back_to_the_first_install(release: Release) -> None:
    """P04: install, upgrade, upgrade, and back by two; then forward again."""
    release.install(TRIAL)
    secrets = release.secrets()
    release.upgrade(TRIAL)
    release.upgrade(_debugging(TRIAL))
    release.rollback("1")
    assert release.secrets() == secrets
    assert "ANABRANCH_LOG_LEVEL" not in release.one("v1/configmaps", "rel-anabranch-ingest")["data"]
    release.upgrade(TRIAL)
    assert release.secrets() == secrets
    assert _jobs(release).keys() == {"rel-anabranch-migration"}
