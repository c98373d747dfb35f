"""``SnapshotService``: decode, read, encode."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any

import grpc

from anabranch.runtime.credentials.principal import current_principal, require_database
from anabranch.runtime.errors import CallError
from anabranch.store.audiences.viewing import is_scoped
from anabranch.store.catalog.databases import Database
from anabranch.store.catalog.sure import sure_refusals
from anabranch.store.log.reader import NO_LIMIT, Sums
from anabranch.store.log.schema_versions import SchemaVersion, schema_versions
from anabranch.store.session.steps import arun
from anabranch.v1 import errors_pb2, position_pb2, snapshot_pb2
from anabranch_snapshot.app_versions import OutdatedError, outdated, require_version
from anabranch_snapshot.describe import describe
from anabranch_snapshot.log import ChangedError
from anabranch_snapshot.moments import Moment, Past, require, seen_by
from anabranch_snapshot.pulls.altered import until_readable
from anabranch_snapshot.pulls.compare import compare
from anabranch_snapshot.pulls.pull import Wanted, pull
from anabranch_snapshot.pulls.pull_base import pull_base
from anabranch_snapshot.pulls.pull_source import choose_source
from anabranch_snapshot.pulls.resume_tokens import from_token
from anabranch_snapshot.snapshot import Snapshot
from anabranch_snapshot.viewers import Viewer, viewer_of

Context = grpc.aio.ServicerContext[Any, Any]
SERVICE = "anabranch.v1.SnapshotService"


class SnapshotServicer:
    """``pull`` gives bytes: a chunk goes into its response without being parsed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    async def describe(self, request: snapshot_pb2.DescribeRequest, context: Context) -> snapshot_pb2.DescribeResponse:
        """``SnapshotService.Describe``."""
        async with self._snapshot.log.admitted():
            try:
                return await self._describe(request)
            except ChangedError:
                # Between two statements; the present ones are there by now.
                return await self._describe(request)

    async def _describe(self, request: snapshot_pb2.DescribeRequest) -> snapshot_pb2.DescribeResponse:
        snapshot = self._snapshot
        database = await self._fresh(request.db_name, request.node_state)
        require_version(request.app_version, database.ddl_version)
        sums = await snapshot.log.sums(database)
        if sums.schema_version != database.schema_version:
            # The node would take the tables for those of the later version.
            raise snapshot.log.changed(database)
        # Once more: the server may have been restored since, and what is settled would stand for another history.
        await snapshot.log.check_seen(database, request.node_state.greatest_seen)
        since: Sequence[SchemaVersion] = ()
        async with snapshot.pool.connection() as conn:
            sure = await arun(conn, sure_refusals(database.schema_name, database.by_sql_name))
            if request.app_version not in (0, database.ddl_version):
                since = await arun(conn, schema_versions(database.id, request.app_version, database.ddl_version))
        try:
            response = describe(database, sums, sure, since)
        except OutdatedError as error:
            raise outdated(error, request.app_version) from None
        response.state.CopyFrom(snapshot.log.state(database, sums.head, sums.chain, sums.floor, sums.schema_version))
        return response

    async def pull(self, request: snapshot_pb2.PullRequest, context: Context) -> AsyncIterator[bytes]:
        """``SnapshotService.Pull``."""
        snapshot = self._snapshot
        database = await self._fresh(request.db_name, request.node_state)
        wanted = _wanted(database, request.required)
        principal = require_database(request.db_name)
        viewer = await self._viewer(database, request.node_state)
        chosen = await choose_source(snapshot, database, wanted, request.node_state, principal.subject, viewer)
        if chosen is not None:
            served, seen = chosen
            state = snapshot.log.state(
                database, served.found.head, served.found.head_chain, served.found.floor, served.found.schema_version
            )
            responses = pull_base(
                snapshot.turns,
                snapshot.settings,
                database,
                wanted,
                served,
                seen,
                state,
                functools.partial(self._require_still, database, viewer, served.found.position, seen),
                lambda error: snapshot.bases.broke(database, served, error),
            )
            async with contextlib.aclosing(responses):
                async for response in responses:
                    yield response
            return

        readable = await self._readable(database, {one.table for one in request.required})
        if readable.schema_version != database.schema_version:
            database, wanted = readable, _wanted(readable, request.required)
            viewer = await self._viewer(database, request.node_state)
        past = Past(
            seen_by(database, request.node_state.greatest_seen),
            [one.progress.shown for one in wanted if one.progress is not None and one.progress.shown is not None],
        )

        async def began(moment: Sums, chains: Mapping[int, bytes]) -> position_pb2.ServerState:
            await self._unchanged(database, moment, chains, past, request.node_state)
            earliest = min([moment.head, *(one.progress.earliest for one in wanted if one.progress is not None)])
            if earliest < moment.floor:
                raise CallError(
                    errors_pb2.REASON_INVALID_TOKEN,
                    "the log no longer goes back to where this pull began: pull these tables from their start",
                )
            # The log is kept from here on for a node that has nothing else to follow it from.
            snapshot.nodes.note(database, principal.subject, request.node_state, earliest, pulled=True)
            return snapshot.log.state(database, moment.head, moment.chain, moment.floor, moment.schema_version)

        chunks = pull(
            snapshot.turns, snapshot.settings, database, wanted, snapshot.viewers, viewer, past.positions, began
        )
        async with contextlib.aclosing(chunks):
            async for response in chunks:
                yield response

    async def compare(
        self, requests: AsyncIterator[snapshot_pb2.CompareRequest], context: Context
    ) -> AsyncIterator[snapshot_pb2.CompareResponse]:
        """``SnapshotService.Compare``."""
        snapshot = self._snapshot
        request = await anext(requests, None)
        if request is None:
            raise CallError(errors_pb2.REASON_INVALID_REQUEST, "the stream has no request")
        database = await self._fresh(request.db_name, request.node_state)
        database = await self._readable(database, {request.table})
        (wanted,) = _wanted(database, [snapshot_pb2.RequiredTable(table=request.table)])

        past = Past(seen_by(database, request.node_state.greatest_seen), ())

        async def began(moment: Sums, chains: Mapping[int, bytes]) -> position_pb2.ServerState:
            await self._unchanged(database, moment, chains, past, request.node_state)
            return snapshot.log.state(database, moment.head, moment.chain, moment.floor, moment.schema_version)

        viewer = await self._viewer(database, request.node_state)
        responses = compare(
            snapshot.compare_turns,
            snapshot.settings,
            database,
            wanted.table,
            snapshot.viewers,
            viewer,
            requests,
            past.positions,
            began,
        )
        async with contextlib.aclosing(responses):
            async for response in responses:
                yield response

    async def _viewer(self, database: Database, state: position_pb2.NodeState) -> Viewer | None:
        """The caller as a viewer whose principal is known; None where everybody sees the same.

        Raises:
            CallError: INVALID_REQUEST; UNAVAILABLE: the rules have just changed.
            psycopg.Error: its audiences can't be read.
        """
        if not is_scoped(database):
            return None
        viewer = viewer_of(database, current_principal(), state)
        await self._snapshot.viewers.memberships(viewer, NO_LIMIT)
        return viewer

    async def _require_still(
        self, database: Database, viewer: Viewer | None, position: int, seen: frozenset[str]
    ) -> None:
        """Check that a caller that waited for its turn still sees what it saw at a position when it called. Raises
        CallError UNAVAILABLE."""
        current = await self._snapshot.databases.read(database.name)
        self._snapshot.log.require_version(database, current.schema_version)
        if viewer is not None and await self._snapshot.viewers.seen_since(viewer, position) != seen:
            raise CallError(errors_pb2.REASON_UNAVAILABLE, "what this caller may see has just changed: call again")

    async def _unchanged(
        self,
        database: Database,
        moment: Sums,
        chains: Mapping[int, bytes],
        past: Past,
        state: position_pb2.NodeState,
    ) -> None:
        """Check that the moment is of the history that the caller follows, and of the tables that the caller knows."""
        await require(
            self._snapshot.log, database, Moment(moment.head, moment.floor, chains), past, state.greatest_seen
        )
        if moment.epoch != database.epoch or moment.schema_version != database.schema_version:
            self._snapshot.databases.look()
            raise CallError(errors_pb2.REASON_UNAVAILABLE, "the tables have just changed: call again")

    async def _readable(self, database: Database, names: Collection[str]) -> Database:
        """The database once these tables can be read, all of them where there are no names. Raises as
        ``until_readable``."""
        snapshot = self._snapshot
        wait_ms = snapshot.settings.pull_lock_timeout_ms
        return await until_readable(snapshot.pool, snapshot.databases, database, names, wait_ms)

    async def _fresh(self, db_name: str, state: position_pb2.NodeState) -> Database:
        """The database that a call may use, as the catalog has it now. A node that wants a new snapshot because its
        positions are no longer valid presents none as seen."""
        snapshot = self._snapshot
        principal = require_database(db_name)
        database = await snapshot.databases.read(db_name)
        await snapshot.log.check_seen(database, state.greatest_seen)
        await snapshot.nodes.admit(database, principal.subject, state)
        return database


