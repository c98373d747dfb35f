"""The tests of the chart share a real Helm, and the topologies that are rendered."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.tools import load_tool

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "anabranch"
TOPOLOGIES = CHART / "tests"
KUBERNETES = "1.34.0"

Objects = list[dict[str, Any]]
PLAIN: dict[str, Any] = {"tls": {"enabled": False}}
"""Services without TLS: for renderings without a cluster, where no certificate can be made and kept."""


class Helm:
    """The Helm program on this chart."""

    def __init__(self, program: Path) -> None:
        self.program = program
        self._rendered: dict[str, str] = {}

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run it, whatever it answers."""
        return subprocess.run(
            [str(self.program), *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
        )

    def text(self, values: Mapping[str, Any], *arguments: str, chart: Path = CHART) -> str:
        """The output of `helm template`, or AssertionError with its message. Values alone are rendered once."""
        if arguments or chart != CHART:
            return self.fresh_text(values, *arguments, chart=chart)
        key = yaml.safe_dump(dict(values))
        if key not in self._rendered:
            self._rendered[key] = self.fresh_text(values)
        return self._rendered[key]

    def fresh_text(self, values: Mapping[str, Any], *arguments: str, chart: Path = CHART) -> str:
        """`text`, asked again."""
        done = self._template(values, arguments, chart)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def render(self, values: Mapping[str, Any], *arguments: str, chart: Path = CHART) -> Objects:
        """The objects that `helm template` renders, hooks and test included."""
        text = self.text(values, *arguments, chart=chart)
        return [found for found in yaml.load_all(text, Loader=yaml.CSafeLoader) if found]

    def refusal(self, values: Mapping[str, Any], *arguments: str) -> str:
        """The message with which `helm template` refuses the values."""
        done = self._template(values, arguments, CHART)
        assert done.returncode != 0, "the values were taken"
        return done.stderr

    def dry_install(self, api: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`helm install` against an API server, up to the point where it would change something."""
        options = ("--namespace", "space", "--dry-run=server", "--kube-apiserver", api, "--disable-openapi-validation")
        return self.run("install", "rel", str(CHART), *options, *arguments)

    def _template(
        self, values: Mapping[str, Any], arguments: Sequence[str], chart: Path
    ) -> subprocess.CompletedProcess[str]:
        fixed = ("template", "rel", str(chart), "--namespace", "space", "--kube-version", KUBERNETES, "--values", "-")
        return self.run(*fixed, *arguments, stdin=yaml.safe_dump(dict(values)))


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Helm, where it is; a skip that says why, where it isn't."""
    tools = load_tool("cluster_tools")
    program = tools.find("helm")
    if program is None:
        pytest.skip(tools.missing("helm"))
    return Helm(program)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """promtool, where it is; a skip that says why, where it isn't."""
    tools = load_tool("cluster_tools")
    program: Path | None = tools.find("promtool")
    if program is None:
        pytest.skip(tools.missing("promtool"))
    return program


def topologies() -> list[str]:
    """Names of the value files that are rendered in the tests."""
    return sorted(file.stem for file in TOPOLOGIES.glob("*.yaml"))


@functools.cache
def topology(name: str) -> dict[str, Any]:
    """The values of one."""
    found: dict[str, Any] = yaml.safe_load((TOPOLOGIES / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def of_kind(objects: Objects, kind: str) -> dict[str, dict[str, Any]]:
    """Objects of a kind by name."""
    return {found["metadata"]["name"]: found for found in objects if found["kind"] == kind}


def pod_specs(objects: Objects) -> dict[str, dict[str, Any]]:
    """Every pod that the objects lead to, by kind and name."""
    found: dict[str, dict[str, Any]] = {}
    for one in objects:
        spec = one.get("spec", {})
        where = f"{one['kind']}/{one['metadata']['name']}"
        if one["kind"] == "Pod":
            found[where] = spec
        elif one["kind"] == "CronJob":
            found[where] = spec["jobTemplate"]["spec"]["template"]["spec"]
        elif "template" in spec:
            found[where] = spec["template"]["spec"]
        elif one["kind"] == "ConfigMap" and "pod.yaml" in one["data"]:
            found[where] = yaml.safe_load(one["data"]["pod.yaml"])["spec"]
    return found
