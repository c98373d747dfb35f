"""What tasks tell of what they have written."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Written:
    """A file of unit number ``unit``, by its path below the epoch's folder. ``what``: CHANGES, CONFLICTS or BASE;
    ``delta`` and ``bucket`` are a base file's."""

    unit: int
    what: str
    path: str
    bytes: int
    bucket: int = 0
    delta: bool = False


@dataclass(frozen=True, slots=True)
class Replaced:
    """What a part's changes do to one bucket: the rows that they replace or delete, and the rows that are in its deltas
    as deleted (``gone``): numbers, and sums of their hashes, in hexadecimal."""

    unit: int
    bucket: int
    count: int
    total: str
    gone: int
    gone_total: str


@dataclass(slots=True)
class Parts:
    """What tasks have written."""

    files: list[Written] = field(default_factory=list)
    replaced: list[Replaced] = field(default_factory=list)
