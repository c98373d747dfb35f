"""Postgres goes away for longer than a service that answers nothing would be left alone, and comes back."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.cluster.api import until

from .prometheus import Prometheus
from .trial import SERVICES, Trial

AWAY_S = 150
"""Longer than a service that answers nothing would be left alone."""
LATE_S = 240
POSTGRES = "apps/v1/statefulsets", "rel-anabranch-postgres"
ALERT = "AnabranchServiceNotReady"


@dataclass(frozen=True, slots=True)
class Outage:
    """``restarts``: how often pods were started again, by name: before, at the end, and once all was well again.
    ``ready``: whether pods were ready at the end. ``fired``: jobs for which the alert fired; ``resolved``: it ended."""

    restarts: tuple[dict[str, int], dict[str, int], dict[str, int]]
    ready: dict[str, bool]
    fired: set[str]
    resolved: bool


def _ready(trial: Trial) -> dict[str, bool]:
    return {
        name: all(one["ready"] for one in pod["status"]["containerStatuses"])
        for service in SERVICES
        for name, pod in trial.release.pods(service).items()
    }


def _scaled(trial: Trial, replicas: int) -> None:
    path, name = POSTGRES
    trial.release.api.patch(f"{trial.release.at(path)}/{name}", {"spec": {"replicas": replicas}})


def away(trial: Trial, watching: Prometheus) -> Outage:
    """Have Postgres away until the time is over and the alert fires."""
    before = trial.restarts()
    _scaled(trial, 0)
    try:
        began = time.monotonic()
        until("no service is ready", LATE_S, lambda: not any(_ready(trial).values()))
        print(f"not ready after {time.monotonic() - began:.0f} s")
        # Nothing is to happen to pods, so there is nothing to wait for but the time itself.
        until("time has passed", AWAY_S * 2, lambda: time.monotonic() - began > AWAY_S)
        until(f"{ALERT} fires for all", LATE_S, lambda: len(watching.firing(ALERT)) == len(SERVICES))
        fired = watching.firing(ALERT)
        print(f"{ALERT} fires after {time.monotonic() - began:.0f} s at the latest")
        during, ready = trial.restarts(), _ready(trial)
    finally:
        _scaled(trial, 1)
    back = time.monotonic()
    until("all services are ready", LATE_S, lambda: all(_ready(trial).values()))
    print(f"ready {time.monotonic() - back:.0f} s after Postgres was wanted again")
    resolved = until(f"{ALERT} has ended", LATE_S, lambda: not watching.firing(ALERT))
    return Outage((before, during, trial.restarts()), ready, fired, resolved)
