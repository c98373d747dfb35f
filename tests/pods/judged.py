"""Changes under load, and the judgement of everything that was written meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from anabranch.client import RemoteDb

from .load import Load, under_load
from .trial import Trial

RETRYABLE = {"UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED"}
"""Codes after which the contract has a device call again."""
AROUND_S = 5


def during(
    trial: Trial,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    what: str,
    change: Callable[[], Any],
    remote: Callable[[], RemoteDb] | None = None,
) -> Load:
    """Do ``change`` while devices and SQL write, and some seconds before and after; ``remote``: another way in than the
    Services."""
    with under_load(monkeypatch, tmp_path, remote or trial.remote, trial.url) as load:
        load.ending.wait(AROUND_S)
        started = time.monotonic()
        change()
        print(f"{what}: {time.monotonic() - started:.0f} s")
        load.ending.wait(AROUND_S)
    return load


def judge(trial: Trial, load: Load) -> None:
    """Everything that was written is there once, was decided, and is what log and sums say; and no call failed in a way
    after which a device would not call again."""
    print(load.told())
    assert not any(load.dead.values()), load.dead
    assert not any(load.unsent.values()), load.unsent
    there = {key for (key,) in trial.sql("select id from shop.todo")}
    lost = set(load.written) - there
    assert not lost, sorted(lost)[:10]
    twice = trial.sql("select id, count(*) from public.written group by id having count(*) > 1 limit 10")
    assert not twice, twice
    codes = {name.rpartition(" ")[2] for name in load.failed}
    assert codes <= RETRYABLE, load.failed
    print(trial.local("verify", "--db", "shop").strip())
