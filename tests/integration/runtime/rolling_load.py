"""The load of an installation while it is rolled: pushes, streams and devices, all through gates."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from ulid import ULID

from anabranch.client import SyncedDb
from anabranch.runtime.errors import error_info
from anabranch.testkit.echo import bearer
from anabranch.testkit.remote import remote_of
from anabranch.v1 import (
    batch_pb2,
    change_pb2,
    change_pb2_grpc,
    ingest_pb2,
    ingest_pb2_grpc,
    position_pb2,
    value_pb2,
    verdict_pb2,
)

DATABASE = "rolled"
PUSHERS = 4
PUSHES_PER_S = 20
STREAMS = 50
CALL_S = 30.0
DEVICE_PAUSE_S = 0.1
PATIENCE_S = 60.0
NAMES = ("a", "b")


@dataclass
class Load:
    """The calls that were made and their results. ``pushed``: ids of batches that got their verdict. ``calls``: by
    outcome. ``streams``: the groups that each follower was given, in order. ``moved``: why streams ended, by (code,
    reason). ``made``: rows that devices made."""

    addresses: Mapping[str, str]
    key: str
    folder: Path
    pushed: list[str] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    streams: list[list[str]] = field(default_factory=lambda: [[] for _ in range(STREAMS)])
    moved: Counter[tuple[str, str]] = field(default_factory=Counter)
    made: list[str] = field(default_factory=list)
    devices: list[SyncedDb] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _until: int = 0

    async def _push(self, number: int) -> None:
        """One node of its own, which sends a batch at a time, each until it has its verdict."""
        node = batch_pb2.Node(id=str(ULID()), name=f"pusher-{number}")
        token = b""
        unanswered: list[str] = []
        async with grpc.aio.insecure_channel(self.addresses["ingest"]) as channel:
            stub = ingest_pb2_grpc.IngestServiceStub(channel)
            while not self._stop.is_set():
                began = time.monotonic()
                envelope, batch_id = _insert(node, f"pushed by {number}")
                while True:
                    request = ingest_pb2.SendRequest(
                        db_name=DATABASE,
                        node_state=position_pb2.NodeState(node=node),
                        node_token=token,
                        unanswered_batch_ids=unanswered,
                        envelopes=[envelope],
                    )
                    unanswered = [*unanswered, batch_id]
                    try:
                        answer = await stub.Send(request, timeout=CALL_S, metadata=bearer(self.key))
                    except grpc.RpcError as error:
                        self.calls[error.code().name] += 1
                        await asyncio.sleep(0.05)
                        continue
                    self.calls["OK"] += 1
                    token, unanswered = answer.node_token, []
                    (verdict,) = answer.verdicts
                    if verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED:
                        break
                    assert verdict.status == verdict_pb2.VERDICT_STATUS_PENDING, verdict
                self.pushed.append(batch_id)
                await asyncio.sleep(max(0.0, PUSHERS / PUSHES_PER_S - (time.monotonic() - began)))

    async def _follow(self, number: int) -> None:
        """One stream after the other, each from where the one before ended."""
        cursor, seen = 0, self.streams[number]
        async with grpc.aio.insecure_channel(self.addresses["snapshot"]) as channel:
            stub = change_pb2_grpc.ChangeServiceStub(channel)
            while not (self._until and cursor >= self._until):
                request = change_pb2.SubscribeRequest(db_name=DATABASE, after=cursor)
                stream = stub.Subscribe(request, timeout=600, metadata=bearer(self.key))
                try:
                    async for response in stream:
                        for group in response.page.groups:
                            assert not group.incomplete, "no group of this test is so large"
                            seen += [batch.id for batch in group.batches]
                            cursor = group.position
                        if self._until and cursor >= self._until:
                            break
                except grpc.RpcError as error:
                    info = error_info(error)
                    self.moved[error.code().name, info.reason if info is not None else ""] += 1
                    await asyncio.sleep(0.05)

    async def _push_all(self) -> None:
        await asyncio.gather(*[self._push(number) for number in range(PUSHERS)])

    async def _follow_all(self) -> None:
        await asyncio.gather(*[self._follow(number) for number in range(STREAMS)])

    def _write(self, device: SyncedDb, name: str) -> None:
        number = 0
        while not self._stop.wait(DEVICE_PAUSE_S):
            number += 1
            device.table("item").insert({"id": f"{name}-{number}", "body": "made on a device"})
            self.made.append(f"{name}-{number}")

    @contextmanager
    def running(self, head: Callable[[], int]) -> Iterator[None]:
        """Carry on while the block lasts; after it all that was made has its verdict, and every stream and device has
        read up to ``head()``, the position of the last group."""
        for name in NAMES:
            remote = remote_of(self.addresses, self.key)
            self.devices.append(SyncedDb(self.folder / f"{name}.db", remote, DATABASE, name))
        with ThreadPoolExecutor(2 + len(NAMES)) as threads:
            try:
                for device in self.devices:
                    device.start()
                follows = threads.submit(asyncio.run, self._follow_all())
                works = [threads.submit(asyncio.run, self._push_all())]
                works += [threads.submit(self._write, *one) for one in zip(self.devices, NAMES, strict=True)]
                yield
                self._stop.set()
                for work in works:
                    work.result(PATIENCE_S)
                self._wait(lambda device: device.status().unsent == 0)
                self._until = head()
                follows.result(PATIENCE_S)
                self._wait(lambda device: device.status().cursor >= self._until and device.status().queued == 0)
            finally:
                self._stop.set()
                self._until = self._until or 1  # so that the followers end, too

    def _wait(self, has_come: Callable[[SyncedDb], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        for device in self.devices:
            while not has_come(device):
                assert time.monotonic() < deadline, device.status()
                time.sleep(0.05)

    def close(self) -> None:
        """Close the devices."""
        for device in self.devices:
            device.close()


def _insert(node: batch_pb2.Node, body: str) -> tuple[batch_pb2.Envelope, str]:
    batch_id = str(ULID())
    values = [value_pb2.Value(string_value=batch_id), value_pb2.Value(string_value=body)]
    batch = batch_pb2.DbMutationBatch(id=batch_id, db_name=DATABASE, node=node)
    batch.mutations.add(
        table="item",
        type=batch_pb2.MUTATION_TYPE_INSERT,
        columns=["id", "body"],
        rows=[value_pb2.Row(values=values)],
    )
    return batch_pb2.Envelope(payload=batch.SerializeToString()), batch_id
