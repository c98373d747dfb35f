"""Audiences as both sides of the contract have them: the digest of a set, and the column of a pull's chunks."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

AUDIENCE_COLUMN = "_DB_audience"
"""The column of a restricted table's chunks with each row's audiences (``PullResponse.arrow_ipc``)."""
DIGEST_BYTES = 16


def digest(audiences: Iterable[str]) -> bytes:
    """The digest of a set of audiences, by which the server knows whether a node holds what it may
    (``HeldAudiences.digest``)."""
    found = blake2b(digest_size=DIGEST_BYTES)
    for one in sorted(audience.encode() for audience in audiences):
        found.update(one + b"\0")
    return found.digest()
