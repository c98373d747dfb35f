"""The server's clock, as recent answers tell it."""

from __future__ import annotations

import time

_RECENT_S = 60.0


class ServerClock:
    """Told the time by every answer, on any thread. What it was told is good for a minute, or until a call fails."""

    def __init__(self) -> None:
        self._told: tuple[int, float] | None = None

    def told(self, server_ms: int) -> None:
        """An answer said so (milliseconds since 1970)."""
        if server_ms:
            self._told = (server_ms, time.monotonic())

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
