"""Probes are true: a service without Postgres is not ready and not started again; one that hangs is started again."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from tests.cluster.api import Thing, until

from .trial import SERVICES, Trial

pytestmark = pytest.mark.timeout(600)
AWAY_S = 150
"""Longer than a service that answers nothing would be left alone."""
LATE_S = 240
POSTGRES = "apps/v1/statefulsets", "rel-anabranch-postgres"


def _ready(trial: Trial) -> dict[str, bool]:
    return {
        name: all(one["ready"] for one in pod["status"]["containerStatuses"])
        for service in SERVICES
        for name, pod in trial.release.pods(service).items()
    }


def _scaled(trial: Trial, replicas: int) -> None:
    path, name = POSTGRES
    trial.release.api.patch(f"{trial.release.at(path)}/{name}", {"spec": {"replicas": replicas}})


def test_a_postgres_that_is_away_makes_services_not_ready_and_starts_none_again(trial: Trial) -> None:
    before = trial.restarts()
    _scaled(trial, 0)
    try:
        began = time.monotonic()
        until("no service is ready", LATE_S, lambda: not any(_ready(trial).values()))
        print(f"not ready after {time.monotonic() - began:.0f} s")
        # Nothing is to happen, so there is nothing to wait for but the time itself.
        until("time has passed", AWAY_S * 2, lambda: time.monotonic() - began > AWAY_S)
        assert trial.restarts() == before
        assert not any(_ready(trial).values())
    finally:
        _scaled(trial, 1)
    back = time.monotonic()
    until("all services are ready", LATE_S, lambda: all(_ready(trial).values()))
    print(f"ready {time.monotonic() - back:.0f} s after Postgres was wanted again")
    assert trial.restarts() == before


def test_a_service_that_hangs_is_started_again(trial: Trial) -> None:
    [(name, pod)] = trial.release.pods("ingest").items()
    began = time.monotonic()
    os.kill(_process(pod), signal.SIGSTOP)
    until("it was started again", LATE_S, lambda: trial.restarts()[name] == 1)
    print(f"started again after {time.monotonic() - began:.0f} s")
    trial.release.await_behind("rel-anabranch-ingest", "grpc", 1)


def _process(pod: Thing) -> int:
    """The first process of a service's pod, as seen from the machine."""
    found = [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if f"pod{pod['metadata']['uid']}" in _text(folder / "cgroup") and "anabranch_" in _text(folder / "cmdline")
    ]
    [process] = found
    return process


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""  # the process has ended meanwhile
