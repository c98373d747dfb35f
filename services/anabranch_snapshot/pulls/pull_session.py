"""The session of one pull or comparison: its reader, which can be ended while a thread waits for it, and its turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import structlog

from anabranch.runtime import metrics
from anabranch.runtime.calls.streams import current_stream
from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2
from anabranch_snapshot.pulls.pace import Pace
from anabranch_snapshot.pulls.turns import Turn, Turns

_END_AGAIN_S = 0.5
_LOOK_S = 1.0
"""Seconds between two looks whether others wait, while a client is waited for."""
_T = TypeVar("_T")
_log = structlog.get_logger()


class BlockingReader(Protocol):
    """A reader that blocks a thread: a session with Postgres, whose process is ``pid`` once open, or files (None)."""

    pid: int | None

    def close(self) -> None:
        """End the session."""


class PullSession:
    """One call's reader, at most one call of it under way at a time, and its end from outside. The call's turn is
    given back when the reader has ended, and the call's stream ends with it, whether or not its client takes notice."""

    def __init__(self, reader: BlockingReader, turns: Turns, turn: Turn) -> None:
        self._reader = reader
        self._turns = turns
        self._turn = turn
        self._stream = current_stream()
        self._pace = Pace(turns.limits.least_bytes_per_s, turns.limits.window_s)
        self._under_way: asyncio.Future[object] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.cut_off: CallError | None = None
        turns.begin(self)

    @property
    def pid(self) -> int | None:
        """The process in Postgres of its reader, where that has a session."""
        return self._reader.pid

    def start(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Have the reader do something; nothing else is under way. Raises the CallError with which it was cut off.

        The caller that waits may be cancelled; the thread goes on all the same, and the reader must not be closed then.
        """
        if self.cut_off is not None:
            raise self.cut_off
        future = self._turns.run(work)
        self._under_way = future  # type: ignore[assignment]
        return asyncio.shield(future)

    @contextlib.contextmanager
    def taken_within(self, stall_ms: int, size: int = 0, silence: str = "") -> Iterator[None]:
        """The client is waited for in the block: it takes a response of ``size`` bytes, or asks for more (0). It is cut
        off where it does not for so long, for which ``silence`` may have other words, or is too slow while others wait
        for the turn.

        Raises:
            CallError: the session was cut off, by this or otherwise.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        allowed_s = self._pace.allowed_s(size)
        silence = silence or f"nothing was taken for {stall_ms} ms: go on with another call"
        stalled = loop.call_later(stall_ms / 1000, self.cut, silence)
        # Most responses are taken before anything has to be looked at.
        look = loop.call_later(min(allowed_s, _LOOK_S), lambda: watch())

        def watch() -> None:
            nonlocal look
            if self._turn.is_due():
                self.cut("others wait for their turn: go on with another call")
            elif loop.time() - began >= allowed_s and self._turn.is_wanted():
                metrics.count("anabranch_calls_dropped", why="slow")
                self.cut(
                    f"less than {self._turns.limits.least_bytes_per_s} bytes a second were taken while others wait for"
                    " their turn: go on with another call"
                )
            else:
                look = loop.call_later(_LOOK_S, watch)

        try:
            yield
        finally:
            stalled.cancel()
            look.cancel()
            self._pace.took(size, loop.time() - began)
        if self.cut_off is None and self._turn.is_due():
            self.cut("others wait for their turn: go on with another call")
        if self.cut_off is not None:
            raise self.cut_off

    def cut(self, message: str) -> None:
        """End it because of its client, and the stream with it."""
        if self._ending is None:
            _log.warning("pull cut off", detail=message)
            self.cut_off = CallError(errors_pb2.REASON_UNAVAILABLE, message)
            self._ending = asyncio.create_task(self._end())
            if self._stream is not None:
                self._stream.end(self.cut_off)

    async def close(self) -> None:
        """End it; waits for the end."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        try:
            while self._under_way is not None and not self._under_way.done():
                # Its work ends by its own timeouts, should this not be possible now.
                if self._reader.pid is not None:
                    await self._turns.end_session(self._reader.pid)
                await asyncio.wait({self._under_way}, timeout=_END_AGAIN_S)
            if self._under_way is not None and not self._under_way.cancelled():
                # Its caller may be gone; its result is of no use any more.
                self._under_way.exception()
            await self._turns.run(self._reader.close)
        finally:
            self._turns.sessions.discard(self)
            self._turn.give_back()
