"""The reports of tasks about the files that they have written."""

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
    """The effect of a part's changes on one bucket: the rows that they replace or delete, and the rows that are in its
    deltas as deleted (``gone``): numbers, and sums of their hashes, in hexadecimal."""

    unit: int
    bucket: int
    count: int
    total: str
    gone: int
    gone_total: str


@dataclass(slots=True)
class Parts:
    """The files that tasks have written, and the rows that they replace."""

    files: list[Written] = field(default_factory=list)
    replaced: list[Replaced] = field(default_factory=list)
