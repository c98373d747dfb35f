"""When to look for captured changes: nobody tells of them, because a notification would cost the writer more than
capturing does.

States: *slow* (nothing was found for a while), *quick* (the last changes are a moment old, more will come), and
*backing off* (they are found again and again: whoever drains is at it, and looks by itself when a group is done).
"""

from __future__ import annotations

from anabranch.store import captured
from anabranch.store.engine import Session

_QUICK_S = 0.004
_STAY_QUICK_S = 2.0


class CapturedWatch:
    """One for each listener. ``slow_s``: the longest that changes wait to be found."""

    def __init__(self, slow_s: float) -> None:
        self._slow_s = slow_s
        self._pause_s = slow_s
        self._next = float("-inf")
        self._found = float("-inf")

    def due_in(self, now: float) -> float:
        """Seconds until the next look, by the monotonic clock."""
        return max(0.0, self._next - now)

    def look(self, session: Session, now: float) -> list[int]:
        """The numbers of the databases in which captured changes wait.

        Raises:
            psycopg.Error: they can't be read.
        """
        found = captured.databases(session)
        if found:
            self._found = now
            self._pause_s = min(self._slow_s, max(_QUICK_S, 2 * self._pause_s))
        else:
            self._pause_s = min(self._slow_s, _QUICK_S) if now - self._found < _STAY_QUICK_S else self._slow_s
        self._next = now + self._pause_s
        return found
