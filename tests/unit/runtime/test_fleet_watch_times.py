"""How long a service may take: to start, and then to get ready. The clock and the answers are made up; that a real one
is ended and started again is tested with real services."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.runtime import fleet_watch
from anabranch.runtime.fleet_watch import FleetWatch

UNREADY_S = 6.0


class Looks:
    """A service that answers each look in turn, one look a second; notes when it is killed."""

    def __init__(self, answers: list[str]) -> None:
        self.now = 0.0
        self.killed_at: list[float] = []
        self._answers = iter(answers)
        child = SimpleNamespace(pid=7, log_tail=lambda: "", kill=lambda: self.killed_at.append(self.now))
        self.fleet: Any = SimpleNamespace(names=["ingest"], addresses={"ingest": "here"}, child=lambda _: child)

    def probe(self, address: str, timeout_s: float) -> str:
        return next(self._answers)

    def wait(self, seconds: float) -> bool:
        """Whether there is no further look."""
        self.now += seconds
        self._answers, left = iter(rest := list(self._answers)), len(rest)
        return left == 0


def killed_at(monkeypatch: pytest.MonkeyPatch, answers: list[str]) -> list[float]:
    looks = Looks(answers)
    monkeypatch.setattr(fleet_watch, "probe", looks.probe)
    monkeypatch.setattr(fleet_watch, "answers", lambda *_: True)
    monkeypatch.setattr(fleet_watch, "time", SimpleNamespace(monotonic=lambda: looks.now))
    watch = FleetWatch(looks.fleet, "postgresql://", lambda _: None, unready_s=UNREADY_S)
    monkeypatch.setattr(watch, "_stop", SimpleNamespace(wait=looks.wait, is_set=lambda: False))
    watch._run()
    return looks.killed_at


def test_one_that_starts_slowly_has_its_whole_time_to_get_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it is killed at the moment when it begins to listen, again and again on a slow machine."""
    assert killed_at(monkeypatch, ["UNREACHABLE"] * 20 + ["NOT_SERVING"] * 5 + ["SERVING"]) == []


def test_one_that_never_gets_ready_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_at(monkeypatch, ["UNREACHABLE"] * 20 + ["NOT_SERVING"] * 8) == [21 + UNREADY_S]


def test_one_that_stops_answering_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_at(monkeypatch, ["SERVING"] + ["UNREACHABLE"] * 8) == [2 + UNREADY_S]
