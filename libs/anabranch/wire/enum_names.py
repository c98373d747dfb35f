"""Names of the contract's enums, as people and applications read them: without the enum's prefix.

A message may come from a newer release, with numbers that this one does not know. They get a name, too: a device that
can't name a reason must not stop at it.
"""

from __future__ import annotations

from typing import Any, Protocol

_FIRST = "UNSPECIFIED"


class NamedNumbers(Protocol):
    """An enum of the generated stubs."""

    @property
    def DESCRIPTOR(self) -> Any:  # noqa: N802
        """A ``google.protobuf.descriptor.EnumDescriptor``."""


def enum_name(enum: NamedNumbers, number: int) -> str:
    """The name of a number, as ``TOO_SLOW`` for ``REASON_TOO_SLOW``; ``UNKNOWN_99`` for one that this release does not
    know."""
    known = enum.DESCRIPTOR
    if number not in known.values_by_number:
        return f"UNKNOWN_{number}"
    prefix: str = known.values[0].name.removesuffix(_FIRST)
    name: str = known.values_by_number[number].name
    return name.removeprefix(prefix)
