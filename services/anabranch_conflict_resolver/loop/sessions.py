"""The sessions of a process that commit groups, each as the writer of its database.

A session is *taken* by one worker, which is on its database alone, or *idle*. There are never more than ``most`` of
them: for another one the idle session that was used longest ago is closed. All but ``kept`` are closed when they have
been idle for ``IDLE_S``. Where one role writes to all databases, any idle session will do, at best the one that was on
the database before: it has its statements prepared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from select import POLLIN, poll
from threading import Lock
from typing import Protocol

from anabranch.store.inbox.claim import open_session
from anabranch.store.session.engine import Session, SessionOptions

IDLE_S = 60.0
_DOUBT_S = 1.0
"""A session that has been idle for so long is looked at before it is used: the server may have ended it."""


class WriterUrls(Protocol):
    """Where a database's groups are committed (``Writers``)."""

    def __call__(self, database_id: int, /) -> str:
        """The URL of the sessions."""
        ...

    def forget(self, database_id: int, /) -> None:
        """It was of no use."""
        ...


@dataclass(frozen=True, slots=True)
class _Idle:
    session: Session
    url: str
    since: float


@dataclass(slots=True)
class Sessions:
    """Shared by workers, two of which are never on one database, and of which there are no more than ``kept``."""

    urls: WriterUrls
    options: SessionOptions
    kept: int = 1
    most: int = 1
    _lock: Lock = field(default_factory=Lock)
    _idle: dict[int, _Idle] = field(default_factory=dict)
    """By the database that the session was on last; the one that was used last stands last."""
    _taken: dict[int, str] = field(default_factory=dict)
    """URLs by database."""

    def take(self, database_id: int) -> Session:
        """A session for a database, for this caller alone until ``give_back``.

        Raises:
            UnknownDatabaseError: there is no such database.
            psycopg.Error: none can be opened.
        """
        url = self.urls(database_id)
        with self._lock:
            found, superfluous = self._find(database_id, url)
            self._taken[database_id] = url
        _close(superfluous)
        if found is not None:
            return found
        try:
            return open_session(url, self.options)
        except BaseException:
            self.urls.forget(database_id)
            with self._lock:
                del self._taken[database_id]
            raise

    def give_back(self, database_id: int, session: Session) -> None:
        """End the use of a session that was taken for a database."""
        now = time.monotonic()
        with self._lock:
            url = self._taken.pop(database_id)
            if not session.closed:
                self._idle[database_id] = _Idle(session, url, now)
            superfluous = self._stale(now)
        _close(superfluous)

    def sweep(self) -> None:
        """Close sessions that have been idle for long."""
        with self._lock:
            superfluous = self._stale(time.monotonic())
        _close(superfluous)

    def close(self) -> None:
        """Close those that are idle."""
        with self._lock:
            superfluous = [one.session for one in self._idle.values()]
            self._idle.clear()
        _close(superfluous)

    def _find(self, database_id: int, url: str) -> tuple[Session | None, list[Session]]:
        """An idle session for the database, and those that are to be closed for it or for a new one."""
        superfluous: list[Session] = []
        while (key := self._fitting(database_id, url)) is not None:
            one = self._idle.pop(key)
            if time.monotonic() - one.since < _DOUBT_S or not _is_ended(one.session):
                return one.session, superfluous
            superfluous.append(one.session)
        if database_id in self._idle:
            superfluous.append(self._idle.pop(database_id).session)
        while self._idle and len(self._idle) + len(self._taken) >= self.most:
            superfluous.append(self._idle.pop(next(iter(self._idle))).session)
        return None, superfluous

    def _fitting(self, database_id: int, url: str) -> int | None:
        own = self._idle.get(database_id)
        if own is not None and own.url == url:
            return database_id
        return next((key for key, one in reversed(self._idle.items()) if one.url == url), None)

    def _stale(self, now: float) -> list[Session]:
        found: list[Session] = []
        while self._idle and len(self._idle) + len(self._taken) > self.kept:
            oldest = next(iter(self._idle))
            if now - self._idle[oldest].since <= IDLE_S:
                break
            found.append(self._idle.pop(oldest).session)
        return found


def _is_ended(session: Session) -> bool:
    """Whether the server has ended a session: an idle one has nothing to say but that."""
    if session.closed:
        return True
    asked = poll()
    asked.register(session.fileno(), POLLIN)
    return bool(asked.poll(0))


def _close(sessions: list[Session]) -> None:
    for session in sessions:
        session.close()
