"""The places where bytes of the device's own file are believed: what fails there names the part that is damaged."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from google.protobuf.message import DecodeError

from anabranch.client.errors import ClientError, FileDamaged

UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error, DecodeError)
"""The errors that reading bytes or a row raises when they are not what was written."""


@contextmanager
def believed(what: str) -> Iterator[None]:
    """Raise FileDamaged, which names ``what``, where the block can't make sense of what it read from the file. Only
    for blocks to which none of these errors can come otherwise."""
    try:
        yield
    except ClientError:
        raise
    except UNREADABLE as error:
        raise FileDamaged(f"{what} can't be read ({cause(error)})") from error


def cause(error: BaseException) -> str:
    """An error in one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
