"""A session of one node with a server."""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import time
from collections.abc import Sequence
from typing import Any

import grpc
import pyarrow as pa
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from anabranch.v1 import (
    batch_pb2,
    change_pb2,
    change_pb2_grpc,
    errors_pb2,
    ingest_pb2,
    ingest_pb2_grpc,
    position_pb2,
    snapshot_pb2,
    snapshot_pb2_grpc,
    value_pb2,
    verdict_pb2,
)

CALL_S = 20.0
STREAM_S = 40.0
LETTERS = 20_000
PAGE_BYTES = 4096
MOST_PAGES = 1000
NOWHERE = 1 << 60
"""A position that no server ever gave."""
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Client:
    """A node with its database, its token and what it has seen."""

    def __init__(self) -> None:
        ingest = grpc.insecure_channel(os.environ["ANABRANCH_INGEST"])
        snapshot = grpc.insecure_channel(os.environ["ANABRANCH_SNAPSHOT"])
        self.ingest = ingest_pb2_grpc.IngestServiceStub(ingest)
        self.changes = change_pb2_grpc.ChangeServiceStub(snapshot)
        self.snapshot = snapshot_pb2_grpc.SnapshotServiceStub(snapshot)
        self.database = os.environ["ANABRANCH_DATABASE"]
        self.authorization = (("authorization", f"Bearer {os.environ['ANABRANCH_KEY']}"),)
        self._last = 0
        node = batch_pb2.Node(id=self.new_id(), name="stub-python")
        self.state = position_pb2.NodeState(node=node)
        self.token = b""
        self.schema = 0

    def new_id(self) -> str:
        """A ULID that is greater than the last one: 48 bits of milliseconds and 80 of chance."""
        number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
        self._last = max(number, self._last + 1)
        return "".join(CROCKFORD[self._last >> shift & 31] for shift in range(125, -1, -5))

    def send(self, *mutations: batch_pb2.DbMutation) -> Sequence[verdict_pb2.Verdict]:
        """A batch of each mutation, all in one call; the verdicts in that order."""
        envelopes: list[batch_pb2.Envelope] = []
        ids = [self.new_id() for _ in mutations]
        for i, mutation in enumerate(mutations):
            batch = batch_pb2.DbMutationBatch(
                id=ids[i],
                db_name=self.database,
                mutations=[mutation],
                node=self.state.node,
                schema_version=self.schema,
            )
            prev = ids[i - 1] if i else ""
            payload = batch.SerializeToString()
            envelopes.append(batch_pb2.Envelope(payload=payload, basis=self.state.acknowledged, prev=prev))
        request = ingest_pb2.SendRequest(
            db_name=self.database, node_state=self.state, node_token=self.token, envelopes=envelopes
        )
        response = self.ingest.Send(request, timeout=CALL_S, metadata=self.authorization)
        self.token = response.node_token
        self.state.greatest_seen.CopyFrom(response.state.settled)
        if [verdict.batch_id for verdict in response.verdicts] != ids:
            raise ValueError("not one verdict a batch, in their order")
        return response.verdicts


def session(vectors: list[dict[str, Any]]) -> dict[str, Any]:
    """Every step, and what came of it."""
    limits = next(bytes.fromhex(v["bytes"]) for v in vectors if v["name"] == "rows at their limits")
    client = Client()
    return {
        **describe(client),
        **write(client, batch_pb2.DbMutation.FromString(limits)),
        **provoke(client),
        **page(client),
        **follow(client),
        **pull(client),
    }


def refusal(call: Any, request: Any, **options: Any) -> dict[str, str]:
    """The reason in the one ErrorInfo of a failed call."""
    try:
        call(request, timeout=CALL_S, **options)
    except grpc.RpcError as error:
        trailers = {item.key: item.value for item in error.trailing_metadata()}
        info = error_details_pb2.ErrorInfo()
        (detail,) = (
            detail
            for detail in status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details
            if detail.Is(info.DESCRIPTOR)
        )
        detail.Unpack(info)
        return {"code": error.code().name, "domain": info.domain, "reason": info.reason}
    raise ValueError("a call that had to fail did not")


def describe(client: Client) -> dict[str, Any]:
    """The tables, first without credentials."""
    request = snapshot_pb2.DescribeRequest(db_name=client.database, node_state=client.state)
    unauthenticated = refusal(client.snapshot.Describe, request)
    described = client.snapshot.Describe(request, timeout=CALL_S, metadata=client.authorization)
    client.schema = described.state.schema_version
    tables = {
        table.name: {column.name: value_pb2.ColumnKind.Name(column.kind) for column in table.columns}
        for table in described.tables
    }
    return {"unauthenticated": unauthenticated, "tables": tables}


def text(content: str) -> value_pb2.Value:
    """A text."""
    return value_pb2.Value(string_value=content)


def insert(columns: list[str], *values: value_pb2.Value) -> batch_pb2.DbMutation:
    """An insert of one row."""
    return batch_pb2.DbMutation(
        table="kinds", type=batch_pb2.MUTATION_TYPE_INSERT, columns=columns, rows=[value_pb2.Row(values=values)]
    )


def update(row_id: str, content: str) -> batch_pb2.DbMutation:
    """An update of one row's text."""
    return batch_pb2.DbMutation(
        table="kinds",
        type=batch_pb2.MUTATION_TYPE_UPDATE,
        columns=["id", "t"],
        rows=[value_pb2.Row(values=[text(row_id), text(content)])],
    )


