"""``RetentionJanitorService``: decode, call, encode."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, cast

import grpc

from anabranch.merge.retention import Bound
from anabranch.runtime.credentials.principal import require_admin, require_database
from anabranch.runtime.errors import CallError
from anabranch.store.inbox.explain import DatabaseState, read_state
from anabranch.store.retention.floor import databases
from anabranch.store.retention.status import COUNTED, RetentionStatus, status
from anabranch.store.session.engine import AsyncPool
from anabranch.v1 import errors_pb2, position_pb2, retention_pb2, retention_pb2_grpc
from anabranch_retention_janitor.janitor import Janitor
from anabranch_retention_janitor.pace import StoppedError
from anabranch_retention_janitor.sweep import ClockError, open_session

Context = grpc.aio.ServicerContext[Any, Any]
SERVICE = "anabranch.v1.RetentionJanitorService"


class JanitorServicer(retention_pb2_grpc.RetentionJanitorServiceServicer):
    """Answers which rows expire, and runs a sweep at once. For admins."""

    def __init__(self, janitor: Janitor, pool: AsyncPool) -> None:
        self._janitor = janitor
        self._pool = pool

    async def GetStatus(  # noqa: N802 - the contract's name
        self, request: retention_pb2.GetStatusRequest, context: Context
    ) -> retention_pb2.GetStatusResponse:
        """``RetentionJanitorService.GetStatus``."""
        state, found = await self._look(request.db_name)
        return retention_pb2.GetStatusResponse(
            floor=found.look.kept.floor,
            next_floor=found.look.target,
            bounds=_bounds(found.look.bounds),
            removes=_removed(found.removes, COUNTED),
            partitions_until=[leaf.until for leaf in found.partitions],
            last_sweep_ms=self._janitor.last_sweep_ms,
            state=self._server_state(state),
        )

    async def RunSweep(  # noqa: N802 - the contract's name
        self, request: retention_pb2.RunSweepRequest, context: Context
    ) -> retention_pb2.RunSweepResponse:
        """``RetentionJanitorService.RunSweep``."""
        if request.dry_run:
            state, found = await self._look(request.db_name)
            return retention_pb2.RunSweepResponse(
                floor_before=found.look.kept.floor,
                floor=found.look.target,
                bounds=_bounds(found.look.bounds),
                removed=_removed(found.removes, COUNTED),
                state=self._server_state(state),
            )
        await self._state(request.db_name)
        try:
            swept = await self._janitor.sweep(request.db_name)
        except ClockError as error:
            raise CallError(errors_pb2.REASON_UNAVAILABLE, str(error)) from None
        except StoppedError:
            raise CallError(errors_pb2.REASON_UNAVAILABLE, "this janitor is stopping: call another one") from None
        if swept is None:
            raise CallError(errors_pb2.REASON_UNAVAILABLE, "another janitor is sweeping: call again")
        state = await self._state(request.db_name)
        if not swept:
            raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {request.db_name!r}")
        (one,) = swept
        return retention_pb2.RunSweepResponse(
            floor_before=one.floor_before,
            floor=one.floor,
            bounds=_bounds(one.bounds),
            removed=_removed(one.removed),
            unfinished=one.unfinished,
            state=self._server_state(state),
        )

    async def _state(self, name: str) -> DatabaseState:
        require_database(name)
        require_admin()
        async with self._pool.connection() as conn:
            state = await read_state(conn, name)
        if state is None:
            raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {name!r}")
        return state

    async def _look(self, name: str) -> tuple[DatabaseState, RetentionStatus]:
        state = await self._state(name)
        found = await asyncio.to_thread(self._status, name)
        if found is None:
            raise CallError(errors_pb2.REASON_UNKNOWN_DATABASE, f"there is no database {name!r}")
        return state, found

    def _status(self, name: str) -> RetentionStatus | None:
        janitor = self._janitor
        with open_session(janitor.settings, "status") as conn:
            for kept in databases(conn, name):
                return status(conn, kept, janitor.clock.now_ms())
        return None

    def _server_state(self, state: DatabaseState) -> position_pb2.ServerState:
        settled = position_pb2.Position(epoch=state.epoch, server_timestamp_ms=state.position, token=state.token)
        return position_pb2.ServerState(
            settled=settled,
            floor=state.floor_ms,
            schema_version=state.schema_version,
            server_time_ms=self._janitor.clock.now_ms(),
        )


def _bounds(bounds: Iterable[Bound]) -> list[retention_pb2.FloorBound]:
    return [
        retention_pb2.FloorBound(
            hold=cast("retention_pb2.FloorHold.ValueType", int(bound.hold)),
            position=bound.position,
            detail=bound.detail,
        )
        for bound in bounds
    ]


def _removed(rows: Mapping[str, int], counted: int | None = None) -> list[retention_pb2.Removed]:
    return [
        retention_pb2.Removed(what=what, rows=number, more=counted is not None and number >= counted)
        for what, number in rows.items()
        if number
    ]


def register(server: grpc.aio.Server, servicer: JanitorServicer) -> None:
    """Add the service."""
    retention_pb2_grpc.add_RetentionJanitorServiceServicer_to_server(servicer, server)
