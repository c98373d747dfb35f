"""Receive notifications of committed groups and of changes of the catalog. Callers poll, too: one may be lost."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import structlog

from anabranch.store.session.channels import CATALOG_CHANNEL, GROUPS_CHANNEL
from anabranch.store.session.engine import CONNECT_S, AsyncSession, SessionOptions, aconnect

_ANSWER_MS = 4_000
"""How long a listener's session may take to answer a statement, in milliseconds."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Heard:
    """A notification. Of a group: its position and the ids of its batches, or some of them, the traceparent of its span
    where it has one, and its verdicts (``store.inbox.notified``) where they have room. Of a change of the catalog:
    position 0 and no ids."""

    database_id: int
    position: int
    batch_ids: tuple[str, ...]
    traceparent: str = ""
    verdicts: str = ""


async def open_listener(url: str, *, application_name: str) -> AsyncSession:
    """A session that hears of groups and of changes of the catalog. It does nothing else, so that a notification never
    waits behind a statement.

    Raises:
        psycopg.OperationalError: the server can't be reached, or refuses the session.
    """
    options = SessionOptions(statement_timeout_ms=_ANSWER_MS, silence_ms=_ANSWER_MS, connect_timeout_s=CONNECT_S)
    conn = await aconnect(url, application_name=application_name, autocommit=True, options=options)
    await conn.execute(f"listen {GROUPS_CHANNEL}".encode())
    await conn.execute(f"listen {CATALOG_CHANNEL}".encode())
    return conn


async def hear(conn: AsyncSession, silence_s: float) -> AsyncGenerator[Heard, None]:
    """Notifications as they come, until the session breaks. After ``silence_s`` seconds without one the session is
    tried, so that a connection that died in silence is noticed.

    Raises:
        psycopg.OperationalError: the session is lost.
    """
    while True:
        # It holds the session's lock: closing the session must not wait for it.
        async with contextlib.aclosing(conn.notifies(timeout=silence_s)) as notifications:
            async for notify in notifications:
                heard = understood(notify.channel, notify.payload)
                if heard is None:
                    _log.warning("ignored a notification of unknown form", channel=notify.channel)
                else:
                    yield heard
        await conn.execute("select 1")


def understood(channel: str, payload: str) -> Heard | None:
    """The content of a notification; None where it does not have our form. Any session may send one."""
    try:
        if channel == CATALOG_CHANNEL:
            return Heard(int(payload), 0, ())
        database, position, rest = payload.split(":", 2)
        ids, _, rest = rest.partition(";")
        traceparent, _, verdicts = rest.partition(";")
        return Heard(int(database), int(position), tuple(ids.split(",")), traceparent, verdicts)
    except ValueError:
        return None
