"""Requests of others at one moment make nobody's calls slow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.snapshot.conftest import Place
from tests.integration.snapshot.pulled import rows
from ulid import ULID

from anabranch.testkit.log_writer import LogWriter
from anabranch.testkit.paired import paired
from anabranch.testkit.snapshot_reader import Reader
from anabranch.testkit.snapshot_rig import SnapshotRig
from anabranch.testkit.waiting import load, until

pytestmark = pytest.mark.slow
STREAMS = 1_000
ROW = 1_000_000
CONNECTIONS = 10
ROUNDS = 3
ROUND_S = 2.0
MOST_TIMES = 3.0
"""On a machine that has time. The steps that go ahead of a neighbour's are counted in tests/unit/runtime."""


@pytest.fixture
def pair(module_url: str, tmp_path: Path) -> Iterator[SnapshotRig]:
    """Two processes: one is attacked."""
    with SnapshotRig(module_url, tmp_path, count=2) as running:
        yield running


def test_a_thousand_subscriptions_that_arrive_and_take_nothing_slow_no_neighbour(
    place: Place, writer: LogWriter, pair: SnapshotRig
) -> None:
    head = [writer.insert("item", rows(1, ROW)) for _ in range(5)][-1]
    subject = f"user-{ULID()}"
    greedy: list[Reader] = [pair.reader(place.name, subject=subject) for _ in range(CONNECTIONS)]
    neighbour = pair.reader(place.name)
    attacked, spared = pair.addresses
    with paired(attacked, spared, neighbour.key, place.name, head, MOST_TIMES * load()):
        for _ in range(ROUNDS):
            streams: list[Any] = [greedy[number % CONNECTIONS].subscribe() for number in range(STREAMS)]
            time.sleep(ROUND_S)  # in which they begin; what they get is not looked at
            until(lambda: pair.metric("anabranch_open_streams") >= STREAMS // 2, 30 * load(), "no flood")
            for stream in streams:
                stream.cancel()
    for reader in (*greedy, neighbour):
        reader.close()
