"""The limits of a group, what may come in between, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from anabranch_conflict_resolver.batch.results import Result, Waiting


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """``most_bytes``: payload bytes of one group. ``busy_ms``: how long a batch rests whose row another session locks.
    ``restarts``: how often a group starts again because rows appeared in between. ``alone_ms``: how long a group
    may take of one batch that has failed alone before. ``rest_ms``: how long a batch rests with which alone a process
    was killed."""

    most_bytes: int = 8 * 1024 * 1024
    busy_ms: int = 100
    restarts: int = 3
    alone_ms: int = 60_000
    rest_ms: int = 1_000


class Between(Enum):
    """Changes that were captured while the group ran and that it does not know of, and markers of altered tables."""

    NONE = auto()
    OF_OTHERS = auto()
    """They have to come first; or a table is another one than the group took it for."""
    OWN = auto()
    """The group's own statements have caused them: they belong to a batch."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a group. ``taken`` batches were looked at, and ``drained`` captured changes taken; none where it
    could not be claimed or nothing was there. ``all_heard``: the listener wakes a worker for all other work."""

    claimed: bool
    position: int = 0
    name: str = ""
    taken: int = 0
    results: Sequence[Result] = ()
    drained: int = 0
    all_heard: bool = False

    @property
    def decided(self) -> int:
        """The number of batches that got a verdict."""
        return sum(not isinstance(result, Waiting) for result in self.results)
