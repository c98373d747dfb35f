"""Ingest alone, as real processes, and devices that call it by hand: for tests of ingest itself.

A ``Device`` does nothing by itself: it makes payloads, and the test gives the content of each call, so that it can lose
an answer, send twice, or present a token that is not the current one.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from ulid import ULID

from anabranch import faults
from anabranch.clock import set_offset
from anabranch.errors import AnabranchError
from anabranch.runtime.errors import error_info
from anabranch.store.catalog.registration import create_database
from anabranch.store.nodes import key_administration
from anabranch.store.session.engine import connect
from anabranch.testkit.service_rig import ServiceRig
from anabranch.v1 import batch_pb2, ingest_pb2, ingest_pb2_grpc, position_pb2, value_pb2

TIMEOUT_S = 10.0


class IngestRig(ServiceRig):
    """Processes of ingest, as ``ServiceRig`` has them."""

    def __init__(self, url: str, folder: Path, *, count: int = 1, environment: Mapping[str, str] | None = None) -> None:
        super().__init__("ingest", url, folder, count=count, environment=environment)

    def new_database(self, name: str, policy: Mapping[str, object] | None = None) -> None:
        """Make a database of that name, over a schema of its own."""
        with connect(self.url, application_name="test", autocommit=True) as conn:
            conn.execute(f'create schema "app_{name}"')
            create_database(conn, name, f"app_{name}", policy)

    def new_key(self, subject: str, database: str | None = None) -> str:
        """A device's API key."""
        with connect(self.url, application_name="test", autocommit=True) as conn:
            return key_administration.create(conn, subject=subject, role="device", database=database, now_ms=1)

    def arm(self, point: str, number: int = 0) -> int:
        """Have a process die at a fault point, once. Returns its deaths so far, for ``wait_died``."""
        faults.arm(self.fault_files[number], point)
        return self.children[number].deaths

    def wait_died(self, deaths: int, number: int = 0) -> None:
        """Wait until a process has died more than ``deaths`` times."""
        self.children[number].wait_died(deaths, TIMEOUT_S)

    def signal(self, sent: signal.Signals, number: int = 0) -> None:
        """Send a signal to a process."""
        self.children[number].send(sent)

    def set_clock_offset(self, offset_ms: int) -> None:
        """Move the clocks of all processes."""
        set_offset(self.clock_file, offset_ms)


@dataclass
class FailedCallError(AnabranchError):
    """A call failed: its code, and the reason and the metadata in its one ErrorInfo."""

    code: grpc.StatusCode
    reason: str
    details: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Device:
    """A node of a database. ``token`` is the one of its last answer, ``seen`` the position that its calls present."""

    address: str
    key: str
    db_name: str
    node_id: str = field(default_factory=lambda: str(ULID()))
    token: bytes = b""
    acknowledged: int = 0
    seen: position_pb2.Position | None = None

    def payload(
        self, batch_id: str = "", *, rows: int = 1, change: Callable[[batch_pb2.DbMutationBatch], None] | None = None
    ) -> bytes:
        """The bytes of a batch that inserts ``rows`` rows; ``change`` may spoil it."""
        batch = batch_pb2.DbMutationBatch(
            id=batch_id or str(ULID()),
            db_name=self.db_name,
            node=batch_pb2.Node(id=self.node_id, name="test"),
            schema_version=1,
        )
        mutation = batch.mutations.add(table="todo", type=batch_pb2.MUTATION_TYPE_INSERT, columns=["id", "title"])
        for _ in range(rows):
            values = [value_pb2.Value(string_value=str(ULID())), value_pb2.Value(string_value="buy milk")]
            mutation.rows.add(values=values)
        if change is not None:
            change(batch)
        return batch.SerializeToString()

    def request(
        self,
        envelopes: Sequence[batch_pb2.Envelope | bytes],
        *,
        token: bytes | None = None,
        unanswered: Sequence[str] = (),
    ) -> ingest_pb2.SendRequest:
        """A request; ``token`` None: the device's own."""
        return ingest_pb2.SendRequest(
            db_name=self.db_name,
            node_state=position_pb2.NodeState(
                node=batch_pb2.Node(id=self.node_id, name="test"),
                acknowledged=self.acknowledged,
                greatest_seen=self.seen,
            ),
            node_token=self.token if token is None else token,
            unanswered_batch_ids=unanswered,
            envelopes=[envelope(one) for one in envelopes],
        )

    def send(
        self,
        *envelopes: batch_pb2.Envelope | bytes,
        token: bytes | None = None,
        unanswered: Sequence[str] = (),
        timeout_s: float = TIMEOUT_S,
        keep_token: bool = False,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> ingest_pb2.SendResponse:
        """Send, and take the new token unless ``keep_token``.

        Raises:
            FailedCallError: the call failed.
        """
        request = self.request(envelopes, token=token, unanswered=unanswered)
        try:
            with grpc.insecure_channel(self.address) as channel:
                response: ingest_pb2.SendResponse = ingest_pb2_grpc.IngestServiceStub(channel).Send(
                    request, timeout=timeout_s, metadata=(*self.credentials(), *metadata)
                )
        except grpc.RpcError as error:
            raise failed(error) from error
        if not keep_token:
            self.token = response.node_token
        return response

    def stream(
        self,
        channel: grpc.Channel,
        requests: Iterator[ingest_pb2.SendStreamRequest],
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        """Open a stream: a grpc.Call to iterate over. It raises grpc.RpcError (see ``failed``)."""
        stub = ingest_pb2_grpc.IngestServiceStub(channel)
        return stub.SendStream(requests, timeout=timeout_s, metadata=self.credentials())

    def stream_request(
        self, *envelopes: batch_pb2.Envelope | bytes, first: bool = False
    ) -> ingest_pb2.SendStreamRequest:
        """A request of a stream; the ``first`` one names the call."""
        if not first:
            return ingest_pb2.SendStreamRequest(envelopes=[envelope(one) for one in envelopes])
        return ingest_pb2.SendStreamRequest.FromString(self.request(envelopes).SerializeToString())

    def credentials(self) -> tuple[tuple[str, str], ...]:
        """The metadata of its calls."""
        return (("authorization", f"Bearer {self.key}"),)


def envelope(content: batch_pb2.Envelope | bytes) -> batch_pb2.Envelope:
    """An envelope around a payload, with nothing beside it."""
    return batch_pb2.Envelope(payload=content) if isinstance(content, bytes) else content


def failed(error: grpc.RpcError) -> FailedCallError:
    """The code and the reason of a failed call, as an error."""
    info = error_info(error)
    code, details = error.code(), error.details()
    if info is None:
        return FailedCallError(code, "", str(details))
    return FailedCallError(code, info.reason, str(details), dict(info.metadata))


def batch_id(payload: bytes) -> str:
    """The id of a payload's batch."""
    return batch_pb2.DbMutationBatch.FromString(payload).id
