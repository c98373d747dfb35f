"""A state of health reaches everybody, whoever else watches."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from anabranch.runtime.health_states import HealthStates

Status = health_pb2.HealthCheckResponse
WAIT_S = 10.0


class Stalled:
    """A call whose caller takes nothing."""

    def __init__(self) -> None:
        self.writing = asyncio.Event()

    async def write(self, message: Any) -> None:
        self.writing.set()
        await asyncio.Event().wait()


async def _served(states: HealthStates) -> tuple[grpc.aio.Server, str]:
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(states, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, f"127.0.0.1:{port}"


def test_a_watcher_that_takes_nothing_keeps_no_state_from_others() -> None:
    async def story() -> None:
        states = HealthStates(["one"])
        server, address = await _served(states)
        stalled = Stalled()
        held = asyncio.create_task(states.Watch(health_pb2.HealthCheckRequest(), stalled))
        await asyncio.wait_for(stalled.writing.wait(), WAIT_S)
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                stub: Any = health_pb2_grpc.HealthStub(channel)
                watched = stub.Watch(health_pb2.HealthCheckRequest(service="one"), timeout=WAIT_S)
                assert (await watched.read()).status == Status.NOT_SERVING
                states.set(True)
                assert (await watched.read()).status == Status.SERVING
                assert (await stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)).status == Status.SERVING
                states.end()
                assert (await watched.read()).status == Status.NOT_SERVING
                states.set(True)
                assert (await stub.Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)).status == Status.NOT_SERVING
                watched.cancel()
        finally:
            held.cancel()
            await server.stop(None)

    asyncio.run(story())


def test_a_name_that_is_not_served_is_told_as_the_protocol_says() -> None:
    async def story() -> None:
        server, address = await _served(HealthStates(["one"]))
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                stub: Any = health_pb2_grpc.HealthStub(channel)
                other = health_pb2.HealthCheckRequest(service="other")
                watched = stub.Watch(other, timeout=WAIT_S)
                assert (await watched.read()).status == Status.SERVICE_UNKNOWN
                watched.cancel()
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.Check(other, timeout=WAIT_S)
                assert refused.value.code() == grpc.StatusCode.NOT_FOUND
        finally:
            await server.stop(None)

    asyncio.run(story())
