"""How fast a client takes what it asked for, while others wait for the turn that it has.

Only the time in which the client is waited for counts. A client has ``window_s`` seconds to begin with; each second
that is waited for it takes one away, and every ``least_bytes_per_s`` bytes that it has taken give one back, up to the
window: so it may pause for as long as that, and must otherwise keep to the rate.
"""

from __future__ import annotations


class Pace:
    """The pace of one client."""

    def __init__(self, least_bytes_per_s: int, window_s: float) -> None:
        self._rate = least_bytes_per_s
        self._window_s = window_s
        self._left_s = window_s

    def allowed_s(self, size: int) -> float:
        """How many seconds the client has for the next ``size`` bytes."""
        return self._left_s + size / self._rate

    def took(self, size: int, seconds: float) -> None:
        """The client has taken so many bytes, in so many seconds."""
        self._left_s = min(self._window_s, max(0.0, self._left_s + size / self._rate - seconds))
