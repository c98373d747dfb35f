"""Page tokens: a place in the log, and the head of the moment in which it was read to, sealed.

Where there are restricted tables, a token also has a digest of the reader's audiences at the place: with others it
would go on inside an effect of which it has not got the beginning.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from anabranch.runtime.errors import CallError
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.seal import CHAIN_BYTES, open_content, seal_content
from anabranch.store.log.stretch import Cursor, after
from anabranch.v1 import errors_pb2
from anabranch.wire.audiences import DIGEST_BYTES

_numbers = struct.Struct(f">qqIQq{CHAIN_BYTES}s")


class Place(NamedTuple):
    """A reader's place: ``base`` is the last position of which it misses nothing, ``cursor`` its next item."""

    base: int
    cursor: Cursor


def place_after(position: int) -> Place:
    """Return the place of a reader that has read everything at ``position``."""
    return Place(position, after(position))


def _purpose(database: Database, seen: bool) -> str:
    return f"{'page-seen' if seen else 'page-of'}\0{database.epoch}"


def to_token(database: Database, place: Place, known: SeenGroup, seen: bytes = b"") -> bytes:
    """The token of a place. It holds for this database in this epoch, and for a history that has ``known``. ``seen``:
    the digest of the reader's audiences there, of ``DIGEST_BYTES``."""
    position, batch_id, ordinal, offset = place.cursor
    content = _numbers.pack(place.base, position, ordinal, offset, *known) + seen + batch_id.encode()
    return seal_content(database.seal_key, _purpose(database, bool(seen)), content)


class FromToken(NamedTuple):
    """The content of a token. ``known``: the group that the history must have."""

    place: Place
    known: SeenGroup
    seen: bytes


def from_token(database: Database, token: bytes, *, scoped: bool = False) -> FromToken:
    """Return what a token holds; ``scoped``: it must be one with a digest.

    Raises:
        CallError: INVALID_TOKEN.
    """
    content = open_content(database.seal_key, _purpose(database, scoped), token)
    size = _numbers.size + (DIGEST_BYTES if scoped else 0)
    if content is None or len(content) < size:
        raise CallError(
            errors_pb2.REASON_INVALID_TOKEN, "page_token is not one that was given for this database: start again"
        )
    base, position, ordinal, offset, head, chain = _numbers.unpack_from(content)
    place = Place(base, Cursor(position, content[size:].decode(), ordinal, offset))
    return FromToken(place, SeenGroup(head, chain), content[_numbers.size : size])
