"""Compares what a call's node has seen with the database's history: so any service notices a rewind, whichever is
called first."""

from __future__ import annotations

import structlog
from ulid import ULID

from anabranch.clock import Clock
from anabranch.runtime.errors import CallError
from anabranch.store.log.history import History, Judgement, Seen, confirm, judge, read_history
from anabranch.store.session.engine import AsyncSession
from anabranch.v1 import errors_pb2, position_pb2

_log = structlog.get_logger()


def seen_of(position: position_pb2.Position) -> Seen:
    """A Position of a message."""
    return Seen(position.epoch, position.server_timestamp_ms, position.token)


async def check_seen(
    conn: AsyncSession, database_id: int, name: str, position: position_pb2.Position, clock: Clock
) -> History:
    """Check the greatest position that a node ever saw; gives the history that has it. A contradiction that proves a
    rewind begins a new epoch.

    Raises:
        CallError: HISTORY_REWOUND, INVALID_POSITION; UNKNOWN_DATABASE.
        psycopg.Error: the history can't be read.
    """
    seen = seen_of(position)
    history = await read_history(conn, database_id, [seen.position])
    if history is None:
        raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {name!r}")
    judgement = judge(history, seen)
    if judgement is Judgement.FITS:
        return history
    now_ms = clock.now_ms()
    new_epoch = str(ULID.from_timestamp(now_ms / 1000))
    judgement = await confirm(conn, database_id, seen, new_epoch, now_ms)
    if judgement is Judgement.FITS:
        # The first read was a moment, or a standby, behind.
        return history
    if judgement is Judgement.LOST:
        _log.warning("history was rewound", database=name, seen=seen.position, seen_epoch=seen.epoch, head=history.head)
        raise CallError(
            errors_pb2.REASON_HISTORY_REWOUND,
            f"the server was restored to a time before {seen.position}: ask for the last common position",
        )
    raise CallError(
        errors_pb2.REASON_INVALID_POSITION,
        f"greatest_seen ({seen.position}) is not a position of this history, which is at {history.head}: it is damaged,"
        " or was given by another server",
    )
