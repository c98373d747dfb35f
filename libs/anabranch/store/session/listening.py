"""Receive notifications of committed groups and of changes of the catalog. Callers poll, too: one may be lost.

Any role that may connect can send any text on any channel. So a payload is believed as far as its form goes, each part
of which has a bound, and no further: it says where to look, and the reader looks. What is not of the form is None.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from anabranch.store.session.channels import CATALOG_CHANNEL, GROUPS_CHANNEL, KEYS_CHANNEL
from anabranch.store.session.engine import CONNECT_S, AsyncSession, SessionOptions, aconnect

FLOOD = 500
"""Notifications within the time that is waited for more, beyond which it is left to polling to find the news."""
TRIED_EACH_S = 5.0
"""A listener's session is tried when it has heard nothing for so long, or longer. One that is doubted is closed."""
_ANSWER_MS = 4_000
"""How long a listener's session may take to answer a statement, in milliseconds."""
_MOST_DATABASE = 2**31 - 1
_MOST_POSITION = 2**63 - 1
_NUMBER = re.compile(r"[0-9]{1,19}")
_ID_CHARACTERS = 64
_TRACEPARENT = re.compile(r"[0-9a-f-]{0,64}")


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
    """A session that hears of groups, of changes of the catalog and of revoked keys. It does nothing else, so that a
    notification never waits behind a statement. Postgres wakes each session that listens to anything for every
    notification, whatever its channel is: so a process listens with one session.

    Raises:
        psycopg.OperationalError: the server can't be reached, or refuses the session.
    """
    conn = await _session(url, application_name)
    for channel in (GROUPS_CHANNEL, CATALOG_CHANNEL, KEYS_CHANNEL):
        await conn.execute(f"listen {channel}".encode())
    return conn


async def open_key_session(url: str, *, application_name: str, listens: bool) -> AsyncSession:
    """A session in which keys are read; it hears of revoked ones where it ``listens``. Raises as ``open_listener``."""
    conn = await _session(url, application_name)
    if listens:
        await listen_for_keys(conn)
    return conn


async def listen_for_keys(conn: AsyncSession) -> None:
    """Have the session hear of revoked keys, again where it did before a flood. Raises as ``open_listener``."""
    await conn.execute(f"listen {KEYS_CHANNEL}".encode())


async def _session(url: str, application_name: str) -> AsyncSession:
    options = SessionOptions(statement_timeout_ms=_ANSWER_MS, silence_ms=_ANSWER_MS, connect_timeout_s=CONNECT_S)
    return await aconnect(url, application_name=application_name, autocommit=True, options=options)


async def heard(conn: AsyncSession, wait_s: float, gather_s: float) -> int:
    """Wait ``wait_s`` seconds for a notification, and after the first ``gather_s`` for more; how many came. After
    ``FLOOD`` of them it listens no more, as any role may send as many as it likes. Raises psycopg.OperationalError: the
    session is lost."""
    count = 0
    for timeout_s in (wait_s, gather_s):
        async with contextlib.aclosing(conn.notifies(timeout=timeout_s)) as notifications:
            async for _ in notifications:
                count += 1
                if timeout_s == wait_s or count >= FLOOD:
                    break
        if not count:
            break
    if count >= FLOOD:
        await conn.execute("unlisten *")
    return count


async def hear(conn: AsyncSession, silence_s: float, on_keys: Callable[[], None]) -> AsyncGenerator[Heard | None, None]:
    """Notifications as they come, None for one without our form, until the session breaks. For one of revoked keys
    ``on_keys`` is called instead. After ``silence_s`` seconds without one the session is tried, so that a connection
    that died in silence is noticed: until then callers find the news by polling.

    Raises:
        psycopg.OperationalError: the session is lost.
    """
    while True:
        # It holds the session's lock: closing the session must not wait for it.
        async with contextlib.aclosing(conn.notifies(timeout=silence_s)) as notifications:
            async for notify in notifications:
                if notify.channel == KEYS_CHANNEL:
                    on_keys()
                    continue
                yield understood(notify.channel, notify.payload)
        await conn.execute("select 1")


def understood(channel: str, payload: str) -> Heard | None:
    """The content of a notification; None where it does not have our form."""
    if channel == CATALOG_CHANNEL:
        number = database_of(payload)
        return None if number is None else Heard(number, 0, ())
    parts = payload.split(":", 2)
    if len(parts) != 3:
        return None
    database, position = database_of(parts[0]), _bounded(parts[1], _MOST_POSITION)
    named, _, rest = parts[2].partition(";")
    traceparent, _, verdicts = rest.partition(";")
    ids = tuple(filter(None, named.split(",")))
    if database is None or position is None or not _TRACEPARENT.fullmatch(traceparent):
        return None
    if max(map(len, ids), default=0) > _ID_CHARACTERS:
        return None
    return Heard(database, position, ids, traceparent, verdicts)


def database_of(text: str) -> int | None:
    """The number of a database that a payload names; None where that can't be one."""
    return _bounded(text, _MOST_DATABASE)


def _bounded(text: str, most: int) -> int | None:
    if not _NUMBER.fullmatch(text):
        return None
    number = int(text)
    return number if number <= most else None
