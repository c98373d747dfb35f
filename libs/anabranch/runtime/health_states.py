"""Answers a service's health calls: whether it serves.

The library's servicer for asyncio writes to a watcher while it holds the lock that a change of the state needs. A
watcher whose connection takes nothing, or that has gone at that moment, so blocks the change of the state for all
watchers, and a service that became ready would not say so. Here no lock is held during a write: each watcher's task
reads the latest state, and may miss those in between, as the protocol allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

Status = health_pb2.HealthCheckResponse


class HealthStates(health_pb2_grpc.HealthServicer):
    """Answers for ``names`` and for the whole process (the empty name), which serve together or not at all: not, until
    ``set`` says so. To be used in one event loop."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {"", *names}
        self._serving = False
        self._ended = False
        self._changed = asyncio.Event()

    def set(self, serving: bool) -> None:
        """Whether calls are served from now on; without effect after ``end``."""
        if self._ended or serving == self._serving:
            return
        self._serving = serving
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def end(self) -> None:
        """Calls are not served any more, whatever is ``set`` later."""
        self.set(False)
        self._ended = True

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The state now; NOT_FOUND for a name that is not served here."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no service of that name is served here")
        return Status(status=self._status(request.service))

    async def Watch(self, request: Any, context: Any) -> None:  # noqa: N802
        """The state now and after each change, until the caller leaves; SERVICE_UNKNOWN for a name that is not served
        here."""
        sent = None
        while True:
            changed = self._changed
            status = self._status(request.service)
            if status == sent:
                await changed.wait()
                continue
            await context.write(Status(status=status))
            sent = status

    def _status(self, name: str) -> Any:
        if name not in self._names:
            return Status.SERVICE_UNKNOWN
        return Status.SERVING if self._serving else Status.NOT_SERVING
