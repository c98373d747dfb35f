"""A reader that calls snapshot by hand: for tests of the read side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from ulid import ULID

from anabranch.testkit.ingest_rig import failed
from anabranch.v1 import (
    batch_pb2,
    change_pb2,
    change_pb2_grpc,
    position_pb2,
    snapshot_pb2,
    snapshot_pb2_grpc,
)

TIMEOUT_S = 30.0
_WINDOW_BYTES = 65_535
_OPTIONS = (
    # gRPC widens a stream's window by the connection's capacity, which it estimates from the answers to its pings: on a
    # busy machine a client that reads nothing is sent megabytes, and a call that is meant to stall completes.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
)


@dataclass
class Reader:
    """A node that only reads. Data that its caller does not read stays with the server, but for a window and the chunks
    that are under way; otherwise its channel is like any other."""

    address: str
    key: str
    db_name: str
    node: batch_pb2.Node = field(default_factory=lambda: batch_pb2.Node(id=str(ULID()), name="reader"))
    seen: position_pb2.Position | None = None
    acknowledged: int = 0
    held: position_pb2.HeldAudiences | None = None
    app_version: int = 0
    channel: grpc.Channel = field(init=False)

    def __post_init__(self) -> None:
        self.channel = grpc.insecure_channel(self.address, options=_OPTIONS)

    def close(self) -> None:
        """End its channel, and the calls on it."""
        self.channel.close()

    @property
    def credentials(self) -> tuple[tuple[str, str], ...]:
        """The metadata of its calls."""
        return (("authorization", f"Bearer {self.key}"),)

    @property
    def _state(self) -> position_pb2.NodeState:
        return position_pb2.NodeState(
            node=self.node,
            greatest_seen=self.seen,
            acknowledged=self.acknowledged,
            held=self.held,
            app_version=self.app_version,
        )

    def get(self, after: int = 0, token: bytes = b"", max_bytes: int = 0) -> change_pb2.GetResponse:
        """``Get``. Raises FailedCallError."""
        request = change_pb2.GetRequest(
            db_name=self.db_name, node_state=self._state, after=after, page_token=token, max_bytes=max_bytes
        )
        try:
            answer: change_pb2.GetResponse = change_pb2_grpc.ChangeServiceStub(self.channel).Get(
                request, timeout=TIMEOUT_S, metadata=self.credentials
            )
        except grpc.RpcError as error:
            raise failed(error) from error
        return answer

    def find_common(self, seen: Sequence[position_pb2.Position]) -> change_pb2.FindCommonResponse:
        """``FindCommon``. Raises FailedCallError."""
        request = change_pb2.FindCommonRequest(db_name=self.db_name, node_state=self._state, seen=seen)
        try:
            answer: change_pb2.FindCommonResponse = change_pb2_grpc.ChangeServiceStub(self.channel).FindCommon(
                request, timeout=TIMEOUT_S, metadata=self.credentials
            )
        except grpc.RpcError as error:
            raise failed(error) from error
        return answer

    def pages(self, after: int = 0, max_bytes: int = 0) -> Iterator[change_pb2.Page]:
        """All pages up to the head. Raises FailedCallError."""
        token = b""
        while True:
            answer = self.get(after, token, max_bytes)
            yield answer.page
            token = answer.next_page_token
            if not token:
                return

    def compare(self, table: str, requests: Iterator[snapshot_pb2.CompareRequest]) -> Any:
        """The call of ``Compare``; ``requests`` are those after the first one."""
        first = snapshot_pb2.CompareRequest(db_name=self.db_name, node_state=self._state, table=table)
        stub = snapshot_pb2_grpc.SnapshotServiceStub(self.channel)
        return stub.Compare(itertools.chain([first], requests), timeout=TIMEOUT_S, metadata=self.credentials)

    def subscribe(self, after: int = 0) -> Any:
        """An open stream of SubscribeResponse: a grpc.Call. It raises grpc.RpcError; see ``failed``."""
        request = change_pb2.SubscribeRequest(db_name=self.db_name, node_state=self._state, after=after)
        return change_pb2_grpc.ChangeServiceStub(self.channel).Subscribe(request, metadata=self.credentials)

    def describe(self, app_version: int = 0) -> snapshot_pb2.DescribeResponse:
        """``Describe``. Raises FailedCallError."""
        request = snapshot_pb2.DescribeRequest(db_name=self.db_name, node_state=self._state, app_version=app_version)
        try:
            answer: snapshot_pb2.DescribeResponse = snapshot_pb2_grpc.SnapshotServiceStub(self.channel).Describe(
                request, timeout=TIMEOUT_S, metadata=self.credentials
            )
        except grpc.RpcError as error:
            raise failed(error) from error
        return answer

    def pull(
        self,
        required: Sequence[tuple[str, bytes]] = (),
        timeout_s: float | None = TIMEOUT_S,
        audiences: Sequence[str] = (),
    ) -> Any:
        """An open stream of PullResponse: a grpc.Call. Of each table in ``required`` only rows of ``audiences``, where
        these are given. It raises grpc.RpcError; see ``failed``."""
        request = snapshot_pb2.PullRequest(
            db_name=self.db_name,
            node_state=self._state,
            required=[
                snapshot_pb2.RequiredTable(table=table, resume=resume, audiences=audiences)
                for table, resume in required
            ],
        )
        stub = snapshot_pb2_grpc.SnapshotServiceStub(self.channel)
        return stub.Pull(request, timeout=timeout_s, metadata=self.credentials)


def whole_groups(pages: Iterator[change_pb2.Page] | Sequence[change_pb2.Page]) -> list[change_pb2.LoggedGroup]:
    """The groups of ``pages``, their parts put together as the contract says."""
    groups: list[change_pb2.LoggedGroup] = []
    for page in pages:
        for part in page.groups:
            if not groups or not groups[-1].incomplete:
                groups.append(change_pb2.LoggedGroup(position=part.position, schema_change=part.schema_change))
            group = groups[-1]
            assert group.position == part.position, "a group goes on in another one"
            assert group.schema_change == part.schema_change, "a part of a group lacks its schema change"
            for batch in part.batches:
                _add_batch(group, batch)
            if part.HasField("audience_change"):
                group.audience_change.CopyFrom(part.audience_change)
            group.sums.extend(part.sums)
            group.incomplete = part.incomplete
    return groups


def _add_batch(group: change_pb2.LoggedGroup, part: change_pb2.LoggedBatch) -> None:
    last = group.batches[-1] if group.batches else None
    if last is None or last.id != part.id:
        group.batches.append(part)
        return
    effects, audiences = list(part.effects), list(part.audiences)
    if (last.audiences or not last.effects) != bool(audiences or not effects):
        # One part has effects of restricted tables, the other has none.
        last.audiences.extend(change_pb2.Audiences() for _ in range(len(last.effects) - len(last.audiences)))
        audiences.extend(change_pb2.Audiences() for _ in range(len(effects) - len(audiences)))
    if last.effect_incomplete and effects:
        last.effects[-1] += effects.pop(0)
        del audiences[:1]
    last.effects.extend(effects)
    last.audiences.extend(audiences)
    last.losers.extend(part.losers)
    last.effect_incomplete = part.effect_incomplete
