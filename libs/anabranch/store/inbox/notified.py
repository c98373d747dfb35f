"""Verdicts in the notification of their group, so that a process that waits for them need not look them up.

Any session with the database may send notifications, so these are sealed with the database's key, for one database and
position. Verdicts without a fitting seal are ignored: their ids are looked up, as are those of a group whose verdicts
have no room in its notification.

The content is the chain's hash after the group (16 bytes), then for each batch its id, the SHA-256 of its payload (32
bytes), its principal and its verdict; id, principal and verdict stand behind their lengths (2 bytes). Sealed, and in
base64.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable
from typing import NamedTuple

from anabranch.store.inbox.verdicts import DecidedBatch
from anabranch.store.log.seal import CHAIN_BYTES, open_content, seal_content

_length = struct.Struct(">H")
_SHA256_BYTES = 32


class Verdict(NamedTuple):
    """A verdict of the group: the batch's id, the SHA-256 of its payload, its principal, and the serialized Verdict."""

    batch_id: str
    payload_sha256: bytes
    principal: str
    verdict: bytes


def seal_verdicts(
    seal_key: bytes, database_id: int, position: int, chain: bytes, verdicts: Iterable[Verdict], most: int
) -> str | None:
    """The text for a notification; None where it would be longer than ``most`` characters."""
    content = bytearray(chain)
    room = most * 3 // 4
    for batch_id, payload_sha256, principal, verdict in verdicts:
        for part in (batch_id.encode(), principal.encode(), verdict):
            if len(part) > room:
                return None
            content += _length.pack(len(part)) + part
        content += payload_sha256
        if len(content) > room:
            return None
    sealed = seal_content(seal_key, _purpose(database_id, position), bytes(content))
    text = base64.b64encode(sealed).decode("ascii")
    return text if len(text) <= most else None


def open_verdicts(
    seal_key: bytes, database_id: int, position: int, text: str
) -> tuple[bytes, list[tuple[str, DecidedBatch]]] | None:
    """The chain's hash after the group, and its verdicts by batch id; None where the seal does not fit."""
    try:
        sealed = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    content = open_content(seal_key, _purpose(database_id, position), sealed)
    if content is None:
        return None
    found = []
    at = CHAIN_BYTES
    while at < len(content):
        parts = []
        for _ in range(3):
            (length,) = _length.unpack_from(content, at)
            at += _length.size
            parts.append(content[at : at + length])
            at += length
        batch_id, principal, verdict = parts
        payload_sha256 = content[at : at + _SHA256_BYTES]
        at += _SHA256_BYTES
        found.append((batch_id.decode(), DecidedBatch(payload_sha256, principal.decode(), verdict, position)))
    return content[:CHAIN_BYTES], found


def _purpose(database_id: int, position: int) -> str:
    return f"verdicts {database_id}:{position}"
