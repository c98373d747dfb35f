"""The tests on a real API server, which are not run everywhere, expect of the chart what it renders: the Secrets that
it makes, and that each pod finds the Secrets, ConfigMaps and keys that it names."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster import changed, release, topologies, wants

from .cluster import cluster
from .conftest import Helm, Objects, of_kind, pod_specs, topology

INSTALLED: dict[str, dict[str, Any]] = {
    "trial": topologies.TRIAL,
    "more": changed._more(),
    "public": topologies.public(),
    "compact-pods": topology("compact-pods"),
}
"""The values that those tests install."""


def rendered(helm: Helm, values: dict[str, Any]) -> Objects:
    with cluster() as where:
        more = ("--dry-run=server", "--kube-apiserver", where.address, "--api-versions", "v1/Secret")
        return helm.render(values, *more)


def keys(one: dict[str, Any]) -> set[str]:
    return {*one.get("data", {}), *one.get("stringData", {})}


def test_the_secrets_of_the_trial_are_those_expected(helm: Helm) -> None:
    secrets = of_kind(rendered(helm, topologies.TRIAL), "Secret")
    assert secrets.keys() == topologies.TRIAL_SECRETS
    assert {one["type"] for one in secrets.values()} == set(release.MADE_TYPES)


@pytest.mark.parametrize("name", INSTALLED)
def test_every_pod_finds_all_that_it_names(helm: Helm, name: str) -> None:
    objects = rendered(helm, INSTALLED[name])
    there = {("secrets", secret): set(data) for secret, data in topologies.PROVIDED.items()}
    there |= {("secrets", secret): keys(one) for secret, one in of_kind(objects, "Secret").items()}
    there |= {("configmaps", made): keys(one) for made, one in of_kind(objects, "ConfigMap").items()}
    wanted = [
        (pod, *one)
        for pod, spec in pod_specs(objects).items()
        for one in wants.wants(spec)
        if one[0] in ("secrets", "configmaps")
    ]
    certificates = {pod for pod, _, secret, _ in wanted if secret in ("rel-anabranch-tls", "services-tls")}
    services = {f"Deployment/{name}" for name in of_kind(objects, "Deployment")}
    assert name == "public" or services <= certificates, "TLS is the default, and public says plaintext"
    for pod, kind, what, key in wanted:
        assert (kind, what) in there, pod
        assert not key or key in there[kind, what], (pod, what, key)
