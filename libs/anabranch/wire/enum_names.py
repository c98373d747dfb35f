"""Names of the contract's enums, as people and applications read them: without the enum's prefix.

A message may come from a newer release, with numbers that this one does not know. They get a name, too: a device that
can't name a reason must not stop at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_FIRST = "UNSPECIFIED"


class NamedNumbers(Protocol):
    """An enum of the generated stubs."""

    def keys(self) -> Sequence[str]:
        """Its names, that of zero first."""

    def items(self) -> Sequence[tuple[str, int]]:
        """Its names with their numbers."""


def enum_name(enum: NamedNumbers, number: int) -> str:
    """The name of a number, as ``TOO_SLOW`` for ``REASON_TOO_SLOW``; ``UNKNOWN_99`` for one that this release does not
    know."""
    prefix = enum.keys()[0].removesuffix(_FIRST)
    for name, known in enum.items():
        if known == number:
            return name.removeprefix(prefix)
    return f"UNKNOWN_{number}"
