"""A gRPC server that no name of a method can end.

gRPC's own loop for asyncio decodes the name of every call's method, and ends, with the listener, for one that is no
UTF-8: a single call by anybody, without credentials. Here it takes only calls of methods that are registered, whose
names it knows, and those of all others are answered UNIMPLEMENTED beside it, without a look at their names.

This overrides what gRPC does not declare as public. Its version is pinned, and the test sends such names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

NO_NAME = ""
"""The method that interceptors are told of in place of one that is not registered."""


class _NoMethod:
    def resolve_handler(self, _details: object) -> None:
        """No handler."""


class _Server(cygrpc.AioServer):  # type: ignore[misc]
    """gRPC's server, with its calls of unregistered methods taken out of the loop."""

    def __init__(self, loop: Any, pool: Any, handlers: Any, interceptors: Any, *more: Any) -> None:
        super().__init__(loop, pool, handlers, interceptors, *more)
        self._told = tuple(interceptors or ())
        self._answering: set[asyncio.Task[None]] = set()

    def _make_request_call_future(self, method: bytes | None) -> Any:
        if method is not None:
            return super()._make_request_call_future(method)
        return asyncio.get_running_loop().create_task(self._answer_others())

    async def _answer_others(self) -> None:
        """Until the server ends, which its own error tells the loop."""
        loop = asyncio.get_running_loop()
        while True:
            call = await self._request_call()
            answer = cygrpc._handle_rpc(NO_NAME, _NoMethod(), self._told, call, loop, False)
            task = loop.create_task(cygrpc._schedule_rpc_coro(answer, call, loop, NO_NAME))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)


def make_server(
    interceptors: Sequence[grpc.aio.ServerInterceptor], options: Sequence[tuple[str, Any]]
) -> grpc.aio.Server:
    """``grpc.aio.server``. Every method that it is to serve has to be registered, as generated code does:
    ``add_registered_method_handlers``."""
    theirs = cygrpc.AioServer
    cygrpc.AioServer = _Server
    try:
        return grpc.aio.server(interceptors=interceptors, options=options)
    finally:
        cygrpc.AioServer = theirs
