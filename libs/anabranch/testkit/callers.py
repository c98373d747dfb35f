"""Callers that call all services of a stack again and again, also after failures: they show the effect of a fault on
calls, and since when calls succeed again.

Each caller makes one kind of call, each with a deadline; after a failure it waits a moment, as a device does. A Send is
that of a node of its own with one batch, and has succeeded when the batch has its verdict APPLIED.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

import grpc
from ulid import ULID

from anabranch.testkit.echo import bearer
from anabranch.v1 import (
    batch_pb2,
    change_pb2,
    change_pb2_grpc,
    ingest_pb2,
    ingest_pb2_grpc,
    position_pb2,
    resolver_pb2,
    resolver_pb2_grpc,
    retention_pb2,
    retention_pb2_grpc,
    value_pb2,
    verdict_pb2,
)

CALL_S = 4.0
_PAUSE_S = 0.5
_AFTER_FAILURE_S = 0.25
_CHANNELS = 4
_START_S = 30.0
KINDS: Mapping[str, str] = {
    "send": "ingest",
    "get": "snapshot",
    "list conflicts": "conflict-resolver",
    "retention status": "retention-janitor",
}
"""Kinds of calls, and the service that answers each."""
_SHARES = {"send": 70, "get": 60, "list conflicts": 10, "retention status": 10}
COUNT = sum(_SHARES.values())

_Call = Callable[[], Awaitable[None]]


class Callers:
    """``COUNT`` callers while its block lasts, on the table ``note`` (id, body) of ``database``."""

    def __init__(self, addresses: Mapping[str, str], key: str, database: str) -> None:
        self._addresses = addresses
        self._metadata = bearer(key)
        self._database = database
        self._came_through: dict[str, list[float]] = defaultdict(list)
        self.applied: list[str] = []
        """Ids of rows whose batches were reported as applied."""
        self._failed: dict[str, str] = {}
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="callers", daemon=True)
        self._done: Future[None] | None = None
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._done = asyncio.run_coroutine_threadsafe(self._run(), self._loop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        assert self._done is not None
        try:
            self._done.result(_START_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_START_S)
            self._loop.close()

    def first_after(self, moment: float, timeout_s: float) -> dict[str, float]:
        """Seconds from a moment of the monotonic clock until the first call of each kind succeeded that was made after
        it. Raises TimeoutError where a kind had no such call."""
        with self._changed:
            if not self._changed.wait_for(lambda: all(self._after(kind, moment) for kind in KINDS), timeout_s):
                missing = [kind for kind in KINDS if not self._after(kind, moment)]
                last = {kind: self._failed.get(kind) for kind in missing}
                raise TimeoutError(f"no call of {missing} has succeeded in {timeout_s} s; their last errors: {last}")
            return {kind: min(self._after(kind, moment)) - moment for kind in KINDS}

    def _after(self, kind: str, moment: float) -> list[float]:
        # They are in the order of time, so that the newest are enough.
        return [at for at in self._came_through[kind][-2_000:] if at > moment]

    async def _run(self) -> None:
        channels = {
            name: [grpc.aio.insecure_channel(self._addresses[name]) for _ in range(_CHANNELS)]
            for name in KINDS.values()
        }
        try:
            async with asyncio.TaskGroup() as tasks:
                for kind, share in _SHARES.items():
                    for number in range(share):
                        channel = channels[KINDS[kind]][number % _CHANNELS]
                        tasks.create_task(self._go_on(kind, self._call(kind, channel)))
        finally:
            for ours in channels.values():
                for channel in ours:
                    await channel.close()

    async def _go_on(self, kind: str, call: _Call) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                await call()
            except grpc.RpcError as error:
                self._failed[kind] = f"{error.code().name} {error.details()}"
                await asyncio.sleep(_AFTER_FAILURE_S)
                continue
            with self._changed:
                self._came_through[kind].append(began)
                self._changed.notify_all()
            await asyncio.sleep(_PAUSE_S)

    def _call(self, kind: str, channel: grpc.aio.Channel) -> _Call:
        calls: Mapping[str, Callable[[grpc.aio.Channel], _Call]] = {
            "send": self._send,
            "get": self._get,
            "list conflicts": self._list_conflicts,
            "retention status": self._status,
        }
        return calls[kind](channel)

    def _send(self, channel: grpc.aio.Channel) -> _Call:
        stub: Any = ingest_pb2_grpc.IngestServiceStub(channel)

        async def call() -> None:
            row = str(ULID())
            node = batch_pb2.Node(id=str(ULID()), name="caller")
            batch = batch_pb2.DbMutationBatch(id=str(ULID()), db_name=self._database, node=node, schema_version=1)
            mutation = batch.mutations.add(table="note", type=batch_pb2.MUTATION_TYPE_INSERT, columns=["id", "body"])
            mutation.rows.add(values=[value_pb2.Value(string_value=row), value_pb2.Value(string_value="x")])
            request = ingest_pb2.SendRequest(
                db_name=self._database,
                node_state=position_pb2.NodeState(node=node),
                envelopes=[batch_pb2.Envelope(payload=batch.SerializeToString())],
            )
            while True:
                answer = await stub.Send(request, timeout=CALL_S, metadata=self._metadata)
                if answer.verdicts[0].status == verdict_pb2.VERDICT_STATUS_APPLIED:
                    self.applied.append(row)
                    return
                if self._stop.is_set():
                    return
                request.node_token = answer.node_token

        return call

    def _get(self, channel: grpc.aio.Channel) -> _Call:
        stub: Any = change_pb2_grpc.ChangeServiceStub(channel)
        state = position_pb2.NodeState(node=batch_pb2.Node(id=str(ULID()), name="reader"))
        request = change_pb2.GetRequest(db_name=self._database, node_state=state, max_bytes=4_096)

        async def call() -> None:
            await stub.Get(request, timeout=CALL_S, metadata=self._metadata)

        return call

    def _list_conflicts(self, channel: grpc.aio.Channel) -> _Call:
        stub: Any = resolver_pb2_grpc.ConflictResolverServiceStub(channel)
        request = resolver_pb2.ListConflictsRequest(db_name=self._database)

        async def call() -> None:
            await stub.ListConflicts(request, timeout=CALL_S, metadata=self._metadata)

        return call

    def _status(self, channel: grpc.aio.Channel) -> _Call:
        stub: Any = retention_pb2_grpc.RetentionJanitorServiceStub(channel)
        request = retention_pb2.GetStatusRequest(db_name=self._database)

        async def call() -> None:
            await stub.GetStatus(request, timeout=CALL_S, metadata=self._metadata)

        return call
