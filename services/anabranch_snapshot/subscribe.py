"""The verb of Subscribe: page until the reader can follow the tail, and page again when it fell behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from anabranch.runtime import metrics
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch_snapshot.log import Log
from anabranch_snapshot.page_tokens import Place
from anabranch_snapshot.tail import Tail, to_response
from anabranch_snapshot.unread import SMALL_BYTES, Unread

OWN = 2
"""How often a page counts that is one reader's own: it is here and at gRPC."""
ROOM_S = 5.0
"""How long, in seconds, a subscriber waits for room for a live page; then it reads small pages for itself."""


async def follow(
    log: Log,
    database: Database,
    tail: Tail,
    place: Place,
    known: Sequence[SeenGroup],
    page_bytes: int,
    unread: Unread,
) -> AsyncGenerator[bytes, None]:
    """Serialized responses from ``place`` on, for ever. The first one comes at once, also where the reader has all.
    ``known`` is what the reader has seen: every page is of a history that has it, and all that was read before.
    ``unread``: what the call holds.

    Raises:
        CallError: as ``Log.read``, or what the tail failed with.
        psycopg.Error: the log can't be read.
    """
    said_where = False
    while True:
        # Where clients have not taken much of what they were sent, pages are small: a reader goes on all the same.
        room = unread.reserve(OWN * page_bytes)
        if not room:
            unread.hold(SMALL_BYTES)
        reading = await log.read(
            database, place, page_bytes if room else SMALL_BYTES // OWN, tail.limit(place), known=known
        )
        place, known = reading.place, [reading.known]
        subscriber = tail.attach(place) if reading.stretch.exhausted else None
        try:
            if reading.moved or not said_where:
                said_where = True
                response = to_response(log, database, reading)
                metrics.count("anabranch_log_sent_bytes", len(response), database=database.name)
                unread.sent(OWN * len(response))
                yield response
                del response
            unread.taken()
            if subscriber is None:
                continue
            while (shared := await subscriber.take()) is not None:
                size = len(shared.data)
                if not unread.reserve(size) and not await unread.wait(size, ROOM_S):
                    metrics.count("anabranch_subscriber_overflows", database=database.name)
                    break
                place, known = shared.end, [shared.known]
                metrics.count("anabranch_log_sent_bytes", size, database=database.name)
                unread.sent(size)
                yield shared.data
                unread.taken()
        finally:
            if subscriber is not None:
                tail.detach(subscriber)
