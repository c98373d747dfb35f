"""Wait in a test for the effects of other threads and processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_LOOK_S = 0.01


def load() -> float:
    """How many have wanted a processor in the last minute for each that there is, at least 1: times that a test judges
    are stretched by it. What falls short all the same is no matter of the machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def until(
    condition: Callable[[], bool],
    timeout_s: float = 30.0,
    why: str | Callable[[], str] = "the condition did not hold in time",
    beside: Future[Any] | None = None,
) -> None:
    """Wait until ``condition`` holds, while ``beside`` runs: once that has ended, the condition can't come true.

    ``why`` is the failure's message, or makes it from the state at the end.

    Raises:
        AssertionError: it does not hold in time, or ``beside`` has ended without it; its failure is the cause.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        # Read first, so that the last effect of ``beside`` still counts.
        ended = beside is not None and beside.done()
        if condition():
            return
        if beside is not None and ended:
            error = beside.exception()
            came_to = f"failed: {error!r}" if error is not None else f"given {beside.result()!r}"
            raise AssertionError(f"{_text(why)}; the work beside has ended already, and has {came_to}") from error
        assert time.monotonic() < deadline, _text(why)
        time.sleep(_LOOK_S)


def _text(why: str | Callable[[], str]) -> str:
    return why if isinstance(why, str) else why()
