"""``IngestService``: decode, append, wait, encode."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from anabranch import faults
from anabranch.runtime import metrics
from anabranch.v1 import ingest_pb2
from anabranch.wire.envelopes import least_id, receive
from anabranch_ingest import answers
from anabranch_ingest.calls import check_size, invalid, sort_batches
from anabranch_ingest.ingest import Ingest
from anabranch_ingest.stream import serve_stream

Context = grpc.aio.ServicerContext[Any, Any]
SERVICE = "anabranch.v1.IngestService"


class IngestServicer:
    """Answers are bytes (see ``answers``)."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest

    async def send(self, request: ingest_pb2.SendRequest, context: Context) -> bytes:
        """``IngestService.Send``."""
        size = check_size(request)
        memory = self._ingest.memory
        memory.take(size)
        try:
            return await self._send(request, context)
        finally:
            memory.give_back(size)

    async def _send(self, request: ingest_pb2.SendRequest, context: Context) -> bytes:
        ingest = self._ingest
        opening = await ingest.open(request)
        database = opening.database
        oldest = least_id(ingest.clock.now_ms() - database.retention_ms)
        received = []
        for envelope in request.envelopes:
            if envelope.payload_incomplete:
                raise invalid("payload_incomplete is for SendStream")
            received.append(receive(envelope.payload, envelope.basis, envelope.prev, database.name, oldest))
        batches = sort_batches(opening, received)
        call = opening.call(batches.batch_ids, rotates=bool(batches.arrivals))
        deadline = time.monotonic() + ingest.wait_s(context.time_remaining())
        async with ingest.ticket(opening) as ticket:
            await ingest.append(opening, call, batches.arrivals, ticket, deadline - time.monotonic())
            appended = time.monotonic()
            await ticket.complete(deadline - appended)
            if batches.arrivals and not ticket.missing:
                metrics.record("anabranch_verdict_wait", time.monotonic() - appended, database=database.name)
            verdicts = answers.in_place(batches.places, ticket.found)
            await ingest.databases.reach(database, ticket.newest)
        faults.reach("before_answer")
        return answers.answer(verdicts, call.new_token, ingest.databases.state(database, ingest.clock.now_ms()))

    async def send_stream(
        self, requests: AsyncIterator[ingest_pb2.SendStreamRequest], context: Context
    ) -> AsyncIterator[bytes]:
        """``IngestService.SendStream``."""
        async with contextlib.aclosing(serve_stream(self._ingest, requests, context.time_remaining())) as responses:
            async for response in responses:
                yield response


def register(server: grpc.aio.Server, servicer: IngestServicer) -> None:
    """Add the service. Responses are bytes already, so nothing is left to serialize."""
    handlers: dict[str, Any] = {
        "Send": grpc.unary_unary_rpc_method_handler(servicer.send, ingest_pb2.SendRequest.FromString),
        "SendStream": grpc.stream_stream_rpc_method_handler(
            servicer.send_stream, ingest_pb2.SendStreamRequest.FromString
        ),
    }
    server.add_registered_method_handlers(SERVICE, handlers)
