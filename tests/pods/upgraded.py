"""Upgrades, rollbacks and pods that go, while devices and SQL write: nothing is lost, and nothing comes twice."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import topologies
from .load import Load, under_load
from .trial import SERVICES, Trial

pytestmark = pytest.mark.timeout(900)
RETRYABLE = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED"}
"""Codes after which the contract has a device call again."""


def _judge(trial: Trial, load: Load, streams: set[str]) -> None:
    """Everything that was written is there once, was decided, and is what log and sums say."""
    print(load.told())
    assert not any(load.dead.values()), load.dead
    assert not any(load.unsent.values()), load.unsent
    there = {key for (key,) in trial.sql("select id from shop.todo")}
    lost = set(load.written) - there
    assert not lost, sorted(lost)[:10]
    twice = trial.sql("select id, count(*) from public.written group by id having count(*) > 1 limit 10")
    assert not twice, twice
    codes = {name.rpartition(" ")[2] for name in load.failed}
    assert codes <= RETRYABLE | streams, load.failed
    print(trial.local("verify", "--db", "shop").strip())


def _during(
    trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str, change: Callable[[], Any]
) -> Load:
    with under_load(monkeypatch, tmp_path, trial.remote, trial.url) as load:
        load.ending.wait(5)
        started = time.monotonic()
        change()
        print(f"{what}: {time.monotonic() - started:.0f} s")
        load.ending.wait(5)
    return load


def test_an_upgrade_and_a_rollback_under_load(trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = trial.release.pods().keys()

    def change() -> None:
        trial.release.upgrade(topologies.changed())
        trial.release.settled()
        trial.release.rollback()
        trial.release.settled()

    load = _during(trial, monkeypatch, tmp_path, "upgrade, rollback", change)
    kept = [name for name in trial.release.pods() if name in before]
    assert all("postgres" in name for name in kept), "every service has new pods"
    _judge(trial, load, set())


def test_each_services_pod_is_deleted_under_load(trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def change() -> None:
        for component in SERVICES:
            trial.replace(component)

    _judge(trial, _during(trial, monkeypatch, tmp_path, "each pod deleted", change), set())


def test_postgres_is_restarted_under_load(trial: Trial, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Services wait for it, and none of them is started again."""
    before = trial.restarts()

    def change() -> None:
        trial.replace("postgres")
        for component in SERVICES:
            trial.release.await_behind(f"rel-anabranch-{component}", "grpc", 1)

    _judge(trial, _during(trial, monkeypatch, tmp_path, "Postgres restarted", change), set())
    assert trial.restarts() == before
