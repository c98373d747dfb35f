"""Waiting in a test for what others bring about."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOK_S = 0.01


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait until ``condition`` holds. Raises AssertionError where it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not come in time"
        time.sleep(_LOOK_S)
