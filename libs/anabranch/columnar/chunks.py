"""Chunks: record batches as self-contained bytes."""

from __future__ import annotations

import pyarrow as pa


def to_ipc(batch: pa.RecordBatch) -> memoryview:
    """A whole Arrow IPC stream: the schema and this batch. Not copied into bytes, since it goes into a message next."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(sink.getvalue())


def from_ipc(data: bytes) -> pa.Table:
    """The rows of a whole Arrow IPC stream.

    Raises:
        pyarrow.ArrowInvalid: the bytes are no such stream.
    """
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
