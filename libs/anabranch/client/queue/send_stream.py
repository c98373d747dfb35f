"""The requests of a long flush: many batches a request, large ones in parts, a bounded number without a verdict."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator

from anabranch.client.queue import statements
from anabranch.client.queue.statements import Queued
from anabranch.v1 import batch_pb2, ingest_pb2

_REQUEST_ENVELOPES = 250
_REQUEST_BYTES = 500_000
_WINDOW = 2_000
_WAIT_S = 1.0
_ENVELOPE_BYTES = 64


def overhead(batch: Queued) -> int:
    """Bytes that a batch's envelope adds to its payload, at most."""
    return _ENVELOPE_BYTES + len(batch.prev)


class Flush:
    """State model: gRPC's thread takes the next request from ``requests``, the caller's thread reports verdicts by
    ``decided``. No more than ``_WINDOW`` batches are without a verdict. ``end`` lets the requests end at once; after it
    ``conn`` may be closed, wherever gRPC's thread stands and however long it keeps the requests."""

    def __init__(
        self, conn: sqlite3.Connection, head: ingest_pb2.SendStreamRequest, before: str, max_request_bytes: int
    ) -> None:
        self._conn = conn
        self._head = head
        self._before = before
        self._part_bytes = max_request_bytes // 2
        self._open = 0
        self._ended = False
        self._changed = threading.Condition()

    def decided(self, count: int) -> None:
        """Note that ``count`` verdicts have come."""
        with self._changed:
            self._open -= count
            self._changed.notify()

    def end(self) -> None:
        """End the requests; no more batches are read for them."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def _room(self, batches: int) -> bool:
        with self._changed:
            while not self._ended and self._open > 0 and self._open + batches > _WINDOW:
                self._changed.wait(_WAIT_S)
            self._open += batches
            return not self._ended

    def _read(self, after: str) -> list[Queued]:
        with self._changed:
            if self._ended:
                return []
            return statements.unsent(self._conn, after, _REQUEST_ENVELOPES, _REQUEST_BYTES, self._before)

    def requests(self) -> Iterator[ingest_pb2.SendStreamRequest]:
        """The requests in order; the first one names the call."""
        request = self._head
        after = ""
        while True:
            batches = self._read(after)
            if not batches or not self._room(len(batches)):
                return
            after = batches[-1].id
            for batch in batches:
                envelope = batch_pb2.Envelope(payload=batch.value, basis=batch.basis, prev=batch.prev)
                if len(batch.value) <= self._part_bytes:
                    request.envelopes.append(envelope)
                    continue
                if request.envelopes:
                    yield request
                    request = ingest_pb2.SendStreamRequest()
                for start in range(0, len(batch.value), self._part_bytes):
                    end = start + self._part_bytes
                    request.envelopes.add(
                        payload=batch.value[start:end],
                        basis=batch.basis,
                        prev=batch.prev,
                        payload_incomplete=end < len(batch.value),
                    )
                    yield request
                    request = ingest_pb2.SendStreamRequest()
            if request.envelopes:
                yield request
                request = ingest_pb2.SendStreamRequest()
