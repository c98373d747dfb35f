"""The verdict on a batch that waits for a row which an earlier batch of its node may bring."""

from __future__ import annotations

from datetime import UTC, datetime

from anabranch.v1 import errors_pb2, verdict_pb2

_SHOWN_CHARACTERS = 200


def awaiting_row(batch_id: str, table: str, key: str, until_ms: int) -> bytes:
    """A serialized PENDING verdict. ``key`` is the row's key text; ``until_ms``: the latest time at which the batch is
    decided, in milliseconds since 1970."""
    # A long key is known by a digest, which means nothing to a reader.
    shown = key if len(key) <= _SHOWN_CHARACTERS else f"{key[:_SHOWN_CHARACTERS]}…"
    until = datetime.fromtimestamp(until_ms // 1000, UTC).isoformat()
    return verdict_pb2.Verdict(
        batch_id=batch_id,
        status=verdict_pb2.VERDICT_STATUS_PENDING,
        reason=errors_pb2.REASON_AWAITS_ROW,
        message=(
            f"waits for row {shown} of {table}, which an earlier batch of this node may bring, until {until} at the "
            "latest: send what was queued before it"
        ),
    ).SerializeToString()
