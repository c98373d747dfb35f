"""The server's clock, as recent answers tell it, and how far the device's is from it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from anabranch.client.events import State

_RECENT_S = 60.0
_SKEW_MS = 60_000
"""Less is the way of an answer, and of clocks."""


class ServerClock:
    """Told the time by every answer, on any thread. What it was told is good for a minute, or until a call fails.
    ``device_ms`` is the device's clock. Nothing rests on that one but the times in ids, which the server takes for no
    later than their batch's arrival; but whose clock is wrong wants to know."""

    def __init__(self, device_ms: Callable[[], int]) -> None:
        self._device_ms = device_ms
        self._told: tuple[int, float] | None = None
        self._skew_told_ms = 0
        self._events: deque[State] = deque()
        self.skew_ms: int | None = None
        """The device's clock less the server's, in milliseconds, when an answer last came; None before."""

    def told(self, server_ms: int) -> None:
        """An answer said so (milliseconds since 1970)."""
        if not server_ms:
            return
        self._told = (server_ms, time.monotonic())
        skew = self.skew_ms = self._device_ms() - server_ms
        if abs(skew - self._skew_told_ms) <= _SKEW_MS:
            return
        self._skew_told_ms = skew if abs(skew) > _SKEW_MS else 0
        direction = "ahead of" if skew > 0 else "behind"
        self._events.append(
            State("clock_skew", f"the device's clock is {abs(skew) / 1000:.0f} s {direction} the server's")
        )

    def events(self) -> list[State]:
        """What is to be told of that, once."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def forget(self) -> None:
        """A call failed: who knows how long the device has been away when the next one succeeds."""
        self._told = None

    def now_ms(self) -> int | None:
        """The time there now, or None where no recent answer told it."""
        if self._told is None:
            return None
        server_ms, at = self._told
        since = time.monotonic() - at
        return server_ms + int(since * 1000) if since < _RECENT_S else None
