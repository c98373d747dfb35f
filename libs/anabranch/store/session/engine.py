"""Sessions with Postgres: every connection of the product is made here, so that all of them read and write
alike.

The texts that a session prints and parses must not depend on the configuration of a server, a role or a database:
``session.settings.FIXED`` is part of its start, holds before the first statement and survives every rollback.
Statements name every object with its schema; ``search_path`` holds nothing but the system's catalog. No session waits
for ever for a server that is silent (``patience``).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import PipelineStatus
from psycopg_pool import AsyncConnectionPool

from anabranch.errors import ServerError
from anabranch.store.session.patience import PatientAsyncConnection, PatientConnection, enroll
from anabranch.store.session.settings import FIXED, LATER, PUT_RIGHT
from anabranch.store.session.told import told

Session = psycopg.Connection[tuple[Any, ...]]
AsyncSession = psycopg.AsyncConnection[tuple[Any, ...]]
AsyncPool = AsyncConnectionPool[AsyncSession]
"""Names for those who may hold a session and import no driver."""

FIXED_SETTINGS: Mapping[str, str] = MappingProxyType({name: fixed.value for name, fixed in FIXED.items()})
"""The settings that every session begins with."""

NETWORK: Mapping[str, str] = MappingProxyType(
    {
        # A server that vanishes (a cut network, a machine that lost power) never sends an answer: without these
        # settings a caller would wait for two hours, and hold up all callers behind it.
        "keepalives": "1",
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "tcp_user_timeout": "11000",
    }
)
"""How every session's own side notices that the server is gone; options in the URL take precedence."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Limits of one session, in milliseconds; 0 is no limit. ``settings`` are further Postgres settings by
    name.

    ``client_connection_check_interval_ms`` makes the server notice a client that is gone while a statement
    runs. ``silence_ms`` is how long a server may be silent inside a statement; None: a little longer than it lets a
    statement run.
    """

    statement_timeout_ms: int = 60_000
    lock_timeout_ms: int = 10_000
    idle_in_transaction_session_timeout_ms: int = 60_000
    client_connection_check_interval_ms: int = 0
    connect_timeout_s: int = 10
    silence_ms: int | None = None
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def silence_s(self) -> float | None:
        """How long a server may be silent inside a statement, in seconds; None: for ever."""
        if self.silence_ms is not None:
            return self.silence_ms / 1000
        return (self.statement_timeout_ms + _SILENCE_MARGIN_MS) / 1000 if self.statement_timeout_ms else None


_SILENCE_MARGIN_MS = 5_000
"""After a statement's time limit a session waits so much longer for the server to report the timeout."""
CONNECT_S = 3
"""How long a service waits for a session to begin. An attempt that began while the network was cut waits in vain, and
is repeated once the network is back: so it may not wait longer than a service may take to come back."""
DEFAULT_OPTIONS = SessionOptions()

# At the end of a pipeline in which a statement failed the driver warns that the pipeline was aborted; the failure
# itself is raised.
logging.getLogger("psycopg").setLevel(logging.ERROR)


class ConninfoError(ServerError, psycopg.ProgrammingError):
    """A connection string can't be parsed, or not as it was meant. libpq's own message quotes a part of it, which may
    be one of the password."""


def _parsed(url: str) -> dict[str, Any]:
    try:
        found = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        found = None
    if (
        found is None
        or not str(found.get("port") or "0").replace(",", "").isdecimal()
        or (url.startswith(("postgresql://", "postgres://")) and _is_torn(url, str(found.get("host") or "")))
    ):
        raise ConninfoError(
            "the connection string can't be parsed: give postgresql://role:password@host:port/database, and in the "
            "password % before the hexadecimal digits of every @ : / ? # % (@ is %40)"
        )
    return found


def _is_torn(url: str, host: str) -> bool:
    """Whether an unescaped @ or / in the password of a URL ended it too early: its rest was taken for a host or a
    database, which messages quote."""
    place = url.partition("://")[2].partition("?")[0]
    before, at, after = place.partition("@")
    return "@" in host[1:] or (at != "" and ("/" in before or "@" in after))


