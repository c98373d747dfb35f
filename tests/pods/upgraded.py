"""Upgrades, rollbacks and pods that go, while devices and SQL write: nothing is lost, and nothing comes twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import topologies
from .judged import during, judge
from .trial import SERVICES, Trial

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("writes")]


def test_an_upgrade_and_a_rollback_under_load(trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = trial.release.pods().keys()

    def change() -> None:
        trial.release.upgrade(topologies.changed())
        trial.release.settled()
        trial.release.rollback()
        trial.release.settled()

    load = during(trial, monkeypatch, tmp_path, "upgrade, rollback", change)
    kept = [name for name in trial.release.pods() if name in before]
    assert all("postgres" in name for name in kept), "every service has new pods"
    judge(trial, load)


def test_each_services_pod_is_deleted_under_load(trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def change() -> None:
        for component in SERVICES:
            trial.replace(component)

    judge(trial, during(trial, monkeypatch, tmp_path, "each pod deleted", change))


def test_postgres_is_restarted_under_load(trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Services wait for it, and none of them is started again."""
    before = trial.restarts()

    def change() -> None:
        trial.replace("postgres")
        for component in SERVICES:
            trial.release.await_behind(f"rel-anabranch-{component}", "grpc", 1)

    judge(trial, during(trial, monkeypatch, tmp_path, "Postgres restarted", change))
    assert trial.restarts() == before
