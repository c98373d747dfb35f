"""The turns of pulls and comparisons, and each call's session with Postgres, which can be ended while a thread waits
for it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

import structlog

from anabranch.runtime import metrics
from anabranch.runtime.errors import CallError
from anabranch.store.capture.undrained import OtherHistoryError, head_when_drained
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.pull_reader import PullSource, end_session
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncPool
from anabranch.v1 import errors_pb2

_END_AGAIN_S = 0.5
_DRAIN_S = 10.0
"""How long, in seconds, a pull waits until the rows that it has shown are in the log."""
_DRAIN_FIRST_S, _DRAIN_MOST_S = 0.005, 0.2
"""Between two looks; each pause is twice the one before."""
_T = TypeVar("_T")
_log = structlog.get_logger()


class Turns:
    """The turns to read, the threads that read, and the source of their sessions. ``sessions`` at once; ``waiting``
    more may wait."""

    def __init__(self, source: PullSource, pool: AsyncPool, sessions: int, waiting: int) -> None:
        self.source = source
        self._pool = pool
        self._turns = asyncio.Semaphore(sessions)
        self._waiting = 0
        self._reading = 0
        self._most_waiting = waiting
        self._threads = ThreadPoolExecutor(sessions, thread_name_prefix="pull")

    async def take(self) -> Turn:
        """Wait for a turn; it is for the session that reads, which gives it back.

        Raises:
            CallError: OVERLOADED.
        """
        if self._turns.locked() and self._waiting >= self._most_waiting:
            raise CallError(
                errors_pb2.REASON_OVERLOADED,
                f"{self._waiting} pulls wait for their turn: come again later",
                retry_after_ms="5000",
            )
        self._count(waiting=1)
        try:
            await self._turns.acquire()
        finally:
            self._count(waiting=-1)
        self._count(reading=1)
        return Turn(self)

    def give_back(self) -> None:
        """A turn is over. For ``Turn`` alone."""
        self._count(reading=-1)
        self._turns.release()

    def _count(self, *, waiting: int = 0, reading: int = 0) -> None:
        self._waiting += waiting
        self._reading += reading
        metrics.gauge("anabranch_pulls", self._waiting, state="waiting")
        metrics.gauge("anabranch_pulls", self._reading, state="reading")

    def run(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Do blocking work in one of the threads."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def end_session(self, pid: int) -> None:
        """End the session of a reader, if Postgres is available."""
        try:
            async with self._pool.connection() as conn:
                await end_session(conn, pid)
        except Exception as error:
            if not is_unavailable(error):
                raise
            _log.warning("a pull's session can't be ended now", error=type(error).__name__, detail=error)

    async def drained(self, database_id: int, table_id: int, newest: int, shown: SeenGroup) -> SeenGroup:
        """Wait until no change of a table up to the number ``newest``, as it was seen in the moment ``shown``, is
        undrained; gives the head's position and chain.

        Raises:
            CallError: UNAVAILABLE, where it takes too long, or the server was restored meanwhile.
            psycopg.Error: it can't be looked at.
        """
        deadline = time.monotonic() + _DRAIN_S
        pause_s = _DRAIN_FIRST_S
        while True:
            try:
                async with self._pool.connection() as conn:
                    head = await head_when_drained(conn, database_id, table_id, newest, shown)
            except OtherHistoryError:
                raise CallError(
                    errors_pb2.REASON_UNAVAILABLE, "the server was restored while its tables were read: call again"
                ) from None
            if head is not None:
                return head
            if time.monotonic() > deadline:
                raise CallError(
                    errors_pb2.REASON_UNAVAILABLE,
                    f"direct writes have waited {_DRAIN_S:g} s for the resolver: resume the pull",
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _DRAIN_MOST_S)

    def close(self) -> None:
        """End the threads, and the session that is kept."""
        self._threads.shutdown(wait=False)
        self.source.close()


class Turn:
    """A turn that was taken."""

    def __init__(self, turns: Turns) -> None:
        self._turns: Turns | None = turns

    def give_back(self) -> None:
        """End it; nothing where it has ended."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.give_back()


class BlockingReader(Protocol):
    """A reader that blocks a thread: a session with Postgres, whose process is ``pid`` once open, or files (None)."""

    pid: int | None

    def close(self) -> None:
        """End the session."""


class PullSession:
    """One call's reader, at most one call of it under way at a time, and its end from outside. The call's turn is
    given back when the reader has ended, whether or not its client ever takes notice."""

    def __init__(self, reader: BlockingReader, turns: Turns, turn: Turn) -> None:
        self._reader = reader
        self._turns = turns
        self._turn = turn
        self._under_way: asyncio.Future[object] | None = None
        self._ending: asyncio.Task[None] | None = None
        self.cut_off: CallError | None = None

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
    def taken_within(self, stall_ms: int) -> Iterator[None]:
        """The client takes a response in the block; it is cut off where it does not for so long.

        Raises:
            CallError: the session was cut off, by this or otherwise.
        """
        stalled = asyncio.get_running_loop().call_later(
            stall_ms / 1000, self.cut, f"nothing was taken for {stall_ms} ms: resume the pull"
        )
        try:
            yield
        finally:
            stalled.cancel()
        if self.cut_off is not None:
            raise self.cut_off

    def cut(self, message: str) -> None:
        """End it because of its client."""
        if self._ending is None:
            _log.warning("pull cut off", detail=message)
            self.cut_off = CallError(errors_pb2.REASON_UNAVAILABLE, message)
            self._ending = asyncio.create_task(self._end())

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
            self._turn.give_back()
