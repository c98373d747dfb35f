"""Parse envelopes: each payload is parsed once, its id read and its form checked.

The checks here need no catalog: ids, the database's name, that the batch is not empty, limits, and that rows have the
width of their columns. The resolver checks tables, columns and values. A malformed batch is still appended, with the
reason, so that its verdict is stored, and found again, like any other. Only a payload without a readable id can't be
kept under one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256

from google.protobuf.message import DecodeError
from ulid import base32

from anabranch import limits
from anabranch.v1 import batch_pb2, errors_pb2, value_pb2
from anabranch.v1.errors_pb2 import Reason
from anabranch.wire.fields import FLAT, count_fields
from anabranch.wire.ulids import is_ulid

_ID_AT_START = re.compile(rb"\x0a\x1a([0-7][0-9A-HJKMNP-TV-Z]{25})", re.DOTALL).match
_ID_BYTES = 28
_UNCOUNTED_BYTES = 64 * 1024
_MOST_FIELDS = limits.MAX_BATCH_MUTATIONS + 4
"""Of a batch: its mutations, and one each of the others."""
_SHOWN_ID_CHARACTERS = 64
_TYPES_END = batch_pb2.MUTATION_TYPE_DELETE + 1

Refusal = tuple["Reason.ValueType", str]
"""An anabranch.v1.Reason, and the reason in words."""
_EXPIRED: Refusal = (
    errors_pb2.REASON_EXPIRED,
    "the batch was made longer ago than verdicts are kept: replay it as a new one",
)


@dataclass(slots=True, eq=False)
class Received:
    """A received batch. ``batch_id`` is empty where no ULID could be read; ``shown_id`` is then the text in its place,
    cut short. ``refusal`` says why the batch is malformed."""

    batch_id: str
    payload: bytes
    payload_sha256: bytes
    basis: int
    prev: str
    refusal: Refusal | None
    shown_id: str = ""


def least_id(time_ms: int) -> str:
    """The text that no ULID made at ``time_ms`` or later is less than."""
    return base32.encode_timestamp(max(0, time_ms).to_bytes(6, "big"))


def receive(payload: bytes, basis: int, prev: str, db_name: str, oldest: str) -> Received:
    """Parse an envelope. ``oldest``: a smaller id was made longer ago than verdicts are kept."""
    digest = sha256(payload).digest()
    if len(payload) > limits.MAX_BATCH_BYTES:
        return Received(_id_at_start(payload), b"", digest, 0, "", _too_large(len(payload)))
    if len(payload) > _UNCOUNTED_BYTES and count_fields(payload, FLAT, _MOST_FIELDS) > _MOST_FIELDS:
        # Parsed, mutations without content would take thirty times their bytes.
        refusal = (errors_pb2.REASON_LIMIT_EXCEEDED, f"more than {limits.MAX_BATCH_MUTATIONS} mutations")
        return Received(_id_at_start(payload), b"", digest, 0, "", refusal)
    try:
        batch = batch_pb2.DbMutationBatch.FromString(payload)
    except DecodeError:
        refusal = (errors_pb2.REASON_MALFORMED, "the payload is not a DbMutationBatch")
        return Received(_id_at_start(payload), b"", digest, 0, "", refusal)
    batch_id = batch.id
    if not is_ulid(batch_id):
        refusal = (errors_pb2.REASON_INVALID_ID, "the batch's id is not a ULID in its canonical form")
        return Received("", b"", digest, 0, "", refusal, batch_id[:_SHOWN_ID_CHARACTERS])
    found = (
        _envelope_refusal(batch_id, basis, prev)
        or (_EXPIRED if batch_id < oldest else None)
        or _batch_refusal(batch, db_name)
        or (_value_refusal(batch) if len(payload) > limits.MAX_VALUE_BYTES else None)
    )
    if found is None:
        return Received(batch_id, payload, digest, basis, prev, None)
    return Received(batch_id, b"", digest, 0, "", found)


class Assembly:
    """A payload that comes in parts. Above the limit its parts are counted and hashed, and not kept."""

    def __init__(self, first: batch_pb2.Envelope) -> None:
        self._basis = first.basis
        self._prev = first.prev
        self._parts: list[bytes] = []
        self._size = 0
        self._hash = sha256()
        self._start = b""
        self.add(first.payload)

    def add(self, part: bytes) -> None:
        """Add the next part."""
        self._size += len(part)
        self._hash.update(part)
        if len(self._start) < _ID_BYTES:
            self._start += part[:_ID_BYTES]
        if self._size > limits.MAX_BATCH_BYTES:
            self._parts.clear()
        else:
            self._parts.append(part)

    @property
    def kept(self) -> int:
        """The number of bytes held."""
        return 0 if self._size > limits.MAX_BATCH_BYTES else self._size

    def receive(self, db_name: str, oldest: str) -> Received:
        """``receive`` for the whole payload."""
        if self._size > limits.MAX_BATCH_BYTES:
            batch_id = _id_at_start(self._start)
            return Received(batch_id, b"", self._hash.digest(), 0, "", _too_large(self._size))
        return receive(b"".join(self._parts), self._basis, self._prev, db_name, oldest)


def _too_large(size: int) -> Refusal:
    return (
        errors_pb2.REASON_LIMIT_EXCEEDED,
        f"the batch has {size} bytes; at most {limits.MAX_BATCH_BYTES} are taken",
    )


def _id_at_start(payload: bytes) -> str:
    found = _ID_AT_START(payload)
    return found[1].decode() if found else ""


def _envelope_refusal(batch_id: str, basis: int, prev: str) -> Refusal | None:
    if prev and (not is_ulid(prev) or prev >= batch_id):
        return errors_pb2.REASON_INVALID_ID, "prev is not the id of an earlier batch"
    if basis < 0:
        return errors_pb2.REASON_MALFORMED, "the basis is negative"
    return None


def _batch_refusal(batch: batch_pb2.DbMutationBatch, db_name: str) -> Refusal | None:
    if batch.db_name != db_name:
        return errors_pb2.REASON_WRONG_DATABASE, "the batch names another database than the call"
    if not is_ulid(batch.node.id):
        return errors_pb2.REASON_INVALID_ID, "the batch's node id is not a ULID in its canonical form"
    mutations = batch.mutations
    if not mutations:
        return errors_pb2.REASON_EMPTY, "the batch has no mutation"
    if len(mutations) > limits.MAX_BATCH_MUTATIONS:
        return _above("mutations", len(mutations), limits.MAX_BATCH_MUTATIONS)
    total = 0
    for index, mutation in enumerate(mutations):
        columns, rows = mutation.columns, mutation.rows
        width, count = len(columns), len(rows)
        total += count
        if not width or not count:
            return errors_pb2.REASON_EMPTY, f"mutation {index} has no {'column' if count else 'row'}"
        if not 0 < mutation.type < _TYPES_END:
            return errors_pb2.REASON_MALFORMED, f"mutation {index} has no type that is known"
        if width > limits.MAX_COLUMNS:
            return _above(f"columns in mutation {index}", width, limits.MAX_COLUMNS)
        # Usually all names together are short enough, and then so is each.
        names = mutation.table + "".join(columns)
        if len(names) > limits.MAX_NAME_BYTES or not names.isascii():
            longest = max(len(name.encode()) for name in (mutation.table, *columns))
            if longest > limits.MAX_NAME_BYTES:
                return _above(f"bytes in a name of mutation {index}", longest, limits.MAX_NAME_BYTES)
        for row in rows:
            if len(row.values) != width:
                return (
                    errors_pb2.REASON_MALFORMED,
                    f"a row of mutation {index} has {len(row.values)} values for {width} columns",
                )
    if total > limits.MAX_BATCH_ROWS:
        return _above("rows", total, limits.MAX_BATCH_ROWS)
    return None


def _value_refusal(batch: batch_pb2.DbMutationBatch) -> Refusal | None:
    for index, mutation in enumerate(batch.mutations):
        for row in mutation.rows:
            for value in row.values:
                if _size(value) > limits.MAX_VALUE_BYTES:
                    return _above(f"bytes in a value of mutation {index}", value.ByteSize(), limits.MAX_VALUE_BYTES)
    return None


def _size(value: value_pb2.Value) -> int:
    return value.ByteSize()


def _above(what: str, count: int, limit: int) -> Refusal:
    return errors_pb2.REASON_LIMIT_EXCEEDED, f"{count} {what}; at most {limit} are taken"