def require_connection_string(url: str) -> None:
    """Raises ConninfoError where ``url`` is no connection string; its message quotes nothing of it."""
    _parsed(url)


def connection_arguments(url: str, *, application_name: str, options: SessionOptions | None = None) -> dict[str, Any]:
    """The keyword arguments of a psycopg connection to ``url`` (a libpq URL or key=value text).

    ``options`` of the URL itself are kept; where both name a setting, ours wins. For a driver that takes a
    URL only (ADBC), ``psycopg.conninfo.make_conninfo(**arguments)`` makes one.

    Raises:
        ConninfoError: ``url`` is no connection string.
    """
    chosen = options or DEFAULT_OPTIONS
    settings = {
        **FIXED_SETTINGS,
        "statement_timeout": str(chosen.statement_timeout_ms),
        "lock_timeout": str(chosen.lock_timeout_ms),
        "idle_in_transaction_session_timeout": str(chosen.idle_in_transaction_session_timeout_ms),
        "client_connection_check_interval": str(chosen.client_connection_check_interval_ms),
        **chosen.settings,
    }
    arguments: dict[str, Any] = {
        **NETWORK,
        "connect_timeout": str(chosen.connect_timeout_s),
        **_parsed(url),
    }
    if "," in str(arguments.get("host", "")):
        # Of several hosts the one that takes writes, whichever that is now.
        arguments.setdefault("target_session_attrs", "read-write")
    own = [f"-c {name}={_escaped(value)}" for name, value in settings.items()]
    arguments["options"] = " ".join([*filter(None, [arguments.get("options")]), *own])
    arguments["application_name"] = application_name
    arguments["client_encoding"] = "UTF8"
    return arguments


