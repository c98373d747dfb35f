"""Upgrades leave generated secrets as they are, and every field that Kubernetes does not let change."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from .cluster import Cluster, cluster
from .conftest import CHART, PLAIN, Helm, Objects, of_kind, topologies, topology

HS256: dict[str, Any] = {"auth": {"hs256": {"enabled": True}}}
GENERATED: dict[str, Any] = {"bundledPostgres": {"enabled": True}, **HS256}
UNSAFE: dict[str, Any] = {"postgres": {"sslMode": "disable"}}


def _against(helm: Helm, where: Cluster, *more: str) -> Objects:
    # `helm template` asks the cluster by `lookup` alone; what an install knows of it besides is said for it.
    known = ("--api-versions", "v1/Secret")
    return helm.render(GENERATED, "--dry-run=server", "--kube-apiserver", where.address, *known, *more)


def _secrets(objects: Objects) -> dict[str, dict[str, str]]:
    return {name: one["data"] for name, one in of_kind(objects, "Secret").items()}


@pytest.mark.slow
def test_generated_secrets_are_kept_over_upgrades(helm: Helm) -> None:
    """P01: an upgrade without a change leaves the secrets identical."""
    with cluster() as where:
        installed = _against(helm, where)
        assert _secrets(_against(helm, where)) != _secrets(installed), "they are random, so this test can fail"
        for name, one in of_kind(installed, "Secret").items():
            where.secrets["space", name] = one
        for _ in range(2):
            assert _secrets(_against(helm, where, "--is-upgrade")) == _secrets(installed)
        assert any("/secrets/" in path for path in where.asked)
    made = _secrets(installed)
    certificates = {"rel-anabranch-tls", "rel-anabranch-postgres-tls"}
    assert made.keys() == {"rel-anabranch-postgres", "rel-anabranch-tokens", *certificates}
    for data in made.values():
        for value in data.values():
            assert len(value) >= 32


@pytest.mark.slow
def test_an_install_tells_a_cluster_from_none(helm: Helm) -> None:
    """Helm itself asks the API which kinds there are; by that the chart knows that it may make secrets."""
    with cluster() as where:
        done = helm.dry_install(where.address, "--set", "bundledPostgres.enabled=true")
        assert "/api/v1/namespaces/space/secrets/rel-anabranch-postgres" in where.asked
    assert done.returncode == 0, done.stderr
    assert "kind: StatefulSet" in done.stdout


def test_a_given_value_goes_before_the_kept_one(helm: Helm) -> None:
    with cluster() as where:
        where.secrets["space", "rel-anabranch-postgres"] = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "rel-anabranch-postgres", "namespace": "space"},
            "data": {"password": "b2xk"},
        }
        objects = _against(helm, where, "--set", "bundledPostgres.password=new")
    assert _secrets(objects)["rel-anabranch-postgres"] == {"password": "bmV3"}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({**PLAIN, **UNSAFE, "bundledPostgres": {"enabled": True}}, "set bundledPostgres.password"),
        (
            {**PLAIN, **UNSAFE, "bundledPostgres": {"enabled": True, "password": "x"}, **HS256},
            "set auth.hs256.secret",
        ),
        ({"postgres": {"host": "db"}}, "set tls.secretName or tls.certManager.issuer.name, or tls.enabled: false"),
        ({**PLAIN, "bundledPostgres": {"enabled": True, "password": "x"}}, "set bundledPostgres.tlsSecret"),
    ],
)
def test_without_a_cluster_no_secret_is_made_up(helm: Helm, values: dict[str, Any], told: str) -> None:
    """P01: each rendering by a tool that asks no cluster would be another password."""
    assert told in helm.refusal(values)


@pytest.mark.parametrize("name", topologies())
def test_an_upgrade_changes_no_immutable_field(helm: Helm, name: str, tmp_path: Path) -> None:
    """P04: another chart, another image and other values, and back, touch nothing that can't be changed."""
    newer = tmp_path / "anabranch"
    shutil.copytree(CHART, newer)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    chart |= {"version": "9.9.9", "appVersion": "9.9.9"}
    (newer / "Chart.yaml").write_text(yaml.safe_dump(chart))
    changed = copy.deepcopy(topology(name))
    changed.setdefault("image", {}).update({"tag": "other", "digest": ""})
    changed.setdefault("services", {}).setdefault("defaults", {})["podLabels"] = {"other": "label"}
    before = helm.render(topology(name))
    # An install is what rendering stands for: the hook is then the same in both.
    after = helm.render(changed, chart=newer)
    assert before != after
    assert _immutable(before) == _immutable(after)


def _immutable(objects: Objects) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in objects:
        spec = one.get("spec", {})
        where = f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] == "Deployment":
            found[where] = spec["selector"]
        elif one["kind"] == "StatefulSet":
            allowed = {"replicas", "template", "updateStrategy", "minReadySeconds", "ordinals"}
            found[where] = {key: value for key, value in spec.items() if key not in allowed}
        elif one["kind"] == "Service":
            found[where] = spec.get("clusterIP")
        elif one["kind"] == "RoleBinding":
            found[where] = one["roleRef"]
        elif one["kind"] in ("Secret", "ConfigMap"):
            assert "immutable" not in one
        elif one["kind"] in ("Job", "Pod") and "helm.sh/hook" in one["metadata"].get("annotations", {}):
            # Made anew each time, so nothing of it has to stay.
            assert "before-hook-creation" in one["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        elif one["kind"] == "Job":
            found[where] = "made with the first install only"
    return found


def test_one_migration_is_left_after_an_upgrade(helm: Helm) -> None:
    """P04: with the bundled Postgres the first one is no hook, and goes with the first upgrade."""
    installed = of_kind(helm.render(topology("trial")), "Job")
    upgraded = of_kind(helm.render(topology("trial"), "--is-upgrade"), "Job")
    assert installed.keys() == {"rel-anabranch-first-migration"}
    assert upgraded.keys() == {"rel-anabranch-migration"}
    [job] = upgraded.values()
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-upgrade"
    plain = topology("minimal")
    assert of_kind(helm.render(plain), "Job").keys() == of_kind(helm.render(plain, "--is-upgrade"), "Job").keys()
