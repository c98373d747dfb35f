"""Turns the bytes of requests into messages, within bounds that are checked before anything is parsed.

A request is refused by its size, then by the number of its fields, then by its form. What it takes while it is under
way, as bytes and as a message, counts against its principal's share of the process (``UnderWay``).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from anabranch.runtime.calls.forms import check, plan_of
from anabranch.runtime.calls.limits import RateLimit
from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2
from anabranch.wire.fields import FIELD_BYTES, FLAT, count_fields, shape_of

Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[..., Any]
MOST_FIELDS = 20_000
"""Fields of one request. The largest that devices send are 10,000 ids beside 1,000 envelopes."""
UNCOUNTED_BYTES = 1_024
"""A request up to this size takes less than the call around it, whatever it holds."""
METADATA_S = 5.0
"""Seconds in which a connection takes the initial metadata of a stream that is ended."""
_SHARE = 2


class UnderWay:
    """The memory of all requests that are under way; at most ``limit`` bytes, half of it for one principal."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of: Counter[str] = Counter()
        self.held = 0

    @contextlib.contextmanager
    def holding(self, subject: str, size: int) -> Iterator[None]:
        """Hold so many bytes; one request of a principal in any case. Raises CallError OVERLOADED."""
        if size <= UNCOUNTED_BYTES:
            yield
            return
        own = self._of[subject]
        if (own and own + size > self._limit // _SHARE) or (self.held and self.held + size > self._limit):
            raise CallError(
                errors_pb2.REASON_OVERLOADED,
                "the requests under way hold as many bytes as they may: send again in a second",
                retry_after_ms="1000",
            )
        self._of[subject] += size
        self.held += size
        try:
            yield
        finally:
            self.held -= size
            self._of[subject] -= size
            if not self._of[subject]:
                del self._of[subject]


class Reader:
    """Reads the requests of one method."""

    def __init__(self, deserialize: Callable[[bytes], Any] | None, max_bytes: int) -> None:
        self._deserialize = deserialize
        self._max_bytes = max_bytes
        # Of a generated class, whose method this is. Reflection's own messages have no forms here.
        descriptor = getattr(getattr(deserialize, "__self__", None), "DESCRIPTOR", None)
        self._shape = FLAT if descriptor is None else shape_of(descriptor)
        formed = descriptor is not None and not descriptor.full_name.startswith("grpc.reflection.")
        self._plan = plan_of(descriptor) if formed else None

    def cost(self, raw: bytes) -> int:
        """The bytes that the request takes as bytes and as a message. Raises CallError MESSAGE_TOO_LARGE."""
        size = len(raw)
        if size <= UNCOUNTED_BYTES:
            return size
        if size > self._max_bytes:
            raise CallError(
                errors_pb2.REASON_MESSAGE_TOO_LARGE,
                f"a message of {size} bytes; at most {self._max_bytes} are taken",
                max_bytes=str(self._max_bytes),
            )
        fields = count_fields(raw, self._shape, MOST_FIELDS)
        if fields > MOST_FIELDS:
            raise CallError(
                errors_pb2.REASON_MESSAGE_TOO_LARGE,
                f"a message of more than {MOST_FIELDS} fields; so many are taken at most",
                max_fields=str(MOST_FIELDS),
            )
        return 2 * size + FIELD_BYTES * fields

    def read(self, raw: bytes) -> Any:
        """The message, in form. Raises CallError: INVALID_REQUEST."""
        if self._deserialize is None:
            return raw
        try:
            message = self._deserialize(raw)
        except DecodeError:
            raise CallError(errors_pb2.REASON_INVALID_REQUEST, "the request is no message of this call") from None
        if self._plan is not None:
            check(message, self._plan)
        return message


async def next_of(context: Context) -> bytes | None:
    """The next request of a stream; None at its end. gRPC's own iterator would keep it until the one after has come."""
    raw = await context.read()
    return None if raw is grpc.aio.EOF else raw


async def first_of(context: Context, within_s: float) -> bytes | None:
    """The first request of a stream; None where it has none. Raises CallError INVALID_REQUEST where it does not come
    in time."""
    try:
        async with asyncio.timeout(within_s):
            return await next_of(context)
    except TimeoutError:
        raise CallError(
            errors_pb2.REASON_INVALID_REQUEST, f"the stream's first request did not come within {within_s:g} s"
        ) from None


async def paced(
    context: Context, reader: Reader, under_way: UnderWay, rate: RateLimit, subject: str, within_s: float
) -> AsyncGenerator[Any, None]:
    """The requests of a principal's stream, the first one ``within_s`` seconds. Each is held until the next is asked
    for. Raises CallError as ``Reader``, ``UnderWay`` and ``first_of``."""
    raw = await first_of(context, within_s)
    while raw is not None:
        with under_way.holding(subject, reader.cost(raw)):
            request = reader.read(raw)
            raw = None
            yield request
            request = None
        raw = await next_of(context)
        if raw is not None:
            # Only from the second request on: the stream's opening took a token.
            await rate.wait(subject)


async def serve_stream(behaviour: Behaviour, request: Any, context: Context) -> Any:
    """Let a servicer answer, and write what it yields."""
    if not inspect.isasyncgenfunction(behaviour):
        return await behaviour(request, context)
    begun = False
    async with contextlib.aclosing(behaviour(request, context)) as responses:
        async for response in responses:
            if not begun:
                await _send_metadata(context)
                begun = True
            await context.write(response)
    return None


async def _send_metadata(context: Context) -> None:
    """Send the initial metadata before the first message, and to the end also where the stream is ended meanwhile. gRPC
    notes only afterwards that it was sent: the status would carry it once more, fail, and never reach the caller."""
    sending = asyncio.ensure_future(context.send_initial_metadata(()))
    try:
        await asyncio.shield(sending)
    except asyncio.CancelledError:
        await asyncio.wait({sending}, timeout=METADATA_S)
        if not sending.cancel() and not sending.cancelled():
            # The stream ends by its own failure, and what came of this is of no interest any more.
            sending.exception()
        raise
