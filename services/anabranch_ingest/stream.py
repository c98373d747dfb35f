"""``SendStream``: a flush without end, or the open line of a device that writes now and then.

States of a stream: *opening* (its first request names the call; its token is looked at), *flowing* (one task reads,
decodes and appends a request after the other; beside it verdicts are written as they are decided), *ending* (the client
has closed its side; what is missing is waited for), *ended*: all verdicts are written, or the deadline has come and the
rest is PENDING.

A further request that carries a node's token is a call of its own, and judged like one: its token, the position that
its node has seen, its rules, its rate. It shares only the stream with the others, where all answers after it tell
the node's token. One without a token is a part of the flush that the first request began.

Memory: what is read but not appended is one request, and one payload in parts, which has a deadline and counts against
its principal (``quota.HeldParts``); what has no verdict yet, or one that the client has not taken, is bounded by the
window. While that is full nothing is read, and gRPC's flow control holds the client back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from anabranch import faults
from anabranch.runtime import metrics, telemetry
from anabranch.store.inbox.append import LAST_CALL_IDS
from anabranch.store.nodes.tokens import Call
from anabranch.v1 import ingest_pb2
from anabranch.wire.envelopes import Assembly, Received, least_id, receive
from anabranch_ingest import answers
from anabranch_ingest.calls import Opening, SortedRequest, check_size, invalid, sort_batches
from anabranch_ingest.ingest import Ingest
from anabranch_ingest.waiting import Ticket

RESPONSE_BYTES = 1_000_000
"""Verdicts of so many bytes travel in one response, and one verdict in any case."""

Requests = AsyncIterator[ingest_pb2.SendStreamRequest]


async def serve_stream(ingest: Ingest, requests: Requests, remaining_s: float | None) -> AsyncGenerator[bytes, None]:
    """The responses of a stream. ``remaining_s``: seconds until its deadline, None for none.

    Raises:
        CallError: as ``Ingest.append`` and ``Ingest.open``, and INVALID_REQUEST.
    """
    longest_s = ingest.settings.stream_max_ms / 1000
    if remaining_s is not None:
        margin_s = min(ingest.settings.answer_margin_ms / 1000, remaining_s * 0.1)
        longest_s = min(longest_s, remaining_s - margin_s)
    deadline = time.monotonic() + max(0.0, longest_s)
    try:
        first = await asyncio.wait_for(anext(aiter(requests)), longest_s)
    except StopAsyncIteration:
        raise invalid("the stream has no request") from None
    except TimeoutError:
        raise invalid("the stream's first request did not come before its deadline") from None
    opening = await ingest.open(first)
    async with ingest.ticket(opening) as ticket:
        flow = _Flow(ingest, opening, ticket, deadline)
        reader: asyncio.Task[None] | None = None
        try:
            await flow.open(first)
            del first
            yield flow.response([])
            reader = asyncio.create_task(flow.read(requests))
            reader.add_done_callback(lambda _: ticket.wake())
            async with contextlib.aclosing(flow.responses(reader)) as responses:
                async for response in responses:
                    yield response
        finally:
            if reader is not None:
                reader.cancel()
                await asyncio.wait({reader})
                # Its result was raised above, or the stream had ended for another reason first.
                _ = reader.cancelled() or reader.exception()
            flow.close()


class _Flow:
    """One stream, from its first request on."""

    def __init__(self, ingest: Ingest, opening: Opening, ticket: Ticket, deadline: float) -> None:
        self._ingest = ingest
        self._opening = opening
        self._ticket = ticket
        self._deadline = deadline
        self._call: Call | None = None
        self._named = False
        self._appended_s: dict[str, float] = {}
        self._recorded = 0
        self._assembly: Assembly | None = None
        self._parts_held = 0
        self._parts_until = 0.0
        self._room = asyncio.Event()

    async def open(self, first: ingest_pb2.SendStreamRequest) -> None:
        """Look at the token and append the first request's batches. Raises as ``Ingest.append``."""
        with self._holding(check_size(first)):
            batches = self._sort(first)
            self._call = self._opening.call(batches.batch_ids, rotates=True)
            self._recorded = len(batches.arrivals)
            await self._ingest.append(self._opening, self._call, batches.arrivals, self._ticket, self._left_s())

    async def read(self, requests: Requests) -> None:
        """Append the further requests. Raises as ``Ingest.append``, and CallError INVALID_REQUEST."""
        window = self._ingest.settings.stream_window_batches
        while (request := await self._next(requests)) is not None:
            if request.db_name not in ("", self._opening.database.name):
                raise invalid("a stream is for one database: db_name differs from the first request's")
            with self._holding(check_size(request)):
                if request.node_token:
                    with telemetry.span("send"):
                        await self._judge(request)
                else:
                    await self._append(self._sort(request))
            # Nothing of it is kept while the next one is waited for.
            request = None
            if self._assembly is None:
                self._hold_parts(0)
            while self._used() >= window:
                self._room.clear()
                await self._room.wait()
        if self._assembly is not None:
            raise invalid("the stream ends inside of a payload: payload_incomplete was set in its last envelope")

    async def _next(self, requests: Requests) -> ingest_pb2.SendStreamRequest | None:
        """The next request; None at the end. Raises CallError INVALID_REQUEST where a payload's part does not come."""
        if self._assembly is None:
            return await anext(requests, None)
        settings = self._ingest.settings
        left_s = min(settings.part_wait_ms / 1000, self._parts_until - time.monotonic())
        try:
            async with asyncio.timeout(max(0.0, left_s)):
                return await anext(requests, None)
        except TimeoutError:
            raise invalid(
                f"a payload's next part did not come within {settings.part_wait_ms / 1000:g} s, or its last one within "
                f"{settings.parts_max_ms / 1000:g} s: send the batch again"
            ) from None

    def close(self) -> None:
        """Let go of what the stream holds."""
        self._assembly = None
        self._hold_parts(0)

    def _hold_parts(self, size: int) -> None:
        self._ingest.parts.hold(self._opening.principal, self._parts_held, size)
        self._parts_held = size

    @contextlib.contextmanager
    def _holding(self, size: int) -> Iterator[None]:
        self._ingest.memory.take(size)
        try:
            yield
        finally:
            self._ingest.memory.give_back(size)

    async def _judge(self, request: ingest_pb2.SendStreamRequest) -> None:
        """Append a request that is a call of its own. Its node has the token, as it says, so that none is given: a copy
        of the node that has called since is found out by it. Raises as ``read``."""
        ingest = self._ingest
        opening = await ingest.open(request)
        if (opening.database.id, opening.node_id) != (self._opening.database.id, self._opening.node_id):
            raise invalid("a stream is for one node of one database: a request names another one than the first")
        self._opening, self._named = opening, True
        batches = self._sort(request)
        self._call = opening.call(batches.batch_ids, rotates=False)
        await ingest.append(
            opening, self._call, batches.arrivals, self._ticket, min(self._left_s(), ingest.wait_s(None))
        )
        now = time.monotonic()
        self._appended_s.update((i, now) for i in batches.batch_ids if i in self._ticket.missing)

    async def _append(self, batches: SortedRequest) -> None:
        ids = batches.batch_ids
        call = None
        if ids and self._recorded < LAST_CALL_IDS:
            assert self._call is not None
            call = self._opening.extension(self._call.new_token, ids[: LAST_CALL_IDS - self._recorded])
            self._recorded += len(ids)
        await self._ingest.append(self._opening, call, batches.arrivals, self._ticket, self._left_s(), admitted=True)

    async def responses(self, reader: asyncio.Task[None]) -> AsyncGenerator[bytes, None]:
        """Verdicts as they are decided, until the reader has ended and none is missing, or the time is over."""
        ticket = self._ticket
        while True:
            while ticket.found or ticket.placeless:
                verdicts = self._take()
                faults.reach("before_answer")
                await self._ingest.databases.reach(self._opening.database, ticket.newest)
                yield self.response(verdicts)
                self._room.set()
            if reader.done():
                reader.result()
                if not ticket.missing:
                    return
            if ticket.given_up or self._left_s() <= 0:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._left_s()):
                    await ticket.changed()
        missing = [answers.pending(batch_id) for batch_id in sorted(ticket.missing)]
        for start in range(0, len(missing), 10_000):
            yield self.response(missing[start : start + 10_000])

    def response(self, verdicts: list[bytes]) -> bytes:
        """A response; the first one has the token, and so have those after a request that named it."""
        ingest, call = self._ingest, self._call
        token = call.new_token if call is not None and (self._named or not verdicts) else b""
        return answers.answer(verdicts, token, ingest.databases.state(self._opening.database, ingest.clock.now_ms()))

    def _take(self) -> list[bytes]:
        ticket = self._ticket
        taken: list[bytes] = []
        size = 0
        while size < RESPONSE_BYTES and (ticket.placeless or ticket.found):
            if ticket.placeless:
                verdict = ticket.placeless.pop()
            else:
                batch_id, verdict = ticket.found.popitem()
                if (appended_s := self._appended_s.pop(batch_id, None)) is not None:
                    wait_s = time.monotonic() - appended_s
                    metrics.record("anabranch_verdict_wait", wait_s, database=self._opening.database.name)
            taken.append(answers.bounded(verdict))
            size += len(taken[-1])
        return taken

    def _sort(self, request: ingest_pb2.SendStreamRequest) -> SortedRequest:
        ingest, database = self._ingest, self._opening.database
        oldest = least_id(ingest.clock.now_ms() - database.retention_ms)
        # A stream goes on for an hour, and rules may change meanwhile.
        self._opening.follow_rules(ingest.databases.by_id(database.id) or database)
        last = len(request.envelopes) - 1
        received: list[Received] = []
        for index, envelope in enumerate(request.envelopes):
            if envelope.payload_incomplete and index != last:
                raise invalid("payload_incomplete is set in an envelope that is not its request's last")
            if self._assembly is not None:
                self._assembly.add(envelope.payload)
                self._hold_parts(self._assembly.kept)
                if not envelope.payload_incomplete:
                    received.append(self._assembly.receive(database.name, oldest))
                    self._assembly = None
            elif envelope.payload_incomplete:
                self._assembly = Assembly(envelope)
                self._parts_until = time.monotonic() + self._ingest.settings.parts_max_ms / 1000
                self._hold_parts(self._assembly.kept)
            else:
                received.append(receive(envelope.payload, envelope.basis, envelope.prev, database.name, oldest))
        batches = sort_batches(self._opening, received)
        for place in batches.places:
            if isinstance(place, bytes):
                self._ticket.placeless.append(place)
        return batches

    def _used(self) -> int:
        ticket = self._ticket
        return len(ticket.missing) + len(ticket.found) + len(ticket.placeless)

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()
