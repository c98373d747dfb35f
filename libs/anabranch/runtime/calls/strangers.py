"""Bounds calls that need no credentials: health, and reflection on loopback.

Anybody can make such calls. So they are few at a time and short, and their messages small. When there are too many,
the oldest is ended and the new one served: a probe's message comes with its metadata, so a probe is done while it is
new, and calls that only hold memory grow old.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc

from anabranch.runtime.calls.requests import Reader, first_of, next_of, serve_stream
from anabranch.runtime.calls.streams import OpenStream, Streams
from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2

Context = grpc.aio.ServicerContext[Any, Any]
MAX_BYTES = 4 * 1024
"""The largest message of such a call."""
MOST_READ = 4
"""Calls whose message is being taken: so many messages of the size that gRPC takes are held at most, and
copied in one turn of the event loop."""
FAIR_S = 0.1
"""How long a message may take to come while other calls wait to have theirs taken."""
FIRST_REQUEST_S = 10.0
LONGEST_S = 600.0
"""The longest that such a call lasts; a watcher of health calls again then."""
MOST_REQUESTS = 1_000
"""Of one stream of reflection."""


class Strangers:
    """Serves calls without credentials."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        # Each with the moment from which on its message is waited for, in this order.
        self._reading: dict[OpenStream, float] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def serving(
        self, behaviour: Callable[..., Any], deserialize: Callable[[bytes], Any] | None, streams_in: bool
    ) -> Callable[..., Any]:
        """A coroutine that serves one call. ``streams_in``: the behaviour takes a stream of requests."""
        reader = Reader(deserialize, MAX_BYTES)

        async def serve(_: Any, context: Context, stream: OpenStream) -> Any:
            try:
                async with asyncio.timeout(LONGEST_S):
                    if streams_in:
                        async with contextlib.aclosing(self._requests(context, reader, stream)) as requests:
                            return await serve_stream(behaviour, requests, context)
                    raw = await self._taken(stream, partial(first_of, context, FIRST_REQUEST_S))
                    if raw is None:
                        raise CallError(errors_pb2.REASON_INVALID_REQUEST, "the call has no request")
                    reader.cost(raw)
                    request, raw = reader.read(raw), None
                    return await serve_stream(behaviour, request, context)
            except TimeoutError:
                raise CallError(errors_pb2.REASON_UNAVAILABLE, "a call without credentials ends by now") from None

        return serve

    async def _requests(self, context: Context, reader: Reader, stream: OpenStream) -> AsyncGenerator[Any, None]:
        for _ in range(MOST_REQUESTS):
            raw = await self._taken(stream, partial(next_of, context))
            if raw is None:
                return
            reader.cost(raw)
            yield reader.read(raw)
        raise CallError(errors_pb2.REASON_OVERLOADED, "a stream without credentials has too many requests")

    async def _taken(self, stream: OpenStream, coming: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        loop = asyncio.get_running_loop()
        await self._room()
        self._reading[stream] = time.monotonic()
        late = loop.call_later(FAIR_S, self._late, stream)
        try:
            return await coming()
        finally:
            late.cancel()
            if self._reading.pop(stream, None) is not None:
                self._let_in()

    async def _room(self) -> None:
        """Wait until one more message may be taken."""
        while len(self._reading) >= MOST_READ:
            oldest, since = next(iter(self._reading.items()))
            if time.monotonic() - since >= FAIR_S:
                self._evict(oldest)
                return
            let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(let_in)
            try:
                await let_in
            finally:
                if let_in in self._waiting:
                    self._waiting.remove(let_in)

    def _late(self, stream: OpenStream) -> None:
        """The message of a call has not come in a fair time."""
        if self._waiting and stream in self._reading:
            self._evict(stream)
            self._let_in()

    def _evict(self, stream: OpenStream) -> None:
        del self._reading[stream]
        stream.end(CallError(errors_pb2.REASON_OVERLOADED, "newer calls without credentials have come"))

    def _let_in(self) -> None:
        """Have the newest call that waits look for room: it is the one that is most likely to be waited for."""
        while self._waiting:
            let_in = self._waiting.pop()
            if not let_in.done():
                let_in.set_result(None)
                return