def _wanted(database: Database, required: Sequence[snapshot_pb2.RequiredTable]) -> list[Wanted]:
    """The tables that a pull asks for, in its order; all of them where it names none.

    Raises:
        CallError: UNKNOWN_TABLE, INVALID_REQUEST, INVALID_TOKEN.
    """
    if not required:
        return [Wanted(database.tables[name], None) for name in database.table_order]
    names = [one.table for one in required]
    for name in names:
        if name not in database.tables:
            raise CallError(errors_pb2.REASON_UNKNOWN_TABLE, f"there is no synced table {name!r}")
    if len(set(names)) != len(names):
        raise CallError(errors_pb2.REASON_INVALID_REQUEST, "required names a table twice")
    return [
        Wanted(table, from_token(database, table, one.resume) if one.resume else None, frozenset(one.audiences))
        for one in required
        for table in (database.tables[one.table],)
    ]


def register(server: grpc.aio.Server, servicer: SnapshotServicer) -> None:
    """Add the service."""
    handlers: dict[str, Any] = {
        "Describe": grpc.unary_unary_rpc_method_handler(
            servicer.describe,
            snapshot_pb2.DescribeRequest.FromString,
            snapshot_pb2.DescribeResponse.SerializeToString,
        ),
        "Compare": grpc.stream_stream_rpc_method_handler(
            servicer.compare,
            snapshot_pb2.CompareRequest.FromString,
            snapshot_pb2.CompareResponse.SerializeToString,
        ),
        "Pull": grpc.unary_stream_rpc_method_handler(servicer.pull, snapshot_pb2.PullRequest.FromString),
    }
    server.add_registered_method_handlers(SERVICE, handlers)
