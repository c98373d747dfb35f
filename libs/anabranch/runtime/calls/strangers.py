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
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from anabranch.runtime.calls.requests import Reader, first_of, next_of, serve_stream
from anabranch.runtime.calls.streams import OpenStream
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


@dataclass(slots=True, eq=False)
class _Turn:
    """A call that waits until its message may be taken, or whose message is being taken. ``late``: it was given a fair
    time and the message has not come."""

    peer: str
    stream: OpenStream
    came: asyncio.Future[None]
    late: bool = False
    timer: asyncio.TimerHandle | None = None


class Strangers:
    """Serves calls without credentials.

    State of a call: it *waits*, then its message is *taken*, then it is served. ``_admit`` alone moves calls from the
    first to the second, and is called whenever that may have become possible: a call came or went, one that is taken is
    late, a rest is over.
    """

    def __init__(self) -> None:
        # Both in the order in which the calls came there.
        self._waiting: list[_Turn] = []
        self._taking: list[_Turn] = []
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
        turn = _Turn(peer, stream, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._admit()
        try:
            await turn.came
            raw = await coming()
            if raw is not None and len(raw) > MAX_BYTES:
                self._pay(peer, len(raw))
            return raw
        finally:
            self._leave(turn)
            self._admit()

    def _admit(self) -> None:
        """Have the messages of calls taken that wait, as many as may be: the newest first, as it is the one that is
        most likely to be waited for."""
        while self._waiting and self._rest is None:
            newest = len(self._waiting) - 1
            at = next((at for at in range(newest, -1, -1) if self._waiting[at].peer not in self._large), newest)
            turn = self._waiting[at]
            if turn.came.done():
                # The call was cancelled while it waited: nobody gives way to it.
                del self._waiting[at]
                continue
            if len(self._taking) >= MOST_READ:
                late = next((one for one in self._taking if one.late and self._yields(one, turn)), None)
                if late is None:
                    return
                self._leave(late)
                late.stream.end(CallError(errors_pb2.REASON_OVERLOADED, "newer calls without credentials have come"))
            del self._waiting[at]
            turn.timer = asyncio.get_running_loop().call_later(FAIR_S, self._late, turn)
            self._taking.append(turn)
            turn.came.set_result(None)

    def _yields(self, taken: _Turn, waits: _Turn) -> bool:
        """Whether a call that is late gives way to one that waits. Nothing gives way to a flood: in a process that is
        short of processor everybody is late, and a probe would be, too."""
        return taken.peer in self._large or waits.peer not in self._large

    def _late(self, turn: _Turn) -> None:
        turn.late = True
        self._admit()

    def _leave(self, turn: _Turn) -> None:
        """Take a call out, wherever it is."""
        if turn.timer is not None:
            turn.timer.cancel()
        for calls in (self._waiting, self._taking):
            if turn in calls:
                calls.remove(turn)

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
        self._admit()
