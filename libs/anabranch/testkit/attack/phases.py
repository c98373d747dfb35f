"""When attackers attack, and when they rest.

They rest again and again, so that what neighbours feel of them is compared with calls of the same minute: on a machine
that does other things, too, the first seconds say nothing of the fifteenth minute.

Phases: *quiet*, then by turns *attacked*, *settling*, whose calls count for nothing, and *quiet*.
"""

from __future__ import annotations

import threading
import time

QUIET, ATTACKED, SETTLING = "quiet", "attacked", "settling"
QUIET_S = 5.0
ATTACK_S = 20.0
SETTLE_S = 3.0
LOOK_S = 0.05


class Phases(threading.Event):
    """The phases of one attack. It is set when the attack is over."""

    def __init__(self) -> None:
        super().__init__()
        self.now = QUIET

    def rest(self, seconds: float) -> bool:
        """Rest for so long, and while there is no attack; whether it is over. For attackers, between two deeds."""
        over = self.wait(seconds)
        while not over and self.now != ATTACKED:
            over = self.wait(LOOK_S)
        return over

    def run(self, seconds: float) -> None:
        """Go through the phases, for so long after the first, and end the attack."""
        try:
            self._stay(QUIET, QUIET_S)
            until_s = time.monotonic() + seconds
            while (left_s := until_s - time.monotonic()) > 0:
                self._stay(ATTACKED, min(ATTACK_S, left_s))
                if time.monotonic() < until_s:
                    self._stay(SETTLING, SETTLE_S)
                    self._stay(QUIET, QUIET_S)
        finally:
            self.set()

    def _stay(self, phase: str, seconds: float) -> None:
        self.now = phase
        self.wait(seconds)
