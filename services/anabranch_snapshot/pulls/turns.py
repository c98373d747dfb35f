"""The turns of pulls and those of comparisons: who may read tables, and for how long.

Principals take turns in getting turns. A turn is given back before its call is done where others wait for one, and

* the client takes less than ``pull_least_bytes_per_s`` (``Pace``), or
* it is older than ``pull_turn_ms``, and a principal waits that has none.

The call then ends as one whose client has stalled, and goes on from its resume tokens with another turn.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog

from anabranch.runtime import metrics
from anabranch.runtime.calls.fair_turns import FairTurns
from anabranch.runtime.credentials.principal import current_subject
from anabranch.runtime.errors import CallError
from anabranch.store.capture.undrained import OtherHistoryError, head_when_drained
from anabranch.store.ddl.readable import is_altered
from anabranch.store.log.history import SeenGroup
from anabranch.store.log.pull_reader import PullSource, end_session
from anabranch.store.session.availability import is_unavailable
from anabranch.store.session.engine import AsyncPool
from anabranch.v1 import errors_pb2
from anabranch.values import Table

_DRAIN_S = 10.0
"""How long, in seconds, a pull waits until the rows that it has shown are in the log."""
_DRAIN_FIRST_S, _DRAIN_MOST_S = 0.005, 0.2
"""Between two looks; each pause is twice the one before."""
_T = TypeVar("_T")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """How many calls of a kind (``pulls``, ``comparisons``) read at once, and may wait: in all, and of one principal;
    and how long one that is slow may go on while others wait."""

    kind: str
    sessions: int
    sessions_of_one: int
    waiting: int
    waiting_of_one: int
    least_bytes_per_s: int
    window_s: float
    turn_s: float


class Ending(Protocol):
    """A session that reads tables, and can be ended by others."""

    @property
    def pid(self) -> int | None:
        """Its process in Postgres; None where it has none."""

    def cut(self, message: str) -> None:
        """End it; its caller gets ``message``, and may go on with another call."""


class Turns:
    """The turns to read, the threads that read, and the source of their sessions. ``sessions`` are those that there are
    now."""

    def __init__(self, source: PullSource, pool: AsyncPool, limits: TurnLimits) -> None:
        self.source = source
        self.limits = limits
        self._pool = pool
        self._turns = FairTurns(limits.sessions, limits.sessions_of_one, self._tell)
        self._threads = ThreadPoolExecutor(limits.sessions, thread_name_prefix=limits.kind)
        self.sessions: set[Ending] = set()
        self.on_begin: Callable[[], None] = lambda: None
        """Called when a session begins to read."""

    def begin(self, session: Ending) -> None:
        """Add a session that is to read."""
        self.sessions.add(session)
        self.on_begin()

    async def take(self) -> Turn:
        """Wait for a turn; it is for the session that reads, which gives it back.

        Raises:
            CallError: OVERLOADED.
        """
        subject, limits = current_subject(), self.limits
        if not self._turns.is_free(subject):
            waiting = self._turns.waiting
            if waiting >= limits.waiting or self._turns.waiting_of(subject) >= limits.waiting_of_one:
                raise CallError(
                    errors_pb2.REASON_OVERLOADED,
                    f"{waiting} {limits.kind} wait for their turn: come again later",
                    retry_after_ms="5000",
                )
        await self._turns.take(subject)
        return Turn(self._turns, subject, limits.turn_s)

    def _tell(self) -> None:
        name = f"anabranch_{self.limits.kind}"
        metrics.gauge(name, self._turns.waiting, state="waiting")
        metrics.gauge(name, self._turns.held, state="reading")

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

    async def altered(self, table: Table, changed_position: int) -> bool:
        """Whether a table that was read was altered meanwhile, as far as its lock does not prevent that; by then its
        last schema change was that at ``changed_position``.

        Raises:
            psycopg.Error: it can't be looked at.
        """
        async with self._pool.connection() as conn:
            return await is_altered(conn, table, changed_position)

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
    """A turn that was taken; it is due after ``longest_s``."""

    def __init__(self, turns: FairTurns, subject: str, longest_s: float) -> None:
        self._turns = turns
        self._subject = subject
        self._due_s = time.monotonic() + longest_s
        self._over = False

    def give_back(self) -> None:
        """End it; nothing where it has ended."""
        if not self._over:
            self._over = True
            self._turns.give_back(self._subject)

    def is_due(self) -> bool:
        """Whether it has lasted long enough, and is to go to a principal that has none."""
        return not self._over and time.monotonic() >= self._due_s and self._turns.starved()

    def is_wanted(self) -> bool:
        """Whether somebody waits for it."""
        return not self._over and self._turns.wanted(self._subject)
