"""``ChangeService``: decode, read, encode."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from anabranch.runtime import metrics
from anabranch.runtime.calls.dropping import drop_call
from anabranch.runtime.calls.streams import current_stream
from anabranch.runtime.credentials.principal import current_principal, current_subject, require_database
from anabranch.runtime.errors import CallError
from anabranch.store.audiences.viewing import is_scoped
from anabranch.store.catalog.databases import Database
from anabranch.store.log.history import SeenGroup
from anabranch.v1 import change_pb2, errors_pb2, position_pb2
from anabranch.wire.audiences import digest
from anabranch_snapshot.log import ChangedError, beyond_head
from anabranch_snapshot.moments import seen_by
from anabranch_snapshot.page_tokens import Place, from_token, place_after, to_token
from anabranch_snapshot.pages import to_sum
from anabranch_snapshot.snapshot import Snapshot
from anabranch_snapshot.subscribe import OWN, Everything, Source, VisibleToOne, follow
from anabranch_snapshot.unread import SMALL_BYTES, Unread
from anabranch_snapshot.viewers import Viewer, viewer_of

Context = grpc.aio.ServicerContext[Any, Any]
SERVICE = "anabranch.v1.ChangeService"
LEAST_PAGE_BYTES = 1024
MOST_SEEN = 1_000
"""Positions that FindCommon takes."""
TOO_SLOW = CallError(
    errors_pb2.REASON_OVERLOADED,
    "this subscriber has taken nothing for long, and others need the room: page, and subscribe again",
    retry_after_ms="1000",
)


class ChangeServicer:
    """``subscribe`` gives bytes: a response for all subscribers is serialized once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    async def get(self, request: change_pb2.GetRequest, context: Context) -> change_pb2.GetResponse:
        """``ChangeService.Get``."""
        async with self._snapshot.log.admitted():
            return await self._page(request)

    async def _page(self, request: change_pb2.GetRequest) -> change_pb2.GetResponse:
        settings = self._snapshot.settings
        database, head = await self._snapshot.open_call(request.db_name, request.node_state)
        if request.max_bytes < 0:
            raise CallError(errors_pb2.REASON_INVALID_REQUEST, "max_bytes is negative")
        max_bytes = max(LEAST_PAGE_BYTES, min(request.max_bytes or settings.page_bytes, settings.page_max_bytes))
        task = asyncio.current_task()
        assert task is not None
        unread = self._unread(task, functools.partial(drop_call, task))
        if not unread.reserve(OWN * max_bytes):
            max_bytes = min(max_bytes, SMALL_BYTES // OWN)
            unread.hold(OWN * max_bytes)
        try:
            response = await self._page_of(database, head, request, max_bytes)
        except ChangedError:
            # The kept state was a moment old.
            database = await self._snapshot.databases.read(request.db_name)
            response = await self._page_of(database, head, request, max_bytes)
        size = response.ByteSize()
        metrics.count("anabranch_log_sent_bytes", size, database=database.name)
        unread.sent(OWN * size)
        return response

    async def _page_of(
        self, database: Database, head: int, request: change_pb2.GetRequest, max_bytes: int
    ) -> change_pb2.GetResponse:
        snapshot = self._snapshot
        known = seen_by(database, request.node_state.greatest_seen)
        viewer = self._viewer(database, request.node_state)
        resumed: SeenGroup | None = None
        seen = b""
        if request.page_token:
            place, resumed, seen = from_token(database, request.page_token, scoped=viewer is not None)
        else:
            place = _place(request.after, head)
        if viewer is None:
            reading = await snapshot.log.read(database, place, max_bytes, known=known, resumed=resumed)
            # Read after the page: a table that has not changed since has had the same sum there.
            sums = (await snapshot.log.sums(database)).open_rows
        else:
            page = await snapshot.viewers.read(viewer, place, max_bytes, known=known, resumed=resumed, seen=seen)
            reading, seen = page.reading, digest(page.audiences)
            sums = await snapshot.viewers.sums(viewer, page)
        stretch = reading.stretch
        return change_pb2.GetResponse(
            page=reading.page,
            next_page_token=b"" if stretch.at_head else to_token(database, reading.place, reading.known, seen),
            state=snapshot.log.state(database, stretch.head, stretch.head_chain, stretch.floor, stretch.schema_version),
            sums=[to_sum(row) for row in sums if row.position <= stretch.reached],
        )

    async def subscribe(self, request: change_pb2.SubscribeRequest, context: Context) -> AsyncIterator[bytes]:
        """``ChangeService.Subscribe``."""
        snapshot = self._snapshot
        database, head = await snapshot.open_call(request.db_name, request.node_state)
        place = _place(request.after, head)
        stream = current_stream()
        assert stream is not None
        unread = self._unread(stream.task, functools.partial(stream.end, TOO_SLOW))
        begun = False
        while True:
            known = seen_by(database, request.node_state.greatest_seen)
            source = self._source(database, request.node_state)
            pages = follow(snapshot.log, database, source, place, known, snapshot.settings.page_bytes, unread)
            try:
                async with contextlib.aclosing(pages):
                    async for response in pages:
                        begun = True
                        yield response
            except ChangedError:
                if begun:
                    raise
                # The kept state was a moment old.
                begun = True
                database = await snapshot.databases.read(request.db_name)

    def _source(self, database: Database, state: position_pb2.NodeState) -> Source:
        """The pages that the caller follows."""
        snapshot = self._snapshot
        viewer = self._viewer(database, state)
        if viewer is None:
            return Everything(snapshot.log, database, snapshot.tail(database))
        return VisibleToOne(snapshot.viewers, viewer, snapshot.viewers_tail(database))

    def _viewer(self, database: Database, state: position_pb2.NodeState) -> Viewer | None:
        """The caller as a viewer; None where everybody sees the same."""
        return viewer_of(database, current_principal(), state) if is_scoped(database) else None

    def _unread(self, task: asyncio.Task[Any], end: Callable[[], None]) -> Unread:
        """The answer that a call holds until gRPC has no part in it any more, which is when its task ends."""
        unread = self._snapshot.unread.call(current_subject(), end)
        # Not by the context: it would be kept in a circle with the call, until garbage is collected.
        task.add_done_callback(lambda _: unread.gone())
        return unread

    async def find_common(
        self, request: change_pb2.FindCommonRequest, context: Context
    ) -> change_pb2.FindCommonResponse:
        """``ChangeService.FindCommon``."""
        snapshot = self._snapshot
        principal = require_database(request.db_name)
        if len(request.seen) > MOST_SEEN:
            raise CallError(errors_pb2.REASON_INVALID_REQUEST, f"seen has more than {MOST_SEEN} positions")
        database = await snapshot.databases.read(request.db_name)
        await snapshot.nodes.admit(database, principal.subject, request.node_state)
        async with snapshot.log.admitted():
            # In this order: were the server restored in between, the common position is one that the later history has.
            sums = await snapshot.log.sums(database)
            common = await snapshot.log.find_common(database, request.seen)
        return change_pb2.FindCommonResponse(
            common=common,
            state=snapshot.log.state(database, sums.head, sums.chain, sums.floor, sums.schema_version),
        )


def _place(after: int, head: int) -> Place:
    """Return the place of a reader that has applied ``after``.

    Raises:
        CallError: INVALID_POSITION.
    """
    if after < 0:
        raise CallError(errors_pb2.REASON_INVALID_POSITION, "after is negative: take a new snapshot")
    if after > head:
        raise beyond_head(after, head)
    return place_after(after)


def register(server: grpc.aio.Server, servicer: ChangeServicer) -> None:
    """Add the service."""
    handlers: dict[str, Any] = {
        "Get": grpc.unary_unary_rpc_method_handler(
            servicer.get, change_pb2.GetRequest.FromString, change_pb2.GetResponse.SerializeToString
        ),
        "Subscribe": grpc.unary_stream_rpc_method_handler(servicer.subscribe, change_pb2.SubscribeRequest.FromString),
        "FindCommon": grpc.unary_unary_rpc_method_handler(
            servicer.find_common,
            change_pb2.FindCommonRequest.FromString,
            change_pb2.FindCommonResponse.SerializeToString,
        ),
    }
    server.add_registered_method_handlers(SERVICE, handlers)
