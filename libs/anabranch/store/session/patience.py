"""Sessions that give up a server which does not answer.

A server may be silent for ever: stopped, hung on its disk, or left behind by a failover while something between here
and there still holds the connection. TCP notices only a peer whose kernel is gone, and a stopped server's own time
limits do not run either. So each session has a limit of its own for the silence inside a statement, longer than all
limits of the server. Waiting for notifications is no statement, and has no limit.

States of a session:

* *trusted*: it waits for an answer as long as ``silence_s``.
* *doubted* (``doubt``, until the next answer): it waits ``DOUBT_S``; the next answer makes it trusted again. Where
  the driver waits in it for notifications no answer is to come: it is closed, and who listens opens another one.
* *given up* (``give_up_older``): a wait in it fails within ``_TICK_S``, and so does its next use. It is closed then.

A wait that runs out closes the session. Other threads and tasks only change its state; the thread or task that waits in
it reads the state every ``_TICK_S``, and one that waits for notifications every ``_LISTENING_TICK_S``: that is most of
what an idle service does.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Generator
from typing import Any
from weakref import WeakSet

import psycopg
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready

from anabranch.errors import ServerError

_TICK_S = 0.1
_LISTENING_TICK_S = 1.0
_READABLE = int(Ready.R)
DOUBT_S = 2.0
"""How long a session that is doubted may take for its next answer."""
_CANCEL_S = 1.0
"""How long asking a server to end a statement may take: a stopped one does not take the request either."""
FRESH_S = 1.0
"""How long after it was heard a server is taken to be there still."""
SILENCE_S = 15.0
"""How long a session without a limit of its own waits in silence."""


class SilentServerError(ServerError, psycopg.OperationalError):
    """The server did not answer, or another one has taken its place; the session is closed."""


class Silence:
    """How long a session waits for a silent server; a base of both kinds of session."""

    silence_s: float | None = SILENCE_S
    opened_s: float = 0.0
    doubted: bool = False
    heard_s: float = 0.0
    """When the server was last heard, by the monotonic clock."""
    given_up: str | None = None
    """Why; None while it is not given up."""

    def doubt(self) -> None:
        """Give it ``DOUBT_S`` for its next answer."""
        self.doubted = True

    def is_fresh(self) -> bool:
        """Whether the server was heard a moment ago, and nothing was said against the session since."""
        return not self.doubted and self.given_up is None and time.monotonic() - self.heard_s < FRESH_S

    def check(self, silent_s: float, *, asked: bool) -> None:
        """Check that the session may still wait after ``silent_s`` seconds of silence. ``asked``: a statement runs.

        Raises:
            SilentServerError: it may not.
        """
        if self.given_up is not None:
            raise SilentServerError(self.given_up)
        limit_s = DOUBT_S if self.doubted else self.silence_s
        if asked and limit_s is not None and silent_s > limit_s:
            raise SilentServerError(f"the server has not answered a statement for {silent_s:.0f} s")


def _watched(session: Silence, connection: Any, waiting: PQGen[Any]) -> Generator[Any, Any, Any]:
    """``waiting``, which ends with an error where the session's limit of silence has passed."""
    silent_since: float | None = None
    try:
        wanted = next(waiting)
        while True:
            ready = yield wanted
            if ready:
                silent_since = None
                # A socket that can take more bytes is no answer.
                if ready & _READABLE:
                    session.doubted = False
                    session.heard_s = time.monotonic()
            else:
                now = time.monotonic()
                if silent_since is None:
                    silent_since = now - _TICK_S
                asked = connection.pgconn.transaction_status == TransactionStatus.ACTIVE
                if session.doubted and connection.pgconn.transaction_status == TransactionStatus.IDLE:
                    raise SilentServerError("older sessions of this server have not answered")
                session.check(now - silent_since, asked=asked)
            wanted = waiting.send(ready)
    except StopIteration as end:
        return end.value


