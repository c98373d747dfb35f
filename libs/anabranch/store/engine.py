"""Sessions with Postgres: every connection of the product is made here, so that all of them read and write
alike.

What a session prints and parses must not depend on how a server, a role or a database happens to be
configured: the settings below are part of the connection's start, stand before the first statement and
survive every rollback. Statements name every object with its schema; ``search_path`` holds nothing but the
system's catalog.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import Engine, NullPool, create_engine

Session = psycopg.Connection[tuple[Any, ...]]
AsyncSession = psycopg.AsyncConnection[tuple[Any, ...]]
AsyncPool = AsyncConnectionPool[AsyncSession]
"""Names for those who may hold a session and import no driver."""

FIXED_SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "DateStyle": "ISO",
        "IntervalStyle": "postgres",
        "TimeZone": "UTC",
        "extra_float_digits": "1",
        "bytea_output": "hex",
        "xmlbinary": "base64",
        # The temporary schema would otherwise be looked through first.
        "search_path": "pg_catalog,pg_temp",
        "standard_conforming_strings": "on",
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        "default_transaction_deferrable": "off",
        # A verdict is durable whatever the role's own default is.
        "synchronous_commit": "on",
        # Our statements are short; compiling them costs more than running them.
        "jit": "off",
    }
)
"""What every session has."""

NETWORK: Mapping[str, str] = MappingProxyType(
    {
        # A server that is gone without a word (a cut network, a machine that lost power) sends no answer for ever:
        # without these, whoever waits for one would wait for two hours, and hold up all that come behind it.
        "keepalives": "1",
        "keepalives_idle": "5",
        "keepalives_interval": "2",
        "keepalives_count": "3",
        "tcp_user_timeout": "11000",
    }
)
"""How every session's own side notices that the server is gone; what the URL itself says goes before."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Limits of one session, in milliseconds; 0 is no limit. ``settings`` are further Postgres settings by
    name.

    ``client_connection_check_interval_ms`` makes the server notice a client that is gone while a statement
    runs.
    """

    statement_timeout_ms: int = 60_000
    lock_timeout_ms: int = 10_000
    idle_in_transaction_session_timeout_ms: int = 60_000
    client_connection_check_interval_ms: int = 0
    connect_timeout_s: int = 10
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


DEFAULT_OPTIONS = SessionOptions()

# At the end of a pipeline in which a statement failed the driver warns that the pipeline was aborted; the failure
# itself is raised.
logging.getLogger("psycopg").setLevel(logging.ERROR)


def connection_arguments(url: str, *, application_name: str, options: SessionOptions | None = None) -> dict[str, Any]:
    """The keyword arguments of a psycopg connection to ``url`` (a libpq URL or key=value text).

    ``options`` of the URL itself are kept; where both name a setting, ours wins. For a driver that takes a
    URL only (ADBC), ``psycopg.conninfo.make_conninfo(**arguments)`` makes one.

    Raises:
        psycopg.ProgrammingError: ``url`` is no connection string.
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
        **conninfo_to_dict(url),
    }
    own = [f"-c {name}={_escaped(value)}" for name, value in settings.items()]
    arguments["options"] = " ".join([*filter(None, [arguments.get("options")]), *own])
    arguments["application_name"] = application_name
    arguments["client_encoding"] = "UTF8"
    return arguments


def _escaped(value: str) -> str:
    """``value`` as the start-up packet's options take it: backslashes before backslashes and blanks."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


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
    arguments = connection_arguments(url, application_name=application_name, options=options)
    return psycopg.connect(autocommit=autocommit, **arguments)


async def aconnect(
    url: str,
    *,
    application_name: str,
    autocommit: bool = False,
    options: SessionOptions | None = None,
) -> psycopg.AsyncConnection[tuple[Any, ...]]:
    """``connect`` for asyncio."""
    arguments = connection_arguments(url, application_name=application_name, options=options)
    return await psycopg.AsyncConnection.connect(autocommit=autocommit, **arguments)


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

    ``timeout_s`` bounds the wait for a free session; what waits beyond eight callers a session is refused at
    once (``psycopg_pool.TooManyRequests``).
    """
    arguments = connection_arguments(url, application_name=application_name, options=options)
    return AsyncConnectionPool(
        "",
        kwargs={"autocommit": autocommit, **arguments},
        min_size=min_size,
        max_size=max_size,
        max_waiting=8 * max_size,
        timeout=timeout_s,
        # A pool that keeps trying waits twice as long each time. Given up soon, the next caller begins anew: a
        # server that is back is noticed within about two seconds, however long it was gone.
        reconnect_timeout=2.0,
        name=application_name,
        check=AsyncConnectionPool.check_connection,
        open=False,
    )


def core_engine(url: str, *, application_name: str, options: SessionOptions | None = None) -> Engine:
    """A SQLAlchemy engine over such sessions, one a checkout: for migrations and other rare work."""
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: connect(url, application_name=application_name, options=options),
        poolclass=NullPool,
    )
