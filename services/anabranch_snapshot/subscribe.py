"""The verb of Subscribe: page until the reader can follow the tail, and page again when it fell behind."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from anabranch.runtime import metrics
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch_snapshot.log import Log, Reading
from anabranch_snapshot.page_tokens import Place
from anabranch_snapshot.subscriber import Subscriber
from anabranch_snapshot.tail import Tail, to_response
from anabranch_snapshot.unread import SMALL_BYTES, Unread
from anabranch_snapshot.viewers import SeenPage, Viewer, Viewers
from anabranch_snapshot.viewers_tail import ViewersTail

OWN = 2
"""How often a page counts that is one reader's own: it is here and at gRPC."""
ROOM_S = 5.0
"""How long, in seconds, a subscriber waits for room for a live page; then it reads small pages for itself."""


class Source(Protocol):
    """The pages of one subscriber, and the tail that it follows."""

    async def read(self, place: Place, max_bytes: int, known: Sequence[SeenGroup]) -> Reading:
        """The next page from ``place`` on, at most to where the subscriber can become live. Raises as ``Log.read``."""

    def attach(self, place: Place) -> Subscriber | None:
        """A live subscriber that stands where the last page ended; None where it has to read on by itself first."""

    def detach(self, subscriber: Subscriber) -> None:
        """Remove it."""


class Everything:
    """The pages that are the same for everybody."""

    def __init__(self, log: Log, database: Database, tail: Tail) -> None:
        self._log = log
        self._database = database
        self._tail = tail
        self.detach = tail.detach
        self.attach = tail.attach

    async def read(self, place: Place, max_bytes: int, known: Sequence[SeenGroup]) -> Reading:
        """As ``Source`` says."""
        return await self._log.read(self._database, place, max_bytes, self._tail.limit(place), known=known)


class VisibleToOne:
    """The pages of a viewer."""

    def __init__(self, viewers: Viewers, viewer: Viewer, tail: ViewersTail) -> None:
        self._viewers = viewers
        self._viewer = viewer
        self._tail = tail
        self._last: SeenPage | None = None
        self.detach = tail.detach

    async def read(self, place: Place, max_bytes: int, known: Sequence[SeenGroup]) -> Reading:
        """As ``Source`` says."""
        up_to, first = self._tail.limit(place), self._last is None
        self._last = await self._viewers.read(self._viewer, place, max_bytes, up_to, known=known, first=first)
        return self._last.reading

    def attach(self, place: Place) -> Subscriber | None:
        """As ``Source`` says."""
        assert self._last is not None
        return self._tail.attach_viewer(place, self._viewer, self._last.memberships)


async def follow(
    log: Log,
    database: Database,
    source: Source,
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
        reading = await source.read(place, page_bytes if room else SMALL_BYTES // OWN, known)
        place, known = reading.place, [reading.known]
        subscriber = source.attach(place) if reading.stretch.exhausted else None
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
                source.detach(subscriber)
