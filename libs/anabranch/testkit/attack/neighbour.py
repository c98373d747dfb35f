"""A healthy device beside the attack: how long its batch, its Describe and its small Pull take."""

from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from statistics import median

import grpc
from ulid import ULID

from anabranch.testkit.attack.phases import ATTACKED, Phases
from anabranch.testkit.ingest_rig import Device, FailedCallError, failed
from anabranch.testkit.snapshot_reader import Reader
from anabranch.v1 import batch_pb2, ingest_pb2, ingest_pb2_grpc, value_pb2, verdict_pb2

CALL_S = 30.0
PAUSE_S = 0.1
KEPT_ROWS = 20
"""Rows that a neighbour has: a table that grew would make its pulls slower, whoever attacks."""
KEPT_TIMES = 1_000


class Times:
    """The seconds that calls of one kind took: all of them, or as many drawn from all alike."""

    def __init__(self) -> None:
        self._kept: list[float] = []
        self._count = 0
        self._chance = random.Random(0)

    def add(self, seconds: float) -> None:
        """One more."""
        self._count += 1
        if len(self._kept) < KEPT_TIMES:
            self._kept.append(seconds)
        elif (at := self._chance.randrange(self._count)) < KEPT_TIMES:
            self._kept[at] = seconds

    def median(self) -> float | None:
        """The median; None where there was no call."""
        return median(self._kept) if self._kept else None


class Neighbour:
    """One principal of its own, with a connection to each service, on the table ``small`` (id, body)."""

    def __init__(self, addresses: Mapping[str, str], key: str, db_name: str) -> None:
        self._device = Device(addresses["ingest"], key, db_name)
        self._channel = grpc.insecure_channel(addresses["ingest"])
        self._reader = Reader(addresses["snapshot"], key, db_name)
        self._rows: deque[str] = deque()
        self.failures: dict[str, str] = {}
        """The last failure of each kind of call."""
        self._calls: Mapping[str, Callable[[], None]] = {
            "batch": self._batch,
            "describe": self._describe,
            "pull": self._pull,
        }

    def close(self) -> None:
        """Close its connections."""
        self._channel.close()
        self._reader.close()

    def measure(self, phases: Phases) -> dict[tuple[str, str], Times]:
        """Call in turn until the attack is over; times by phase and kind of call."""
        times: dict[tuple[str, str], Times] = defaultdict(Times)
        while not phases.wait(PAUSE_S):
            for kind, call in self._calls.items():
                phase, began = phases.now, time.monotonic()
                try:
                    call()
                except (FailedCallError, grpc.RpcError) as error:
                    seen = failed(error) if isinstance(error, grpc.RpcError) else error
                    took = f"{phase}, after {time.monotonic() - began:.1f} s"
                    self.failures[kind] = f"{took}: {seen.code.name} {seen.reason} {seen.details}"
                    # The token of a lost answer is unknown: a new node goes on.
                    self._device = Device(self._device.address, self._device.key, self._device.db_name)
                else:
                    # A call that an attack has met counts for it, however long it takes.
                    met = ATTACKED if ATTACKED in (phase, phases.now) else phase
                    times[met, kind].add(time.monotonic() - began)
        return times

    def _batch(self) -> None:
        """On a connection that stays, as a device's does."""
        device, row = self._device, str(ULID())
        old = self._rows[0] if len(self._rows) >= KEPT_ROWS else None
        request = device.request([device.payload(change=lambda batch: _fill(batch, row, old))])
        stub = ingest_pb2_grpc.IngestServiceStub(self._channel)
        deadline = time.monotonic() + CALL_S
        while True:
            answer: ingest_pb2.SendResponse = stub.Send(request, timeout=CALL_S, metadata=device.credentials())
            device.token = request.node_token = answer.node_token
            [verdict] = answer.verdicts
            if verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED:
                self._rows.append(row)
                if old is not None:
                    self._rows.popleft()
                return
            if verdict.status != verdict_pb2.VERDICT_STATUS_PENDING or time.monotonic() > deadline:
                self.failures["verdict"] = str(verdict)
                return

    def _describe(self) -> None:
        self._reader.describe()

    def _pull(self) -> None:
        for _ in self._reader.pull([("small", b"")], timeout_s=CALL_S):
            pass


def _fill(batch: batch_pb2.DbMutationBatch, row: str, old: str | None) -> None:
    """Insert a row, and delete an old one."""
    del batch.mutations[:]
    insert = batch.mutations.add(table="small", type=batch_pb2.MUTATION_TYPE_INSERT, columns=["id", "body"])
    insert.rows.add(values=[value_pb2.Value(string_value=row), value_pb2.Value(string_value="x")])
    if old is not None:
        delete = batch.mutations.add(table="small", type=batch_pb2.MUTATION_TYPE_DELETE, columns=["id"])
        delete.rows.add(values=[value_pb2.Value(string_value=old)])


def medians(times: Mapping[tuple[str, str], Times], phase: str) -> dict[str, float]:
    """The median of each kind of call in a phase, in seconds."""
    return {
        kind: middle
        for (when, kind), found in times.items()
        if when == phase and (middle := found.median()) is not None
    }
