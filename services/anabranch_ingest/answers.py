"""Answers as bytes: a stored verdict goes into them as it is, without being parsed.

``SendResponse`` and ``SendStreamResponse`` have the same fields under the same numbers; a test holds that the bytes
made here are those of the messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.store.inbox.heads import DatabaseHead
from anabranch.v1 import errors_pb2, position_pb2, verdict_pb2
from anabranch.values.message_bytes import varint
from anabranch.wire.envelopes import Received, Refusal

MAX_VERDICT_BYTES = 1_000_000
"""The largest verdict that is answered whole."""
MAX_VERDICTS_BYTES = 3_000_000
"""The most bytes of verdicts in one answer, which so stays below the 4 MiB that a gRPC channel takes by default."""

_VERDICT, _TOKEN, _STATE = b"\x0a", b"\x12", b"\x1a"
_ID_BYTES = 26
_PENDING_HEAD = b"\x0a" + bytes((_ID_BYTES,))
_PENDING_TAIL = b"\x10" + bytes((verdict_pb2.VERDICT_STATUS_PENDING,))
_SERVER_TIME = b"\x20"
_LENGTHS = tuple(varint(n) for n in range(4096))


def _length(size: int) -> bytes:
    return _LENGTHS[size] if size < 4096 else varint(size)


def answer(verdicts: Iterable[bytes], node_token: bytes, state: bytes) -> bytes:
    """A response with serialized ``verdicts``, the token (empty: none) and a serialized ServerState."""
    parts: list[bytes] = []
    for verdict in verdicts:
        parts += (_VERDICT, _length(len(verdict)), verdict)
    if node_token:
        parts += (_TOKEN, _length(len(node_token)), node_token)
    parts += (_STATE, _length(len(state)), state)
    return b"".join(parts)


def bounded(verdict: bytes) -> bytes:
    """The verdict, where it is too large for an answer without the rows of the server, or at last without what became
    of each mutation."""
    if len(verdict) <= MAX_VERDICT_BYTES:
        return verdict
    message = verdict_pb2.Verdict.FromString(verdict)
    for mutation in message.mutations:
        mutation.ClearField("server_row")
    if message.ByteSize() > MAX_VERDICT_BYTES:
        message.ClearField("mutations")
    return message.SerializeToString()


def pending(batch_id: str) -> bytes:
    """The verdict PENDING."""
    return _PENDING_HEAD + batch_id.encode() + _PENDING_TAIL


def in_place(places: Iterable[bytes | str], found: Mapping[str, bytes]) -> list[bytes]:
    """Return a verdict for each place: the place's own, or the one found under its id, or PENDING. A verdict that would
    make the answer too large is given as PENDING, too: when the batch is sent again, it is found."""
    verdicts: list[bytes] = []
    room = MAX_VERDICTS_BYTES
    for place in places:
        if type(place) is bytes:
            verdict = place
        else:
            verdict = found.get(place) or pending(place)  # type: ignore[arg-type]
            if len(verdict) > MAX_VERDICT_BYTES:
                verdict = bounded(verdict)
            if len(verdict) > room:
                verdict = pending(place)  # type: ignore[arg-type]
        room -= len(verdict)
        verdicts.append(verdict)
    return verdicts


def unreadable(received: Received, refusal: Refusal) -> bytes:
    """The verdict on a batch that has no readable id: it is not stored, and says the same every time."""
    reason, message = refusal
    return verdict_pb2.Verdict(
        batch_id=received.shown_id,
        status=verdict_pb2.VERDICT_STATUS_REJECTED,
        reason=reason,
        message=message,
    ).SerializeToString()


def reused(batch_id: str) -> bytes:
    """The verdict on other content under a known id. It reveals nothing about the batch that has the id."""
    return verdict_pb2.Verdict(
        batch_id=batch_id,
        status=verdict_pb2.VERDICT_STATUS_REJECTED,
        reason=errors_pb2.REASON_ID_REUSED,
        message="the id was sent before with other content",
    ).SerializeToString()


def state_head(head: DatabaseHead) -> bytes:
    """A serialized ServerState without the time, which ``state`` adds."""
    return position_pb2.ServerState(
        settled=position_pb2.Position(
            epoch=head.epoch,
            server_timestamp_ms=head.position,
            token=head.token,
        ),
        floor=head.floor_ms,
        schema_version=head.schema_version,
    ).SerializeToString()


def state(head: bytes, now_ms: int) -> bytes:
    """A serialized ServerState."""
    return head + _SERVER_TIME + varint(now_ms)
