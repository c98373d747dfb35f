"""Seals, by which the server recognises its own positions and tokens.

A position's token is 32 bytes: the chain's hash at that position (16, zeros at position 0) and a seal (16),
the truncated HMAC-SHA256 of epoch, position and chain under the database's ``seal_key``. A page token or
resume token is opaque content followed by the same kind of seal.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

SEAL_BYTES = 16
CHAIN_BYTES = 16
EMPTY_CHAIN = bytes(CHAIN_BYTES)


def _seal(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, sha256)[:SEAL_BYTES]


def _position_content(epoch: str, position: int, chain: bytes) -> bytes:
    return b"position\0" + epoch.encode() + b"\0" + position.to_bytes(8, "big", signed=True) + chain


def position_token(key: bytes, epoch: str, position: int, chain: bytes) -> bytes:
    """The token of a position: 32 bytes."""
    return chain + _seal(key, _position_content(epoch, position, chain))


def chain_of(key: bytes, epoch: str, position: int, token: bytes) -> bytes | None:
    """The chain's hash (16 bytes) in a position's token, or None where this server did not seal it."""
    chain, seal = token[:CHAIN_BYTES], token[CHAIN_BYTES:]
    good = hmac.compare_digest(seal, _seal(key, _position_content(epoch, position, chain)))
    return chain if good else None


def seal_content(key: bytes, purpose: str, content: bytes) -> bytes:
    """``content`` with a seal that holds for ``purpose`` only."""
    return content + _seal(key, purpose.encode() + b"\0" + content)


def open_content(key: bytes, purpose: str, sealed: bytes) -> bytes | None:
    """The content that ``seal_content`` sealed, or None where the seal does not fit."""
    content, seal = sealed[:-SEAL_BYTES], sealed[-SEAL_BYTES:]
    return content if hmac.compare_digest(seal, _seal(key, purpose.encode() + b"\0" + content)) else None
