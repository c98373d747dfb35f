"""A Prometheus in the cluster: it finds each pod by what the chart installs, has the chart's rules, and an alert fires
where pods are broken, and ends when they are well."""

from __future__ import annotations

import pytest
from tests.chart.conftest import CHART
from tests.cluster.api import until

from .outage import Outage
from .prometheus import Prometheus
from .trial import SERVICES, Trial

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("waits")]
FOUND_S = 120


def test_every_pod_is_found_and_read(trial: Trial, watching: Prometheus) -> None:
    pods = {name for service in SERVICES for name in trial.release.pods(service)}
    until("every pod is read", FOUND_S, lambda: _up(watching) == pods)
    found = watching.ask("query?query=anabranch_ready")["result"]
    assert {one["metric"]["job"] for one in found} == set(SERVICES)
    assert {one["metric"]["pod"] for one in found} == pods


def _up(watching: Prometheus) -> set[str]:
    return {pod for pod, health in watching.scraped().items() if health == "up"}


def test_every_alert_is_loaded_and_can_be_evaluated(watching: Prometheus) -> None:
    names = {file.stem for file in (CHART / "alerts").glob("*.yaml")}
    until("every rule was evaluated", FOUND_S, lambda: set(watching.rules().values()) == {"ok"})
    assert names <= watching.rules().keys()


def test_an_alert_fires_while_services_are_not_ready_and_ends_when_they_are(outage: Outage) -> None:
    assert outage.fired == set(SERVICES)
    assert outage.resolved
