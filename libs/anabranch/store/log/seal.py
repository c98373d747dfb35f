"""Seals, by which the server recognises its own positions and tokens.

A position's token is 32 bytes: the chain's hash at that position (16, zeros at position 0) and a seal (16),
the truncated HMAC-SHA256 of epoch, position and chain under the database's ``seal_key``. The content of a page
token, a resume token or a notification is encrypted and sealed by AES-GCM, with a key of its own that is derived from
that one: places in the log, and in Parquet, tell of rows that their holder may not see.
"""

from __future__ import annotations

import hmac
import os
from functools import lru_cache
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_SEAL_BYTES = 16
CHAIN_BYTES = 16
EMPTY_CHAIN = bytes(CHAIN_BYTES)
_NONCE_BYTES = 12


def _seal(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, sha256)[:_SEAL_BYTES]


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
    """``content`` encrypted, with a seal that holds for ``purpose`` only: nobody but a server reads or makes it."""
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + _cipher(key).encrypt(nonce, content, purpose.encode())


def open_content(key: bytes, purpose: str, sealed: bytes) -> bytes | None:
    """The content that ``seal_content`` sealed, or None where the seal does not fit."""
    nonce, encrypted = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return _cipher(key).decrypt(nonce, encrypted, purpose.encode())
    except (InvalidTag, ValueError):
        # ValueError: it is too short to hold a nonce.
        return None


@lru_cache(maxsize=256)
def _cipher(key: bytes) -> AESGCM:
    return AESGCM(hmac.digest(key, b"content", sha256))