def _tick_s(interval: float, timeout: float | None) -> float:
    """How often a wait looks at its session's state. Only where it waits for notifications the driver gives a limit."""
    return interval if timeout is None else max(interval, _LISTENING_TICK_S)


class PatientConnection(psycopg.Connection[Any], Silence):
    """A session that blocks."""

    def wait(self, gen: PQGen[Any], interval: float = _TICK_S, timeout: float | None = None) -> Any:
        """Wait as the driver asks; it calls this for every wait.

        Raises:
            SilentServerError: there was no answer; the session is closed.
        """
        self.require_trust()
        try:
            return super().wait(_watched(self, self, gen), _tick_s(interval, timeout), timeout)
        except SilentServerError:
            self.close()
            raise

    def require_trust(self) -> None:
        """Check that the session may be used. Raises SilentServerError: it was given up, and is closed."""
        if self.given_up is not None:
            self.close()
            raise SilentServerError(self.given_up)

    def await_server(self, socket: select.poll) -> int:
        """Wait in the middle of a statement until the socket is ready; the events that it is ready for.

        Raises:
            SilentServerError: there was no answer.
        """
        silent_s = 0.0
        while True:
            for _, ready in socket.poll(_TICK_S * 1000):
                if ready & select.POLLIN:
                    self.doubted = False
                return ready
            silent_s += _TICK_S
            self.check(silent_s, asked=True)

    def cancel_safe(self, *, timeout: float = _CANCEL_S) -> None:
        """Ask the server to end the statement, for a short time; then wait for its end for a short time."""
        self.doubt()
        super().cancel_safe(timeout=min(timeout, _CANCEL_S))


class PatientAsyncConnection(psycopg.AsyncConnection[Any], Silence):
    """A session for asyncio."""

    _cancelled = False

    def needs_no_check(self) -> bool:
        """Whether an idle session is there as far as can be told without asking: the server was heard a moment ago, and
        has neither said something nor ended the connection since."""
        pgconn = self.pgconn
        if not self.is_fresh() or pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        here = select.poll()
        here.register(pgconn.socket, select.POLLIN)
        return not here.poll(0)

    async def wait(self, gen: PQGen[Any], interval: float = _TICK_S, timeout: float | None = None) -> Any:
        """As ``PatientConnection.wait``. A task that was cancelled, and could not have the server end its statement
        either, is cancelled all the same."""
        self._cancelled = False
        try:
            if self.given_up is not None:
                raise SilentServerError(self.given_up)
            return await super().wait(_watched(self, self, gen), _tick_s(interval, timeout), timeout)
        except SilentServerError as error:
            await self.close()
            if self._cancelled:
                raise asyncio.CancelledError from error
            raise

    async def cancel_safe(self, *, timeout: float = _CANCEL_S) -> None:
        """As ``PatientConnection.cancel_safe``."""
        self._cancelled = True
        self.doubt()
        await super().cancel_safe(timeout=min(timeout, _CANCEL_S))


_sessions: WeakSet[Silence] = WeakSet()
_turn = threading.Lock()


def enroll(session: Silence, silence_s: float | None) -> None:
    """Enrol a session that was opened just now: it waits ``silence_s``; ``doubt_older``, ``give_up_older`` find it."""
    session.silence_s = silence_s
    session.opened_s = time.monotonic()
    with _turn:
        _sessions.add(session)


def bear(session: object, silence_s: float) -> None:
    """Let a session wait at least so long for an answer from now on."""
    if isinstance(session, Silence) and session.silence_s is not None:
        session.silence_s = max(session.silence_s, silence_s)


def _older(moment_s: float) -> list[Silence]:
    with _turn:
        return [session for session in _sessions if session.opened_s < moment_s]


def doubt_older(moment_s: float) -> None:
    """Doubt every session of this process that was opened before a moment of the monotonic clock."""
    for session in _older(moment_s):
        session.doubt()


def give_up_older(moment_s: float, why: str) -> None:
    """Give up every session of this process that was opened before a moment of the monotonic clock."""
    for session in _older(moment_s):
        session.given_up = why
