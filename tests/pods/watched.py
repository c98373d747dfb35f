"""Metrics of the pods, and the objects for the Prometheus operator where its kinds are there."""

from __future__ import annotations

import urllib.request

import pytest

from . import monitors, topologies
from .trial import SERVICES, Trial

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("waits")]


def test_every_pod_tells_its_metrics(trial: Trial) -> None:
    for service in SERVICES:
        for name, pod in trial.release.pods(service).items():
            with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9464/metrics", timeout=10) as answer:
                text = answer.read().decode()
            assert "\nanabranch_" in text, name


def test_monitors_and_rules_are_taken_where_their_kinds_are_there(trial: Trial) -> None:
    monitors.add_kinds(trial.release.api)
    trial.release.upgrade(topologies.watched())
    monitor, rules = monitors.monitor(trial.release), monitors.rules(trial.release)
    assert len([one["alert"] for group in rules for one in group["rules"] if "alert" in one]) >= 20
    # A monitor finds the Services by their labels, and their ports by name.
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    found = [one for one in trial.release.listed("v1/services") if wanted <= one["metadata"]["labels"].items()]
    ports = {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
    scraped = [one for one in found if ports & {port.get("name") for port in one["spec"]["ports"]}]
    assert len(scraped) == len(SERVICES)
