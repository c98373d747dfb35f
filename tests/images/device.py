"""One device's first minute, by the contract's own calls: a batch, a page, a pull; and the operator's sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
import pyarrow as pa
from ulid import ULID

from anabranch.v1 import (
    batch_pb2,
    change_pb2,
    change_pb2_grpc,
    ingest_pb2,
    ingest_pb2_grpc,
    position_pb2,
    retention_pb2,
    retention_pb2_grpc,
    snapshot_pb2,
    snapshot_pb2_grpc,
    value_pb2,
    verdict_pb2,
)

CALL_S = 60.0


@dataclass
class Device:
    """A node of ``database`` with a key; ``addresses`` by the services' names."""

    addresses: dict[str, str]
    database: str
    key: str
    state: position_pb2.NodeState = field(
        default_factory=lambda: position_pb2.NodeState(node=batch_pb2.Node(id=str(ULID()), name="tablet-1"))
    )

    @contextmanager
    def channel(self, service: str) -> Iterator[grpc.Channel]:
        with grpc.insecure_channel(self.addresses[service]) as channel:
            yield channel

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.key}"),)

    def insert(self, table: str, row: dict[str, str]) -> verdict_pb2.Verdict:
        """A batch of one insert; its verdict."""
        with self.channel("snapshot") as channel:
            described = snapshot_pb2_grpc.SnapshotServiceStub(channel).Describe(
                snapshot_pb2.DescribeRequest(db_name=self.database, node_state=self.state),
                timeout=CALL_S,
                metadata=self.metadata,
            )
        values = [value_pb2.Value(string_value=value) for value in row.values()]
        mutation = batch_pb2.DbMutation(
            table=table, type=batch_pb2.MUTATION_TYPE_INSERT, columns=list(row), rows=[value_pb2.Row(values=values)]
        )
        batch = batch_pb2.DbMutationBatch(
            id=str(ULID()),
            db_name=self.database,
            mutations=[mutation],
            node=self.state.node,
            schema_version=described.state.schema_version,
        )
        envelope = batch_pb2.Envelope(payload=batch.SerializeToString(), basis=0)
        with self.channel("ingest") as channel:
            send = ingest_pb2_grpc.IngestServiceStub(channel).Send
            token = b""
            # The first call of a node only gets it a token.
            for envelopes in ([], [envelope]):
                request = ingest_pb2.SendRequest(
                    db_name=self.database, node_state=self.state, node_token=token, envelopes=envelopes
                )
                answer = send(request, timeout=CALL_S, metadata=self.metadata)
                token = answer.node_token
        (verdict,) = answer.verdicts
        assert verdict.batch_id == batch.id
        self.state.greatest_seen.CopyFrom(answer.state.settled)
        return verdict

    def page(self) -> change_pb2.Page:
        """The log's first page."""
        with self.channel("snapshot") as channel:
            answer = change_pb2_grpc.ChangeServiceStub(channel).Get(
                change_pb2.GetRequest(db_name=self.database, node_state=self.state),
                timeout=CALL_S,
                metadata=self.metadata,
            )
        return answer.page

    def pull(self, table: str) -> list[dict[str, object]]:
        """The rows of a table whose rows fit into whole messages."""
        rows: list[dict[str, object]] = []
        with self.channel("snapshot") as channel:
            for answer in snapshot_pb2_grpc.SnapshotServiceStub(channel).Pull(
                snapshot_pb2.PullRequest(
                    db_name=self.database,
                    node_state=self.state,
                    required=[snapshot_pb2.RequiredTable(table=table)],
                ),
                timeout=CALL_S,
                metadata=self.metadata,
            ):
                assert not answer.arrow_ipc_incomplete
                if answer.arrow_ipc:
                    rows += pa.ipc.open_stream(answer.arrow_ipc).read_all().to_pylist()
        return rows

    def sweep(self) -> retention_pb2.RunSweepResponse:
        """One sweep of the janitor; needs an admin's key."""
        with self.channel("retention-janitor") as channel:
            return retention_pb2_grpc.RetentionJanitorServiceStub(channel).RunSweep(
                retention_pb2.RunSweepRequest(db_name=self.database), timeout=CALL_S, metadata=self.metadata
            )
