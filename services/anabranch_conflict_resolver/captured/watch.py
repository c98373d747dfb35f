"""Decides when to look for captured changes: no notification reports them, because it would cost the writer more than
capturing does.

States: *quick* (changes were found a moment ago, more will come), *slow* (the longer nothing came, the longer the
pause), and *at rest* (a worker is on a database that had some: it looks by itself when a group is done, until it finds
nothing).

Invariants: a pause is never longer than ``slow_s``, nor than a twentieth of the time since the last changes were found,
but for ``QUICK_S``; so a change waits no longer to be found than a twentieth of the silence before it. At rest,
too, no more than ``slow_s`` pass between two looks.
"""

from __future__ import annotations

from collections.abc import Set

from anabranch.store.capture import captured
from anabranch.store.session.engine import Session

QUICK_S = 0.002
SILENCE_SHARE = 20


class CapturedWatch:
    """One for each listener. ``slow_s``: the longest that changes wait to be found."""

    def __init__(self, slow_s: float) -> None:
        self._slow_s = slow_s
        self._next = float("-inf")
        self._looked = float("-inf")
        self._found_s = float("-inf")
        self._found: Set[int] = frozenset()

    def due_in(self, now: float) -> float:
        """Seconds until the next look, by the monotonic clock."""
        return max(0.0, self._next - now)

    def look(self, session: Session, now: float, busy: Set[int]) -> Set[int]:
        """The numbers of the databases in which captured changes wait. ``busy``: those that a worker is on, or will be
        on next; while it is on all that had changes, nothing is asked.

        Raises:
            psycopg.Error: they can't be read.
        """
        if self._found and self._found <= busy and now - self._looked < self._slow_s:
            self._next = now + min(QUICK_S, self._slow_s)
            return frozenset()
        self._looked = now
        self._found = frozenset(captured.databases(session))
        if self._found:
            self._found_s = now
        self._next = now + min(self._slow_s, max(QUICK_S, (now - self._found_s) / SILENCE_SHARE))
        return self._found
