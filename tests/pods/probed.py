"""Probes are true: a service without Postgres is not ready and not started again; one that hangs is started again."""

from __future__ import annotations

import os
import signal
import time

import pytest
from tests.cluster.api import until

from .outage import LATE_S, Outage
from .processes import of_pod
from .trial import Trial

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("waits")]


def test_a_postgres_that_is_away_makes_services_not_ready_and_starts_none_again(outage: Outage) -> None:
    before, during, after = outage.restarts
    assert not any(outage.ready.values())
    assert during == before
    assert after == before


def test_a_service_that_hangs_is_started_again(trial: Trial) -> None:
    [(name, pod)] = trial.release.pods("ingest").items()
    began = time.monotonic()
    [process] = of_pod(pod, "anabranch_")
    os.kill(process, signal.SIGSTOP)
    until("it was started again", LATE_S, lambda: trial.restarts()[name] == 1)
    print(f"started again after {time.monotonic() - began:.0f} s")
    trial.release.await_behind("rel-anabranch-ingest", "grpc", 1)
