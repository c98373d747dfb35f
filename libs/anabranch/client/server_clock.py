"""The server's clock, as recent answers give it, and how far the device's clock is from it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from anabranch.client.events import State

_RECENT_S = 60.0
_SKEW_MS = 60_000
"""A smaller difference, in milliseconds, comes from an answer's travel time and the clocks' precision."""


class ServerClock:
    """Takes the time from every answer, on any thread. A time is good for a minute, or until a call fails.
    ``device_ms`` is the device's clock. Only the times in ids depend on that clock, and the server takes them for no
    later than their batch's arrival; but a user wants to know that the clock is wrong."""

    def __init__(self, device_ms: Callable[[], int]) -> None:
        self._device_ms = device_ms
        self._noted: tuple[int, float] | None = None
        self._skew_published_ms = 0
        self._events: deque[State] = deque()
        self.skew_ms: int | None = None
        """The device's clock less the server's, in milliseconds, when an answer last came; None before."""

    def note(self, server_ms: int) -> None:
        """Note the time of an answer (milliseconds since 1970)."""
        if not server_ms:
            return
        self._noted = (server_ms, time.monotonic())
        skew = self.skew_ms = self._device_ms() - server_ms
        if abs(skew - self._skew_published_ms) <= _SKEW_MS:
            return
        self._skew_published_ms = skew if abs(skew) > _SKEW_MS else 0
        direction = "ahead of" if skew > 0 else "behind"
        self._events.append(
            State("clock_skew", f"the device's clock is {abs(skew) / 1000:.0f} s {direction} the server's")
        )

    def events(self) -> list[State]:
        """The events to publish about the difference, each once."""
        events = []
        while self._events:
            events.append(self._events.popleft())
        return events

    def forget(self) -> None:
        """Forget the time after a failed call: how long the device will be away until the next success is not known."""
        self._noted = None

    def now_ms(self) -> int | None:
        """The server's time now, or None if no recent answer gave it."""
        if self._noted is None:
            return None
        server_ms, at = self._noted
        since = time.monotonic() - at
        return server_ms + int(since * 1000) if since < _RECENT_S else None
