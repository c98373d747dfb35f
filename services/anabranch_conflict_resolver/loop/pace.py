"""Decides how many batches a group of a database may take.

The number doubles while groups are full and quick, and halves when they are slow: groups grow with the load, and a
claim is never held for long. It also halves when a group fails and no batch is known to be at fault, down to one batch,
which then is known to fail alone.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 256
_SMALLEST_QUICK = 32


@dataclass(slots=True)
class Pace:
    """``most`` is the number; it never leaves 1 to ``ceiling``. ``failures``: groups that failed in a row."""

    ceiling: int
    target_ms: float
    most: int = FIRST
    failures: int = 0

    def __post_init__(self) -> None:
        self.most = min(self.most, self.ceiling)

    def succeeded(self, taken: int, took_ms: float) -> None:
        """A group of ``taken`` batches was committed in ``took_ms``."""
        self.failures = 0
        if taken >= self.most and took_ms < self.target_ms:
            self.most = min(self.ceiling, self.most * 2)
        elif took_ms > 2 * self.target_ms:
            self.most = max(min(_SMALLEST_QUICK, self.most), self.most // 2)

    def failed(self, taken: int) -> None:
        """A group of ``taken`` batches (0: it did not come so far) failed and was rolled back."""
        self.held_up()
        self.most = max(1, min(self.most, taken or self.most) // 2)

    def held_up(self) -> None:
        """Note that a group failed that was to decide no batch: batches have no part in it."""
        self.failures += 1
