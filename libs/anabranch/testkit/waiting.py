"""Waiting in a test for what others bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_LOOK_S = 0.01


def until(
    condition: Callable[[], bool],
    timeout_s: float = 30.0,
    why: str = "what was waited for did not come in time",
    beside: Future[Any] | None = None,
) -> None:
    """Wait until ``condition`` holds, with ``beside`` under way: where that has ended before, nothing else is to come.

    Raises:
        AssertionError: it does not hold in time, or ``beside`` has ended without it; its failure is the cause.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        # Asked first: what it brings about as its last act still counts.
        ended = beside is not None and beside.done()
        if condition():
            return
        if beside is not None and ended:
            error = beside.exception()
            came_to = f"failed: {error!r}" if error is not None else f"given {beside.result()!r}"
            raise AssertionError(f"{why}; what runs beside has ended already, and has {came_to}") from error
        assert time.monotonic() < deadline, why
        time.sleep(_LOOK_S)
