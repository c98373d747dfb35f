"""A healthy device beside the attack: how long its batch, its Describe and its small Pull take."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import median

import grpc
from ulid import ULID

from anabranch.testkit.ingest_rig import Device, FailedCallError, failed
from anabranch.testkit.snapshot_reader import Reader
from anabranch.v1 import batch_pb2, ingest_pb2, ingest_pb2_grpc, value_pb2, verdict_pb2

CALL_S = 30.0
PAUSE_S = 0.1


class Neighbour:
    """One principal of its own, with a connection to each service, on the table ``small`` (id, body)."""

    def __init__(self, addresses: Mapping[str, str], key: str, db_name: str) -> None:
        self._device = Device(addresses["ingest"], key, db_name)
        self._channel = grpc.insecure_channel(addresses["ingest"])
        self._reader = Reader(addresses["snapshot"], key, db_name)
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

    def measure(self, stop: threading.Event) -> dict[str, list[float]]:
        """Call in turn until ``stop``; seconds by kind of call."""
        times: dict[str, list[float]] = defaultdict(list)
        while not stop.wait(PAUSE_S):
            for kind, call in self._calls.items():
                began = time.monotonic()
                try:
                    call()
                except (FailedCallError, grpc.RpcError) as error:
                    seen = failed(error) if isinstance(error, grpc.RpcError) else error
                    self.failures[kind] = f"{seen.code.name} {seen.reason} {seen.details}"
                    # The token of a lost answer is unknown: a new node goes on.
                    self._device = Device(self._device.address, self._device.key, self._device.db_name)
                else:
                    times[kind].append(time.monotonic() - began)
        return times

    def _batch(self) -> None:
        """On a connection that stays, as a device's does."""
        device = self._device
        request = device.request([device.payload(change=_insert)])
        stub = ingest_pb2_grpc.IngestServiceStub(self._channel)
        deadline = time.monotonic() + CALL_S
        while True:
            answer: ingest_pb2.SendResponse = stub.Send(request, timeout=CALL_S, metadata=device.credentials())
            device.token = request.node_token = answer.node_token
            [verdict] = answer.verdicts
            if verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED:
                return
            if verdict.status != verdict_pb2.VERDICT_STATUS_PENDING or time.monotonic() > deadline:
                self.failures["verdict"] = str(verdict)
                return

    def _describe(self) -> None:
        self._reader.describe()

    def _pull(self) -> None:
        for _ in self._reader.pull([("small", b"")], timeout_s=CALL_S):
            pass


def _insert(batch: batch_pb2.DbMutationBatch) -> None:
    [mutation] = batch.mutations
    mutation.table = "small"
    del mutation.columns[:], mutation.rows[:]
    mutation.columns.extend(["id", "body"])
    mutation.rows.add(values=[value_pb2.Value(string_value=str(ULID())), value_pb2.Value(string_value="x")])


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each kind, in seconds."""
    return {kind: median(found) for kind, found in times.items() if found}
