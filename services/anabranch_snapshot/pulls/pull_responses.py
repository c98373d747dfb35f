"""Chunks of a pull as serialized responses, wherever their rows come from."""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.v1 import position_pb2, snapshot_pb2
from anabranch.values.message_bytes import varint

PART_BYTES = 3_500_000
"""The most of a chunk that one response carries; below the 4 MiB that a gRPC channel takes by default."""
_ARROW_IPC = bytes((snapshot_pb2.PullResponse.ARROW_IPC_FIELD_NUMBER << 3 | 2,))
Response = tuple[snapshot_pb2.PullResponse, memoryview]
"""A response without its field arrow_ipc, and that field."""


def in_parts(whole: snapshot_pb2.PullResponse, ipc: memoryview, as_of: position_pb2.Position) -> Iterator[Response]:
    """The responses that carry a chunk: ``whole`` is the one that ends it."""
    last = range(0, len(ipc), PART_BYTES)[-1]
    for start in range(0, last, PART_BYTES):
        part = snapshot_pb2.PullResponse(table=whole.table, arrow_ipc_incomplete=True, as_of=as_of)
        yield part, ipc[start : start + PART_BYTES]
    yield whole, ipc[last:]


def with_ipc(response: snapshot_pb2.PullResponse, ipc: memoryview) -> bytes:
    """The response with its field arrow_ipc, which so is copied once and not three times."""
    if not ipc:
        return response.SerializeToString()
    return b"".join((response.SerializeToString(), _ARROW_IPC, varint(len(ipc)), ipc))
