"""Page tokens: a place in the log, and the head of the moment in which it was read to, sealed."""

from __future__ import annotations

import struct
from typing import NamedTuple

from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.reader import Cursor, after
from anabranch.store.log.seal import CHAIN_BYTES, open_content, seal_content
from anabranch.v1 import errors_pb2

_numbers = struct.Struct(f">qqIQq{CHAIN_BYTES}s")


class Place(NamedTuple):
    """A reader's place: ``base`` is the last position of which it misses nothing, ``cursor`` its next item."""

    base: int
    cursor: Cursor


def place_after(position: int) -> Place:
    """Return the place of a reader that has read everything at ``position``."""
    return Place(position, after(position))


def _purpose(database: Database) -> str:
    return f"page-of\0{database.epoch}"


def to_token(database: Database, place: Place, known: SeenGroup) -> bytes:
    """The token of a place. It holds for this database in this epoch, and for a history that has ``known``."""
    position, batch_id, ordinal, offset = place.cursor
    content = _numbers.pack(place.base, position, ordinal, offset, *known) + batch_id.encode()
    return seal_content(database.seal_key, _purpose(database), content)


def from_token(database: Database, token: bytes) -> tuple[Place, SeenGroup]:
    """Return the place of a token, and the group that its history must have.

    Raises:
        CallError: INVALID_TOKEN.
    """
    content = open_content(database.seal_key, _purpose(database), token)
    if content is None or len(content) < _numbers.size:
        raise CallError(
            errors_pb2.REASON_INVALID_TOKEN, "page_token is not one that was given for this database: start again"
        )
    base, position, ordinal, offset, head, chain = _numbers.unpack_from(content)
    return Place(base, Cursor(position, content[_numbers.size :].decode(), ordinal, offset)), SeenGroup(head, chain)