def _escaped(value: str) -> str:
    """``value`` as the start-up packet's options take it: backslashes before backslashes and blanks."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


class UnfitSettingError(ServerError, psycopg.OperationalError):
    """A server, a database or a role has a setting that this role may not put right."""


class PlainConnection(PatientConnection):
    """A session that blocks, as ``connect`` gives it."""

    @classmethod
    def connect(cls, conninfo: str = "", *, autocommit: bool = False, **kwargs: Any) -> Self:
        """Open it, with settings put right. ``silence_s`` as ``patience.enroll`` takes it."""
        silence_s = kwargs.pop("silence_s", None)
        conn = super().connect(conninfo, autocommit=True, **kwargs)
        try:
            conn.execute(PUT_RIGHT.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            conn.close()
            raise _unfit(error) from error
        except BaseException:
            conn.close()
            raise
        conn.autocommit = autocommit
        enroll(conn, silence_s)
        return conn


class _AsyncConnection(PatientAsyncConnection):
    """A session for asyncio, as ``aconnect`` and pools give it."""

    @classmethod
    async def connect(cls, conninfo: str = "", *, autocommit: bool = False, **kwargs: Any) -> Self:
        """Open it, with settings put right. ``silence_s`` as ``patience.enroll`` takes it."""
        silence_s = kwargs.pop("silence_s", None)
        conn = await super().connect(conninfo, autocommit=True, **kwargs)
        try:
            await conn.execute(PUT_RIGHT.encode())
        except psycopg.errors.InsufficientPrivilege as error:
            await conn.close()
            raise _unfit(error) from error
        except BaseException:
            await conn.close()
            raise
        await conn.set_autocommit(autocommit)
        enroll(conn, silence_s)
        return conn


_S = TypeVar("_S", bound=PlainConnection)


def _unfit(error: psycopg.Error) -> UnfitSettingError:
    wanted = ", ".join(f"{name} = {fixed.value or repr('')}" for name, fixed in LATER.items())
    return UnfitSettingError(
        f"the server, the database or the role has a setting that this role may not put right: {told(error)}; reset it "
        f"(ALTER DATABASE … RESET, ALTER ROLE … RESET), so that sessions begin with {wanted}"
    )


def connect(
    url: str,
    *,
    application_name: str,
    autocommit: bool = False,
    options: SessionOptions | None = None,
) -> Session:
    """Open a session.

    Raises:
        psycopg.OperationalError: the server can't be reached, or refuses the session.
    """
    return connect_as(PlainConnection, url, application_name=application_name, autocommit=autocommit, options=options)


def connect_as(
    kind: type[_S],
    url: str,
    *,
    application_name: str,
    autocommit: bool = False,
    options: SessionOptions | None = None,
) -> _S:
    """``connect``, for a session of another kind."""
    arguments = connection_arguments(url, application_name=application_name, options=options)
    silence_s = (options or DEFAULT_OPTIONS).silence_s
    return kind.connect(autocommit=autocommit, silence_s=silence_s, **arguments)


async def aconnect(
    url: str,
    *,
    application_name: str,
    autocommit: bool = False,
    options: SessionOptions | None = None,
) -> psycopg.AsyncConnection[tuple[Any, ...]]:
    """``connect`` for asyncio."""
    arguments = connection_arguments(url, application_name=application_name, options=options)
    silence_s = (options or DEFAULT_OPTIONS).silence_s
    return await _AsyncConnection.connect(autocommit=autocommit, silence_s=silence_s, **arguments)


class _Pool(AsyncConnectionPool[AsyncSession]):
    """A pool that looks at its sessions for a short time only."""

    @staticmethod
    async def check_connection(conn: AsyncSession) -> None:
        """Whether a session answers, and soon. One that answered a moment ago is not asked again.

        Raises:
            psycopg.OperationalError: it does not.
        """
        if isinstance(conn, PatientAsyncConnection):
            if conn.needs_no_check():
                return
            conn.doubt()
        await AsyncConnectionPool.check_connection(conn)


async def _begin_anew(pool: AsyncConnectionPool[Any]) -> None:
    """Try again to open a session where callers wait or there are too few.

    The pool goes on counting callers that waited too long as waiting, and once they reach its limit it refuses the next
    ones before it would open a session for them. So opening a session must not depend on a caller.
    """
    stats = pool.get_stats()
    if stats["requests_waiting"] or stats["pool_size"] < stats["pool_min"]:
        await pool.check()


async def _require_no_pipeline(conn: psycopg.AsyncConnection[Any]) -> None:
    """Refuse a session that a call gives back in a pipeline, as one does that is cancelled at the pipeline's end: it
    looks idle, and every later statement in it would seem to have no rows. The pool closes it.

    Raises:
        psycopg.ProgrammingError: it is in a pipeline.
    """
    if conn._pipeline is not None or conn.pgconn.pipeline_status != PipelineStatus.OFF:
        raise psycopg.ProgrammingError("the session was left in a pipeline by a call that was cancelled")


def async_pool(
    url: str,
    *,
    application_name: str,
    max_size: int,
    min_size: int = 1,
    autocommit: bool = False,
    timeout_s: float = 10.0,
    options: SessionOptions | None = None,
) -> AsyncConnectionPool[psycopg.AsyncConnection[tuple[Any, ...]]]:
    """A pool of such sessions, not yet open: ``await pool.open(wait=True)`` in the loop that uses it, and
    close it there.

    ``timeout_s`` bounds the wait for a free session; where more than eight callers per session wait, a further one is
    refused at once (``psycopg_pool.TooManyRequests``). Once a server is back, the pool has sessions again within
    ``CONNECT_S`` and a second, with or without calls meanwhile.
    """
    chosen = replace(options or DEFAULT_OPTIONS, connect_timeout_s=CONNECT_S)
    arguments = connection_arguments(url, application_name=application_name, options=chosen)
    return _Pool(
        "",
        connection_class=_AsyncConnection,
        kwargs={"autocommit": autocommit, "silence_s": chosen.silence_s, **arguments},
        min_size=min_size,
        max_size=max_size,
        max_waiting=8 * max_size,
        timeout=timeout_s,
        # A pool that keeps trying waits twice as long each time: so it is made to give up soon, and to begin anew.
        reconnect_timeout=1.0,
        reconnect_failed=_begin_anew,
        name=application_name,
        check=_Pool.check_connection,
        reset=_require_no_pipeline,
        open=False,
    )
