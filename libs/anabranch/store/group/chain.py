"""The chain: a hash of everything that a database's groups ever decided, one link for each group.

A link is BLAKE2b, 16 bytes, of the previous link (zeros before the first group), the group's position (8 bytes,
big-endian), and for each of its accepted batches in the order of their ids: the length of the id (one byte), the id,
the number of its effects (4 bytes, big-endian) and their effect hashes (16 bytes each) in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

from anabranch.store.log.seal import CHAIN_BYTES


class Joined(NamedTuple):
    """The hashes of so many effects, end to end, in pieces: for batches of too many to hold each."""

    effects: int
    pieces: Sequence[bytes]


def next_link(previous: bytes, position: int, batches: Iterable[tuple[str, Sequence[bytes] | Joined]]) -> bytes:
    """The chain's hash after a group. ``batches``: id and effect hashes of each accepted batch, ordered by id."""
    digest = blake2b(digest_size=CHAIN_BYTES)
    parts = [previous, position.to_bytes(8, "big")]
    for batch_id, hashes in batches:
        raw = batch_id.encode()
        parts += (len(raw).to_bytes(1, "big"), raw)
        if isinstance(hashes, Joined):
            parts.append(hashes.effects.to_bytes(4, "big"))
            digest.update(b"".join(parts))
            parts = []
            for piece in hashes.pieces:
                digest.update(piece)
        else:
            parts += (len(hashes).to_bytes(4, "big"), *hashes)
    digest.update(b"".join(parts))
    return digest.digest()
