"""A healthy device beside the attack: how long its batch, its Describe and its small Pull take."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import median

import grpc
from ulid import ULID

from anabranch.runtime.errors import error_info
from anabranch.testkit.echo import bearer
from anabranch.v1 import (
    batch_pb2,
    ingest_pb2,
    ingest_pb2_grpc,
    position_pb2,
    snapshot_pb2,
    snapshot_pb2_grpc,
    value_pb2,
    verdict_pb2,
)

CALL_S = 30.0
PAUSE_S = 0.1


class Neighbour:
    """One principal of its own, with a connection to each service. ``times``: seconds of each call, by kind."""

    def __init__(self, addresses: Mapping[str, str], key: str, db_name: str, table: str) -> None:
        self._metadata = bearer(key)
        self._db_name, self._table = db_name, table
        self._node = batch_pb2.Node(id=str(ULID()), name="neighbour")
        self._token = b""
        self._ingest = grpc.insecure_channel(addresses["ingest"])
        self._snapshot = grpc.insecure_channel(addresses["snapshot"])
        self.failures: dict[str, str] = {}
        self._calls: Mapping[str, Callable[[], None]] = {
            "batch": self._batch,
            "describe": self._describe,
            "pull": self._pull,
        }

    def close(self) -> None:
        """Close its connections."""
        self._ingest.close()
        self._snapshot.close()

    def measure(self, stop: threading.Event) -> dict[str, list[float]]:
        """Call in turn until ``stop``; seconds by kind of call. Failures are kept by kind in ``failures``."""
        times: dict[str, list[float]] = defaultdict(list)
        while not stop.wait(PAUSE_S):
            for kind, call in self._calls.items():
                began = time.monotonic()
                try:
                    call()
                except grpc.RpcError as error:
                    info = error_info(error)
                    self.failures[kind] = f"{error.code().name} {info.reason if info else ''} {error.details()}"
                    # The token of a lost answer is unknown: a new node goes on.
                    self._node, self._token = batch_pb2.Node(id=str(ULID()), name="neighbour"), b""
                else:
                    times[kind].append(time.monotonic() - began)
        return times

    @property
    def _state(self) -> position_pb2.NodeState:
        return position_pb2.NodeState(node=self._node)

    def _batch(self) -> None:
        batch = batch_pb2.DbMutationBatch(id=str(ULID()), db_name=self._db_name, node=self._node, schema_version=1)
        mutation = batch.mutations.add(table=self._table, type=batch_pb2.MUTATION_TYPE_INSERT, columns=["id", "body"])
        mutation.rows.add(values=[value_pb2.Value(string_value=str(ULID())), value_pb2.Value(string_value="x")])
        request = ingest_pb2.SendRequest(
            db_name=self._db_name,
            node_state=self._state,
            node_token=self._token,
            envelopes=[batch_pb2.Envelope(payload=batch.SerializeToString())],
        )
        stub = ingest_pb2_grpc.IngestServiceStub(self._ingest)
        deadline = time.monotonic() + CALL_S
        while True:
            answer: ingest_pb2.SendResponse = stub.Send(request, timeout=CALL_S, metadata=self._metadata)
            self._token = request.node_token = answer.node_token
            [verdict] = answer.verdicts
            if verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED:
                return
            pending = verdict.status == verdict_pb2.VERDICT_STATUS_PENDING and time.monotonic() < deadline
            if not pending:
                self.failures["verdict"] = str(verdict)
                return

    def _describe(self) -> None:
        request = snapshot_pb2.DescribeRequest(db_name=self._db_name, node_state=self._state)
        snapshot_pb2_grpc.SnapshotServiceStub(self._snapshot).Describe(request, timeout=CALL_S, metadata=self._metadata)

    def _pull(self) -> None:
        request = snapshot_pb2.PullRequest(
            db_name=self._db_name,
            node_state=self._state,
            required=[snapshot_pb2.RequiredTable(table="small")],
        )
        stub = snapshot_pb2_grpc.SnapshotServiceStub(self._snapshot)
        for _ in stub.Pull(request, timeout=CALL_S, metadata=self._metadata):
            pass


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each kind, in seconds."""
    return {kind: median(found) for kind, found in times.items() if found}
