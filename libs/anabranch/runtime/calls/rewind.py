"""Compares what a call's node has seen with the database's history: so any service notices a rewind, whichever is
called first.

What a node claims to have seen is judged without any lock. Only to end an epoch takes the database's claim, for which
its resolver waits: that happens once for each restore, and of all calls that find it, one at a time in a database, and
``MOST_CLAIMS`` in a process. The others wait without a session, at most ``MOST_WAITING`` of them, and as a rule are
answered without the claim when the first one is done.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog
from ulid import ULID

from anabranch.clock import Clock
from anabranch.runtime.credentials.principal import current_subject
from anabranch.runtime.errors import CallError
from anabranch.store.log.history import History, Judgement, Seen, confirm, judge, look_again, read_history
from anabranch.store.session.engine import AsyncSession
from anabranch.v1 import errors_pb2, position_pb2

MOST_CLAIMS = 2
MOST_WAITING = 256
MOST_WAITING_OF_ONE = 64
_T = TypeVar("_T")
_Found = tuple[History, Judgement | None]
_log = structlog.get_logger()


class WithSession(Protocol):
    """Does work with a session."""

    def __call__(self, work: Callable[[AsyncSession], Awaitable[_T]], /) -> Awaitable[_T]:
        """Return the result of ``work``, which may be done a second time."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict on a position: the ``epoch`` of today, and why the call fails (None: the ``history`` has it)."""

    history: History
    epoch: str
    failure: CallError | None


def seen_of(position: position_pb2.Position) -> Seen:
    """A Position of a message."""
    return Seen(position.epoch, position.server_timestamp_ms, position.token)


class Rewinds:
    """Checks the positions that callers of one process present. ``sessions`` are those in which it looks, ``claiming``
    those in which it may wait for a claim."""

    def __init__(self, clock: Clock, sessions: WithSession, claiming: WithSession | None = None) -> None:
        self._clock = clock
        self._sessions = sessions
        self._claiming = claiming or sessions
        self._claims = asyncio.Semaphore(MOST_CLAIMS)
        self._by_database: dict[int, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()

    async def check(self, database_id: int, name: str, position: position_pb2.Position) -> Checked:
        """Check the greatest position that a node ever saw. A contradiction that proves a rewind begins a new epoch.

        Raises:
            CallError: UNKNOWN_DATABASE; UNAVAILABLE, too many wait for a new epoch already.
            psycopg.Error: the history can't be read.
        """
        seen = seen_of(position)

        async def look(conn: AsyncSession) -> _Found | None:
            history = await read_history(conn, database_id, [seen.position])
            if history is None:
                return None
            judgement = judge(history, seen)
            if judgement is Judgement.FITS:
                return history, judgement
            return history, await look_again(conn, database_id, seen, history)

        found = await self._sessions(look)
        if found is not None and found[1] is None:
            found = await self._end_epoch(database_id, seen, look)
        if found is None:
            raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {name!r}")
        history, judgement = found
        assert judgement is not None
        return Checked(history, history.epoch, _failure(name, seen, history, judgement))

    async def _end_epoch(
        self, database_id: int, seen: Seen, look: Callable[[AsyncSession], Awaitable[_Found | None]]
    ) -> _Found | None:
        async def end(conn: AsyncSession) -> _Found | None:
            # Another call may have done it meanwhile.
            found = await look(conn)
            if found is None or found[1] is not None:
                return found
            now_ms = self._clock.now_ms()
            new_epoch = str(ULID.from_timestamp(now_ms / 1000))
            judgement = await confirm(conn, database_id, seen, new_epoch, now_ms)
            history = await read_history(conn, database_id, [seen.position])
            return None if history is None else (history, judgement)

        subject = current_subject()
        if self._waiting.total() >= MOST_WAITING or self._waiting[subject] >= MOST_WAITING_OF_ONE:
            raise CallError(
                errors_pb2.REASON_UNAVAILABLE, "a new epoch is about to begin: call again", retry_after_ms="1000"
            )
        self._waiting[subject] += 1
        try:
            async with self._by_database.setdefault(database_id, asyncio.Lock()), self._claims:
                return await self._claiming(end)
        finally:
            self._waiting[subject] -= 1
            if not self._waiting[subject]:
                del self._waiting[subject]


def _failure(name: str, seen: Seen, history: History, judgement: Judgement) -> CallError | None:
    if judgement is Judgement.FITS:
        # A first read may have been a moment, or a standby, behind.
        return None
    if judgement is Judgement.LOST:
        _log.warning("history was rewound", database=name, seen=seen.position, seen_epoch=seen.epoch, head=history.head)
        return CallError(
            errors_pb2.REASON_HISTORY_REWOUND,
            f"the server was restored to a time before {seen.position}: ask for the last common position",
        )
    return CallError(
        errors_pb2.REASON_INVALID_POSITION,
        f"greatest_seen ({seen.position}) is not a position of this history, which is at {history.head}: it is damaged,"
        " or was given by another server",
    )
