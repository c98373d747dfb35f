"""The files for Docker: what they name is there, and their settings are those of the services."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from anabranch.runtime.config import ServiceSettings
from anabranch.runtime.fleet import SERVICES

from .conftest import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
OURS = [*SERVICES, "migration", "compactor"]


def test_compose_has_every_service_and_runs_its_module() -> None:
    for name, module in SERVICES.items():
        assert COMPOSE["services"][name]["command"] == ["python", "-m", module]


@pytest.mark.parametrize("name", OURS)
def test_ours_run_without_rights(name: str) -> None:
    one = COMPOSE["services"][name]
    assert one["read_only"] is True
    assert one["cap_drop"] == ["ALL"]
    known = {f"ANABRANCH_{field.upper()}" for field in ServiceSettings.model_fields} | {"PGPASSWORD"}
    assert one["environment"].keys() <= known


def test_nothing_is_published_beyond_loopback() -> None:
    for name, one in COMPOSE["services"].items():
        for port in one.get("ports", []):
            assert port.startswith("127.0.0.1:"), name


def test_every_file_that_is_mounted_exists() -> None:
    mounted = [source for one in COMPOSE["services"].values() for source in one.get("volumes", [])]
    paths = [source.split(":")[0] for source in mounted if source.startswith(".")]
    assert len(paths) >= 5
    for path in paths:
        assert (DEPLOY / path).exists(), path


def test_prometheus_reads_the_services_under_their_names(promtool: Path, tmp_path: Path) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yaml").read_text())
    assert {job["job_name"] for job in config["scrape_configs"]} == set(SERVICES)
    # Where compose puts the alerts.
    (tmp_path / "alerts").symlink_to(ROOT / "helm" / "anabranch" / "alerts")
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    done = subprocess.run(
        [str(promtool), "check", "config", str(tmp_path / "prometheus.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["service", "compactor"])
def test_images_are_locked_and_run_as_nobody(name: str) -> None:
    text = (DEPLOY / "docker" / f"{name}.Dockerfile").read_text()
    # The compaction takes the whole base, as Spark is started by a shell script.
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "scratch" if name == "service" else "${BASE}"]
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    for line in re.findall(r"pip install .*(?:\\\n.*)*", text):
        for command in line.split("&&"):
            if "pip install" in command:
                assert "--require-hashes" in command or "--no-deps" in command, command
    ours = re.findall(r"/build/source(\S*)", "".join(re.findall(r"pip install --no-deps.*", text)))
    assert ours == ["/wheels/device", "/wheels/server"], "an image has the test kit, or lacks what it runs"
    lock = (DEPLOY / "docker" / f"{name}.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", lock, re.MULTILINE))
    whole = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert len(pinned) > 30
    assert pinned.items() <= whole.items(), "`make lock`: an image would have another version than was tested"
    assert ("pyspark" in pinned) is (name == "compactor")
    assert "pytest" not in pinned
