"""Bounds calls that need no credentials: health, and reflection on loopback.

Anybody can make such calls. So they are few at a time and short, and their messages small. When there are too many,
the oldest is ended and the new one served: a probe's message comes with its metadata, so a probe is done while it is
new, and calls that only hold memory grow old.

How long a message is, is known when it is here: gRPC has then received and copied all of it, which for megabytes takes
longer than a neighbour's whole call. So messages that were too large are paid for in time: after one, none is taken for
a while that grows with its size. Connections that such messages came on are served when no other one waits, so the
probes of others, which pay a part of that while, are not behind a flood's.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
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
REST_S_PER_BYTE = 8e-9
"""After a message that is too large: 24 ms for one of 3 MB, which takes the event loop 2 to 4 ms."""
MOST_LARGE = 1_000
"""Connections that are remembered because a message on them was too large."""
FIRST_REQUEST_S = 10.0
LONGEST_S = 600.0
"""The longest that such a call lasts; a watcher of health calls again then."""
MOST_REQUESTS = 1_000
"""Of one stream of reflection."""


class Strangers:
    """Serves calls without credentials."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        # Each with its connection, and the moment from which on its message is waited for, in this order.
        self._reading: dict[OpenStream, tuple[str, float]] = {}
        # Each with its connection, in the order in which they came.
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._large: OrderedDict[str, None] = OrderedDict()
        # No message is taken before this moment.
        self._rest_until_s = 0.0
        self._rest: asyncio.TimerHandle | None = None

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
                    raw = await self._taken(stream, context.peer(), partial(first_of, context, FIRST_REQUEST_S))
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
            raw = await self._taken(stream, context.peer(), partial(next_of, context))
            if raw is None:
                return
            reader.cost(raw)
            yield reader.read(raw)
        raise CallError(errors_pb2.REASON_OVERLOADED, "a stream without credentials has too many requests")

    async def _taken(
        self, stream: OpenStream, peer: str, coming: Callable[[], Awaitable[bytes | None]]
    ) -> bytes | None:
        loop = asyncio.get_running_loop()
        await self._room(peer)
        self._reading[stream] = (peer, time.monotonic())
        late = loop.call_later(FAIR_S, self._late, stream)
        try:
            raw = await coming()
            if raw is not None and len(raw) > MAX_BYTES:
                self._pay(peer, len(raw))
            return raw
        finally:
            late.cancel()
            if self._reading.pop(stream, None) is not None:
                self._let_in()

    async def _room(self, peer: str) -> None:
        """Wait until one more message may be taken."""
        while self._rest is not None or len(self._reading) >= MOST_READ:
            if self._rest is None:
                now = time.monotonic()
                late = [
                    s for s, (by, since) in self._reading.items() if now - since >= FAIR_S and self._yields(by, peer)
                ]
                if late:
                    self._evict(late[0])
                    return
            let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waits = (peer, let_in)
            self._waiting.append(waits)
            try:
                await let_in
            except asyncio.CancelledError:
                if let_in.cancelled():
                    self._waiting.remove(waits)
                else:
                    # It ended in the moment of its turn, which is the next one's now.
                    self._let_in()
                raise

    def _pay(self, peer: str, size: int) -> None:
        """A message of so many bytes, too large, was taken."""
        self._large[peer] = None
        self._large.move_to_end(peer)
        if len(self._large) > MOST_LARGE:
            self._large.popitem(last=False)
        now = time.monotonic()
        self._rest_until_s = max(self._rest_until_s, now) + size * REST_S_PER_BYTE
        if self._rest is not None:
            self._rest.cancel()
        self._rest = asyncio.get_running_loop().call_later(self._rest_until_s - now, self._rested)

    def _rested(self) -> None:
        self._rest = None
        for _ in range(MOST_READ - len(self._reading)):
            self._let_in()

    def _late(self, stream: OpenStream) -> None:
        """The message of a call has not come in a fair time."""
        if stream in self._reading:
            by, _ = self._reading[stream]
            if any(self._yields(by, peer) for peer, _ in self._waiting):
                self._evict(stream)
                self._let_in()

    def _yields(self, reading: str, waiting: str) -> bool:
        """Whether a call that is late gives way to one that waits. Nothing gives way to a flood: in a process that is
        short of processor everybody is late, and a probe would be, too."""
        return reading in self._large or waiting not in self._large

    def _evict(self, stream: OpenStream) -> None:
        del self._reading[stream]
        stream.end(CallError(errors_pb2.REASON_OVERLOADED, "newer calls without credentials have come"))

    def _let_in(self) -> None:
        """Have the newest call that waits look for room: it is the one that is most likely to be waited for."""
        while self._waiting and self._rest is None:
            newest = len(self._waiting) - 1
            at = next((at for at in range(newest, -1, -1) if self._waiting[at][0] not in self._large), newest)
            _, let_in = self._waiting.pop(at)
            if not let_in.done():
                let_in.set_result(None)
                return
