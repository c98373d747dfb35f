"""The rights of the chart's accounts, tried with tokens of theirs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from tests.chart.conftest import topology

from .api import Api, Refused, Thing
from .release import Release
from .topologies import provide

pytestmark = pytest.mark.timeout(900)
SERVICES = ("ingest", "conflict-resolver", "snapshot", "retention-janitor")
COMPACTOR = "rel-anabranch-compactor"
EXECUTORS = {"spark-role": "executor"}


def _as_account(release: Release, name: str) -> Api:
    request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}}
    answer = release.api.create(f"{release.at('v1/serviceaccounts')}/{name}/token", request)
    return dataclasses.replace(release.api, token=answer.body["status"]["token"])


def _installed(release: Release) -> None:
    provide(release)
    release.install(topology("compact-pods"))


def _executor(release: Release) -> Thing:
    """As Spark makes one: the chart's template, with a name, the image, an account and labels."""
    pod: dict[str, Any] = yaml.safe_load(release.one("v1/configmaps", COMPACTOR)["data"]["pod.yaml"])
    pod["metadata"]["name"] = "executor-1"
    pod["metadata"]["labels"] |= EXECUTORS
    pod["spec"] |= {"restartPolicy": "Never", "serviceAccountName": f"{COMPACTOR}-executor"}
    pod["spec"]["containers"][0]["image"] = "any"
    return pod


def test_a_driver_makes_executors_and_clears_them_away(release: Release) -> None:
    """Pod Security has nothing against them, and they find all that they name."""
    _installed(release)
    driver = _as_account(release, COMPACTOR)
    driver.create(release.at("v1/configmaps"), {"metadata": {"name": "executor", "labels": EXECUTORS}})
    made = driver.create(release.at("v1/pods"), _executor(release))
    assert made.warnings == []
    query = {"labelSelector": "spark-role=executor"}
    assert [pod["metadata"]["name"] for pod in driver.items(release.at("v1/pods"), **query)] == ["executor-1"]
    for path in ("v1/pods", "v1/configmaps", "v1/persistentvolumeclaims"):
        driver.call("DELETE", release.at(path), query=query)
    assert release.listed("v1/configmaps", **query) == []


def test_nobody_may_do_more(release: Release) -> None:
    _installed(release)
    driver = _as_account(release, COMPACTOR)
    for path in (release.at("v1/secrets"), release.at("apps/v1/deployments"), "/api/v1/namespaces/default/pods"):
        _refused(driver, path)
    for account in (f"{COMPACTOR}-executor", *(f"rel-anabranch-{service}" for service in SERVICES)):
        able = _as_account(release, account)
        for path in ("v1/pods", "v1/secrets", "v1/configmaps"):
            _refused(able, release.at(path))


def _refused(api: Api, path: str) -> None:
    with pytest.raises(Refused, match="forbidden") as refused:
        api.items(path)
    assert refused.value.code == 403
