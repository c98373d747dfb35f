"""Values without their columns, for people: the content of a message, independent of today's schema."""

from __future__ import annotations

from typing import Any

from anabranch.v1 import value_pb2


def plain_value(value: value_pb2.Value) -> Any:
    """A Value as the Python value nearest to it: None for NULL and for "not given", a list for an array, numbers for
    times and dates (microseconds and days since 1970), text for decimals, JSON and other types."""
    arm = value.WhichOneof("kind")
    if arm is None or arm == "null_value":
        return None
    if arm == "array_value":
        return [plain_value(element) for element in value.array_value.elements]
    return getattr(value, arm)
