"""Clients that send what they have queued over gRPC and wait for the verdicts: bare ones, so that a bench of the server
measures the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import grpc

from anabranch.bench.workload import DATABASE, Client, Made
from anabranch.errors import AnabranchError
from anabranch.v1 import batch_pb2, errors_pb2, ingest_pb2, ingest_pb2_grpc, position_pb2, verdict_pb2

CALL_TIMEOUT_S = 30.0
MAX_ATTEMPTS = 20
R = TypeVar("R", ingest_pb2.SendRequest, ingest_pb2.SendStreamRequest)
Stream: TypeAlias = "grpc.aio.StreamStreamCall[ingest_pb2.SendStreamRequest, ingest_pb2.SendStreamResponse]"


class NotAppliedError(AnabranchError):
    """A batch of the workload did not get the expected verdict: the figure would mean nothing."""


@dataclass(slots=True)
class Sender:
    """One client on one channel. ``per_call`` envelopes travel together at most. ``live``: as messages on one open
    stream, as a device at work sends small writes, else by calls."""

    client: Client
    stub: ingest_pb2_grpc.IngestServiceAsyncStub
    key: str
    per_call: int
    token: bytes = b""
    calls: int = 0
    live: bool = False
    _stream: Stream | None = None

    async def send(self, batches: Sequence[Made], prev: str) -> str:
        """Send and wait until every batch has its verdict; return the last id.

        Raises:
            NotAppliedError: a verdict is another than expected, or does not come.
        """
        envelopes = []
        for batch in batches:
            envelopes.append(batch_pb2.Envelope(payload=batch.payload, basis=self.client.basis, prev=prev))
            prev = batch.id
        for _ in range(MAX_ATTEMPTS):
            self.calls += 1
            if self.all_decided(await (self._message(envelopes) if self.live else self._call(envelopes))):
                return prev
        raise NotAppliedError(f"no verdict after {MAX_ATTEMPTS} calls")

    async def _call(self, envelopes: Sequence[batch_pb2.Envelope]) -> Sequence[verdict_pb2.Verdict]:
        request = self._request(ingest_pb2.SendRequest, envelopes)
        response = await self.stub.Send(request, timeout=CALL_TIMEOUT_S, metadata=self._metadata())
        self.token = response.node_token
        return response.verdicts

    async def _message(self, envelopes: Sequence[batch_pb2.Envelope]) -> Sequence[verdict_pb2.Verdict]:
        if self._stream is None:
            self._stream = self.stub.SendStream(metadata=self._metadata())
        await self._stream.write(self._request(ingest_pb2.SendStreamRequest, envelopes))
        verdicts: list[verdict_pb2.Verdict] = []
        async with asyncio.timeout(CALL_TIMEOUT_S):
            while len(verdicts) < len(envelopes):
                response = await self._stream.read()
                if not isinstance(response, ingest_pb2.SendStreamResponse):
                    raise NotAppliedError("the server ended the stream")
                self.token = response.node_token or self.token
                verdicts += response.verdicts
        return verdicts

    def _request(self, kind: type[R], envelopes: Sequence[batch_pb2.Envelope]) -> R:
        return kind(
            db_name=DATABASE,
            node_state=position_pb2.NodeState(node=batch_pb2.Node(id=self.client.node_id, name="bench")),
            node_token=self.token,
            envelopes=envelopes,
        )

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.key}"),)

    def all_decided(self, verdicts: Iterable[verdict_pb2.Verdict]) -> bool:
        """Whether none is pending. Raises NotAppliedError where one is another than expected."""
        decided = True
        for verdict in verdicts:
            if verdict.status == verdict_pb2.VERDICT_STATUS_PENDING:
                decided = False
            elif (verdict.status == verdict_pb2.VERDICT_STATUS_REJECTED) != (verdict.batch_id in self.client.refused):
                raise NotAppliedError(f"batch {verdict.batch_id}: {verdict.message or 'it was applied'}")
            elif verdict.batch_id in self.client.refused and verdict.reason != errors_pb2.REASON_CONSTRAINT:
                raise NotAppliedError(f"batch {verdict.batch_id} broke no constraint: {verdict.message}")
        return decided

    async def send_all(self) -> None:
        """Send everything, call after call."""
        batches, prev = self.client.batches, ""
        for start in range(0, len(batches), self.per_call):
            # The batches sent before have their verdicts and have left the queue: the first of a call has no prev.
            await self.send(batches[start : start + self.per_call], prev)
            prev = ""


async def _all(address: str, key: str, clients: Sequence[Client], per_call: int, live: bool) -> float:
    channels = [grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in clients]
    try:
        senders = [
            Sender(client, ingest_pb2_grpc.IngestServiceStub(channel), key, per_call, live=live)
            for client, channel in zip(clients, channels, strict=True)
        ]
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for sender in senders:
                group.create_task(sender.send_all())
        return time.perf_counter() - started
    finally:
        for channel in channels:
            await channel.close()


def send_all(address: str, key: str, clients: Sequence[Client], per_call: int, *, live: bool = False) -> float:
    """Have all clients send everything at the same time, ``live`` as in ``Sender``; return seconds from the first call
    to the last verdict.

    Raises:
        NotAppliedError: a batch got another verdict than expected, or none.
    """
    return asyncio.run(_all(address, key, clients, per_call, live))
