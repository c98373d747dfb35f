"""Alerts and dashboards: they name what the services really have, each alert has its runbook and its tests, and what is
drawn neither overlaps nor is empty."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from anabranch.runtime.metrics import METRICS, Metric, prometheus_name

from .conftest import CHART, Helm, of_kind, topology

ALERTS = sorted((CHART / "alerts").glob("*.yaml"))
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
NAME = re.compile(r"\banabranch_[a-z_]+")
SELECTOR = re.compile(r"(anabranch_[a-z_]+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")
OF_PROMETHEUS = frozenset({"job", "instance", "le"})
FORBIDDEN = frozenset({"node", "node_id", "principal", "subject", "device", "row", "key", "batch"})
DATABASES = 5
"""So many databases the bound on series is reckoned for."""
VALUES = {
    "database": DATABASES,
    "status": 3,
    "outcome": 4,
    "method": 12,
    "code": 17,
    "reason": 40,
    "cause": 12,
    "state": 2,
    "what": 7,
    "seen": 5,
    "hold": 5,
    "source": 2,
    "result": 5,
    "why": 9,
}
"""Most values of a label in one process."""
TOGETHER = {
    ("method", "code"): 40,
    ("database", "status", "reason"): DATABASES * 25,
    ("database", "reason"): DATABASES * 25,
    ("database", "source", "why"): DATABASES * 9,
}
"""Labels that don't come in every combination: a method ends with a few codes; a reason belongs to one status; why a
pull came from Postgres is not said of one from Parquet."""


def _series_names() -> dict[str, Metric]:
    names: dict[str, Metric] = {}
    for metric in METRICS:
        base = prometheus_name(metric)
        for name in [f"{base}_bucket", f"{base}_sum", f"{base}_count"] if metric.kind == "histogram" else [base]:
            names[name] = metric
    return names


def _expressions() -> list[tuple[str, str]]:
    """Every expression, with where it stands."""
    found = []
    for file in ALERTS:
        for group in yaml.safe_load(file.read_text())["groups"]:
            found += [(file.name, rule["expr"]) for rule in group["rules"]]
    for file in DASHBOARDS:
        dashboard = json.loads(file.read_text())
        for panel in dashboard["panels"]:
            found += [(f"{file.name}: {panel['title']}", target["expr"]) for target in panel.get("targets", [])]
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                found.append((f"{file.name}: ${variable['name']}", variable["query"]["query"]))
    return found


def test_expressions_name_declared_metrics_and_their_labels() -> None:
    names = _series_names()
    assert len(_expressions()) > 60
    for where, expression in _expressions():
        used = NAME.findall(expression)
        assert used, where
        labels = set(OF_PROMETHEUS)
        for name in used:
            assert name in names, f"{where}: {name} is not in the table of metrics"
            labels |= set(names[name].labels)
        for name, selectors in SELECTOR.findall(expression):
            given = {part.split("=")[0].strip("!~ ") for part in selectors.split(",") if part}
            assert given <= set(names[name].labels) | OF_PROMETHEUS, f"{where}: {name} has no such label"
        for grouping in GROUPING.findall(expression):
            assert {label.strip() for label in grouping.split(",") if label.strip()} <= labels, where


def test_counters_are_never_shown_as_levels() -> None:
    names = _series_names()
    for where, expression in _expressions():
        if where.endswith("$database"):
            continue
        for found in re.finditer(NAME, expression):
            if names[found[0]].kind == "counter" or found[0].endswith("_bucket"):
                before = expression[: found.start()]
                bare = not re.search(r"(rate|increase|max_over_time)\($", before)
                # An alert on the first of its kind looks whether the counter was there before.
                assert not bare or "offset" in expression, f"{where}: {found[0]}"


def test_every_metric_is_drawn_somewhere() -> None:
    drawn = " ".join(expression for where, expression in _expressions() if ".json" in where)
    for metric in METRICS:
        assert prometheus_name(metric) in drawn, f"{metric.name} is on no dashboard"


def test_no_label_grows_with_devices_and_series_are_bounded() -> None:
    """V03: whatever the number of devices, a process has under 2,000 series (with five databases)."""
    total = 0
    for metric in METRICS:
        assert not set(metric.labels) & FORBIDDEN, metric.name
        combinations = TOGETHER.get(metric.labels)
        if combinations is None:
            combinations = 1
            for label in metric.labels:
                combinations *= VALUES[label]
        # One for each bound, the last bucket, sum and count.
        total += combinations * (len(metric.bounds) + 3 if metric.kind == "histogram" else 1)
    assert total < 2_000, "all services' metrics in one process would be more"


@pytest.mark.parametrize("file", ALERTS, ids=lambda file: file.stem)
def test_an_alert_has_a_runbook_and_its_tests(file: Path) -> None:
    [group] = yaml.safe_load(file.read_text())["groups"]
    [rule] = group["rules"]
    assert rule["alert"] == group["name"] == file.stem
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"].keys() == {"summary", "description"}
    runbook = (CHART / "runbooks" / f"{file.stem}.md").read_text()
    assert runbook.startswith(f"# {file.stem}\n")
    assert "\n## Look\n" in runbook
    assert "\n## Do\n" in runbook
    for linked in re.findall(r"\]\(([^)]+)\)", runbook):
        assert (CHART / "runbooks" / linked).exists(), linked
    fires = yaml.safe_load((CHART / "tests" / "alerts" / f"{file.stem}.yaml").read_text())
    assert any(one["exp_alerts"] for test in fires["tests"] for one in test["alert_rule_test"])
    for name in ("silent-idle", "silent-clock"):
        silent = yaml.safe_load((CHART / "tests" / "alerts" / f"{name}.yaml").read_text())
        asked = [one for test in silent["tests"] for one in test["alert_rule_test"] if one["alertname"] == file.stem]
        assert len(asked) == 2
        assert all(one["exp_alerts"] == [] for one in asked)


def test_there_is_no_runbook_without_its_alert() -> None:
    assert {file.stem for file in (CHART / "runbooks").glob("*.md")} == {file.stem for file in ALERTS}


def test_alerts_fire_when_they_should_and_are_silent_otherwise(promtool: Path) -> None:
    """Each fires on what it is for; none does in an idle hour, or when a clock steps back under load."""
    tests = [str(file) for file in sorted((CHART / "tests" / "alerts").glob("*.yaml"))]
    done = subprocess.run(
        [str(promtool), "test", "rules", *tests], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("SUCCESS") >= len(ALERTS) + 2


def test_the_rules_go_into_the_cluster_as_they_are(helm: Helm, promtool: Path, tmp_path: Path) -> None:
    [rule] = of_kind(helm.render(topology("public")), "PrometheusRule").values()
    rendered = {one["name"]: one["rules"][0] for one in rule["spec"]["groups"]}
    assert rendered.keys() == {file.stem for file in ALERTS}
    for file in ALERTS:
        own = yaml.safe_load(file.read_text())["groups"][0]["rules"][0]
        url = rendered[file.stem]["annotations"].pop("runbook_url")
        assert url == f"https://docs.example.org/runbooks/{file.stem}.md"
        assert rendered[file.stem] == own
    groups = tmp_path / "rules.yaml"
    groups.write_text(yaml.safe_dump({"groups": rule["spec"]["groups"]}))
    subprocess.run([str(promtool), "check", "rules", str(groups)], check=True, timeout=60, capture_output=True)


def test_dashboards_go_into_the_cluster_as_they_are(helm: Helm) -> None:
    objects = helm.render(topology("public"))
    found: dict[str, Any] = {}
    for one in of_kind(objects, "ConfigMap").values():
        if one["metadata"]["labels"].get("grafana_dashboard") == "1":
            found |= one["data"]
            assert one["metadata"]["annotations"] == {"grafana_folder": "Anabranch"}
    assert found.keys() == {f"anabranch-{file.name}" for file in DASHBOARDS}
    for file in DASHBOARDS:
        assert json.loads(found[f"anabranch-{file.name}"]) == json.loads(file.read_text())


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_the_layout_has_no_overlaps_and_no_empty_panel(file: Path) -> None:
    dashboard = json.loads(file.read_text())
    assert dashboard["uid"] == f"anabranch-{file.stem}"
    taken: dict[tuple[int, int], str] = {}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken.get((x, y))}"
                taken[x, y] = panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel["description"]
        assert panel["targets"]
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert target["expr"].strip()
            assert target["legendFormat"]
    # Nothing is left blank within what is drawn.
    rows = {y for _, y in taken}
    assert rows == set(range(max(rows) + 1))
    assert all((x, y) in taken for y in rows for x in range(24)), "a hole in the layout"
