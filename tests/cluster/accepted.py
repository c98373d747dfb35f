"""A real API server takes every object of every topology: unknown fields, wrong values, Pod Security."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.chart.conftest import pod_specs, topologies, topology

from .api import Refused, Thing
from .release import Release
from .topologies import without_optional_kinds

pytestmark = pytest.mark.timeout(900)
DRY = {"dryRun": "All"}


def _path(release: Release, one: Thing) -> str:
    plural = one["kind"].lower()
    plural = {"ingress": "ingresses", "networkpolicy": "networkpolicies"}.get(plural, f"{plural}s")
    return release.at(f"{one['apiVersion']}/{plural}")


@pytest.mark.parametrize("name", topologies())
def test_every_object_is_taken_as_it_is(release: Release, name: str) -> None:
    """Server-side validation is strict, so that a field that Kubernetes doesn't know is refused; a warning, such as of
    a deprecated field or of Pod Security, is as bad."""
    text = release.rendered(without_optional_kinds(topology(name)))
    objects: list[Thing] = [one for one in yaml.safe_load_all(text) if one]
    kinds = {one["kind"] for one in objects}
    assert kinds >= {"Deployment", "Service", "ConfigMap", "ServiceAccount"}
    for one in objects:
        answer = release.api.create(_path(release, one), one, **DRY)
        assert answer.warnings == [], (one["kind"], one["metadata"]["name"])


@pytest.mark.parametrize("name", topologies())
def test_every_pod_passes_restricted(release: Release, name: str) -> None:
    """A Deployment with a forbidden pod is taken with a warning; the pod itself is refused. So each is asked for."""
    objects: list[Thing] = [
        one for one in yaml.safe_load_all(release.rendered(without_optional_kinds(topology(name)))) if one
    ]
    claims = {f"{one['kind']}/{one['metadata']['name']}": _claims(one) for one in objects}
    for where, spec in pod_specs(objects).items():
        # The account comes with an install; here only the pod's own fields are asked about.
        own = {key: value for key, value in spec.items() if key != "serviceAccountName"}
        # Spark puts the image in.
        containers = [{"image": "any", **container} for container in own["containers"]]
        filled = {"containers": containers, "volumes": [*own.get("volumes", []), *claims[where]]}
        pod = {"metadata": {"generateName": "pod-"}, "spec": {**own, **filled}}
        answer = release.api.create(release.at("v1/pods"), pod, **DRY)
        assert answer.warnings == [], where


def _claims(one: Thing) -> list[Thing]:
    """The volumes that the controller of StatefulSets puts into its pods."""
    names = [claim["metadata"]["name"] for claim in one.get("spec", {}).get("volumeClaimTemplates", [])]
    return [{"name": name, "persistentVolumeClaim": {"claimName": f"{name}-0"}} for name in names]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"hostNetwork": True}, "restricted"),
        ({"securityContext": {"runAsNonRoot": False}}, "restricted"),
        ({"dnsPolice": "Default"}, "unknown field"),
    ],
)
def test_what_is_wrong_is_refused(release: Release, changed: dict[str, Any], told: str) -> None:
    """The two tests above can fail."""
    text = release.rendered(topology("minimal"))
    spec = next(iter(pod_specs([one for one in yaml.safe_load_all(text) if one]).values()))
    pod = {"metadata": {"name": "wrong"}, "spec": {**spec, "serviceAccountName": "default", **changed}}
    with pytest.raises(Refused, match=told):
        release.api.create(release.at("v1/pods"), pod, **DRY)


def test_a_pod_that_would_be_refused_is_warned_of(release: Release) -> None:
    """A Deployment is taken all the same, so that only the warning tells."""
    objects = [one for one in yaml.safe_load_all(release.rendered(topology("minimal"))) if one]
    deployment = next(one for one in objects if one["kind"] == "Deployment")
    del deployment["spec"]["template"]["spec"]["securityContext"]["seccompProfile"]
    [warning] = release.api.create(_path(release, deployment), deployment, **DRY).warnings
    assert "seccompProfile" in warning
