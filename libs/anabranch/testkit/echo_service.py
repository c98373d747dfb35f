"""A service for tests of the runtime that every service uses: it offers ``ChangeService`` and returns the caller.

Run as ``python -m anabranch.testkit.echo_service``. ``Get`` gives the caller's subject as ``next_page_token``, the
traceparent to hand on as ``state.settled.epoch`` and the service's clock as ``state.server_time_ms``; ``after`` picks
another behaviour. ``Subscribe`` sends a heartbeat at once and one every ``HEARTBEAT_S``; with ``after`` = ``PAUSES``,
none but the first.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog

from anabranch import faults
from anabranch.runtime import telemetry
from anabranch.runtime.calls.streams import current_stream
from anabranch.runtime.config import ServiceSettings
from anabranch.runtime.credentials.principal import require_admin, require_database
from anabranch.runtime.errors import CallError, abort
from anabranch.runtime.server import main
from anabranch.runtime.service import Service, ServiceContext
from anabranch.v1 import change_pb2, change_pb2_grpc, errors_pb2, position_pb2

NAME = "anabranch.v1.ChangeService"
HEARTBEAT_S = 0.05
SECRET = "a value that nobody may see"
UNDER_WAY = "a slow call is under way"
RAISES, NEEDS_ADMIN, IS_SLOW, ABORTS, DIES, PAUSES, ASKS_POSTGRES, FLOODS, HOLDS_POSTGRES, ENDS = range(1, 11)
"""Values of ``after``: an unforeseen exception, an admin call, ``max_bytes`` milliseconds of work (logged), a listed
failure, the fault point ``before_answer``, a stream that falls silent, a statement in the pool, a stream as fast as it
is read, a statement of ``max_bytes`` milliseconds in the pool, a stream that is ended from outside while its first
message begins to be sent."""

Context = grpc.aio.ServicerContext[Any, Any]
_log = structlog.get_logger()


class EchoServicer(change_pb2_grpc.ChangeServiceServicer):
    """The two calls."""

    def __init__(self, service: ServiceContext[ServiceSettings]) -> None:
        self._service = service

    async def Get(  # noqa: N802
        self, request: change_pb2.GetRequest, context: Context
    ) -> change_pb2.GetResponse:
        """Behave as the module's docstring says."""
        principal = require_database(request.db_name)
        await self._behave(request, context)
        with telemetry.span("echo"):
            traceparent = telemetry.current_traceparent() or ""
        return change_pb2.GetResponse(
            next_page_token=principal.subject.encode(),
            state=position_pb2.ServerState(
                settled=position_pb2.Position(epoch=traceparent), server_time_ms=self._service.clock.now_ms()
            ),
        )

    async def _behave(self, request: change_pb2.GetRequest, context: Context) -> None:
        if request.after == RAISES:
            raise RuntimeError(SECRET)
        if request.after == NEEDS_ADMIN:
            require_admin()
        elif request.after == IS_SLOW:
            _log.info(UNDER_WAY)
            await asyncio.sleep(request.max_bytes / 1000)
        elif request.after == ABORTS:
            await abort(context, errors_pb2.REASON_BEHIND_FLOOR, "behind the floor", floor="7")
        elif request.after == DIES:
            faults.reach("before_answer")
        elif request.after == ASKS_POSTGRES:
            async with self._service.pool.connection(timeout=1.0) as conn:
                await conn.execute("select 1")
        elif request.after == HOLDS_POSTGRES:
            async with self._service.pool.connection(timeout=1.0) as conn:
                await conn.execute(f"select pg_sleep({request.max_bytes / 1000})".encode())

    async def FindCommon(  # noqa: N802
        self, request: change_pb2.FindCommonRequest, context: Context
    ) -> change_pb2.FindCommonResponse:
        """Nothing in common."""
        require_database(request.db_name)
        return change_pb2.FindCommonResponse()

    async def Subscribe(  # noqa: N802
        self, request: change_pb2.SubscribeRequest, context: Context
    ) -> AsyncIterator[change_pb2.SubscribeResponse]:
        """Heartbeats without end."""
        require_database(request.db_name)
        if request.after == ENDS:
            stream = current_stream()
            assert stream is not None
            failure = CallError(errors_pb2.REASON_OVERLOADED, "ended as it began")
            asyncio.get_running_loop().call_soon(stream.end, failure)
        while True:
            yield change_pb2.SubscribeResponse()
            while request.after == FLOODS:
                position = position_pb2.Position(token=bytes(256 * 1024))
                yield change_pb2.SubscribeResponse(state=position_pb2.ServerState(settled=position))
            await (asyncio.Event().wait() if request.after == PAUSES else asyncio.sleep(HEARTBEAT_S))


async def build(service: ServiceContext[ServiceSettings]) -> Service:
    """The service."""
    return Service(
        names=(NAME,),
        register=lambda server: change_pb2_grpc.add_ChangeServiceServicer_to_server(EchoServicer(service), server),
        endless=frozenset({f"/{NAME}/Subscribe"}),
    )


if __name__ == "__main__":
    sys.exit(main(ServiceSettings, "echo", build))
