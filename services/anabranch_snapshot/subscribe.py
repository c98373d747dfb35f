"""The verb of Subscribe: page until the reader can follow the tail, and page again when it fell behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from anabranch.runtime import metrics
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch_snapshot.log import Log
from anabranch_snapshot.page_tokens import Place
from anabranch_snapshot.tail import Tail, to_response


async def follow(
    log: Log, database: Database, tail: Tail, place: Place, known: Sequence[SeenGroup], page_bytes: int
) -> AsyncGenerator[bytes, None]:
    """Serialized responses from ``place`` on, for ever. The first one comes at once, also where the reader has all.
    ``known`` is what the reader has seen: every page is of a history that has it, and all that was read before.

    Raises:
        CallError: as ``Log.read``, or what the tail failed with.
        psycopg.Error: the log can't be read.
    """
    said_where = False
    while True:
        reading = await log.read(database, place, page_bytes, tail.limit(place), known=known)
        place, known = reading.place, [reading.known]
        subscriber = tail.attach(place) if reading.stretch.exhausted else None
        try:
            if reading.moved or not said_where:
                said_where = True
                response = to_response(log, database, reading)
                metrics.count("anabranch_log_sent_bytes", len(response), database=database.name)
                yield response
            if subscriber is None:
                continue
            while (shared := await subscriber.take()) is not None:
                place, known = shared.end, [shared.known]
                metrics.count("anabranch_log_sent_bytes", len(shared.data), database=database.name)
                yield shared.data
        finally:
            if subscriber is not None:
                tail.detach(subscriber)
