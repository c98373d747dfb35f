"""The audiences that a batch's principal may read, and those that it may write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rights:
    """The read set and the write set of a batch."""

    read: frozenset[str] = frozenset()
    write: frozenset[str] = frozenset()

    def may_read(self, audiences: Iterable[str]) -> bool:
        """Whether a row of these audiences is seen."""
        return not self.read.isdisjoint(audiences)

    def may_write(self, audiences: Iterable[str]) -> bool:
        """Whether a row of these audiences may be written."""
        return not self.write.isdisjoint(audiences)