def write(client: Client, limits: batch_pb2.DbMutation) -> dict[str, Any]:
    """A token, six batches in one call, and one more."""
    client.send()
    long = [insert(["id", "t"], text(f"long {i}"), text("x" * LETTERS)) for i in range(1, 6)]
    verdicts = [*client.send(limits, *long), *client.send(update("row 0", "updated \U0001f600"))]
    return {
        "sent": [
            {
                "id": verdict.batch_id,
                "status": verdict_pb2.VerdictStatus.Name(verdict.status).removeprefix("VERDICT_STATUS_"),
                "position": verdict.position,
            }
            for verdict in verdicts
        ]
    }


def provoke(client: Client) -> dict[str, Any]:
    """Two rejections and a refused call."""
    rejected = []
    for verdict in client.send(
        insert(["id", "qty"], text("bad"), value_pb2.Value(int64_value=-1)), insert(["id"], text("row 0"))
    ):
        if verdict.status != verdict_pb2.VERDICT_STATUS_REJECTED:
            raise ValueError(f"not rejected: {verdict}")
        (mutation,) = verdict.mutations
        server_row = dict(zip(mutation.server_row.columns, mutation.server_row.values, strict=True))
        rejected.append(
            {
                "id": verdict.batch_id,
                "reason": errors_pb2.Reason.Name(verdict.reason).removeprefix("REASON_"),
                "table": mutation.table,
                "key": " ".join(value.string_value for value in mutation.key),
                "constraint": verdict.constraint,
                "sqlstate": verdict.sqlstate,
                "server_t": server_row["t"].string_value if "t" in server_row else "",
            }
        )
    request = change_pb2.GetRequest(db_name=client.database, node_state=client.state, after=NOWHERE)
    return {"rejected": rejected, "refused": refusal(client.changes.Get, request, metadata=client.authorization)}


def page(client: Client) -> dict[str, Any]:
    """The log to its head. A group may be split over pages, a batch over parts of a group, an effect over parts of a
    batch."""
    digest, token, begun = hashlib.sha256(), b"", b""
    log: list[tuple[int, str]] = []
    effects: list[int] = []
    for pages in range(1, MOST_PAGES):
        request = change_pb2.GetRequest(
            db_name=client.database, node_state=client.state, page_token=token, max_bytes=PAGE_BYTES
        )
        response = client.changes.Get(request, timeout=CALL_S, metadata=client.authorization)
        for group in response.page.groups:
            for batch in group.batches:
                if not log or log[-1][1] != batch.id:
                    log.append((group.position, batch.id))
                    effects.append(0)
                for i, effect in enumerate(batch.effects, 1):
                    begun += effect
                    if batch.effect_incomplete and i == len(batch.effects):
                        break
                    digest.update(struct.pack(">I", len(begun)) + begun)
                    begun = b""
                    effects[-1] += 1
        if response.page.HasField("reached"):
            client.state.acknowledged = response.page.reached.server_timestamp_ms
            client.state.greatest_seen.CopyFrom(response.page.reached)
        token = response.next_page_token
        if not token:
            logged = [(*place, count) for place, count in zip(log, effects, strict=True)]
            return {"pages": pages, "log": logged, "effects": digest.hexdigest()}
    raise ValueError(f"no end after {MOST_PAGES} pages")


def follow(client: Client) -> dict[str, Any]:
    """A batch as it comes back over a subscription."""
    request = change_pb2.SubscribeRequest(
        db_name=client.database, node_state=client.state, after=client.state.acknowledged
    )
    stream = client.changes.Subscribe(request, timeout=STREAM_S, metadata=client.authorization)
    try:
        next(stream)
        (verdict,) = client.send(update("row 1", "followed"))
        for response in stream:
            for group in response.page.groups:
                if any(batch.id == verdict.batch_id for batch in group.batches):
                    return {"followed": {"id": verdict.batch_id, "status": "APPLIED", "position": group.position}}
        raise ValueError("the subscription ended before the batch came")
    finally:
        stream.cancel()


def pull(client: Client) -> dict[str, Any]:
    """The table, by Arrow."""
    request = snapshot_pb2.PullRequest(
        db_name=client.database, node_state=client.state, required=[snapshot_pb2.RequiredTable(table="kinds")]
    )
    as_of, columns, rows, chunk = 0, list[str](), list[list[str | None]](), b""
    for response in client.snapshot.Pull(request, timeout=STREAM_S, metadata=client.authorization):
        as_of = response.as_of.server_timestamp_ms
        chunk += response.arrow_ipc
        if response.arrow_ipc_incomplete or not chunk:
            continue
        table = pa.ipc.open_stream(chunk).read_all()
        chunk = b""
        columns = table.column_names
        rows += [list(row) for row in zip(*(texts(column) for column in table.columns), strict=True)]
    return {"as_of": as_of, "columns": columns, "rows": rows}


def texts(column: Any) -> list[str | None]:
    """The texts of a column."""
    kind = column.type
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return [None if cell is None else text_of(cell) for cell in column.to_pylist()]


def text_of(cell: Any) -> str:
    """The text of a cell."""
    match cell:
        case bool():
            return "true" if cell else "false"
        case float():
            return struct.pack(">d", cell).hex()
        case bytes():
            return cell.hex()
    return str(cell)
