"""A whole stack on a real Postgres: a batch goes through it, and its processes can be hurt and brought back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest
from tests.notes import notes_url
from ulid import ULID

from anabranch.runtime.fleet import SERVICES, FleetError
from anabranch.runtime.health import probe
from anabranch.store.catalog.status import read_status
from anabranch.store.session.engine import connect
from anabranch.testkit.databases import TestDatabases
from anabranch.testkit.echo import bearer
from anabranch.testkit.stack import Stack
from anabranch.v1 import batch_pb2, ingest_pb2, ingest_pb2_grpc, position_pb2, value_pb2, verdict_pb2

pytestmark = pytest.mark.xdist_group("stack")  # its processes are shared by its tests

NODE = batch_pb2.Node(id=str(ULID()), name="a")


@pytest.fixture(scope="module")
def stack(databases: TestDatabases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    url = notes_url(databases)
    with Stack(url, folder=tmp_path_factory.mktemp("stack"), resolvers=2) as running:
        yield running
    databases.release(url)


class Sender:
    """One node that inserts notes, over a connection of its own."""

    def __init__(self, stack: Stack, node: batch_pb2.Node = NODE) -> None:
        self._node = node
        self._channel = grpc.insecure_channel(stack.addresses["ingest"])
        self._stub = ingest_pb2_grpc.IngestServiceStub(self._channel)
        self._metadata = bearer(stack.key, ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
        self._token = b""
        self._unanswered: list[str] = []

    def envelope(self, body: str) -> batch_pb2.Envelope:
        """A batch that inserts one note."""
        values = [value_pb2.Value(string_value=str(ULID())), value_pb2.Value(string_value=body)]
        mutation = batch_pb2.DbMutation(
            table="note",
            type=batch_pb2.MUTATION_TYPE_INSERT,
            columns=["id", "body"],
            rows=[value_pb2.Row(values=values)],
        )
        batch = batch_pb2.DbMutationBatch(id=str(ULID()), db_name="notes", mutations=[mutation], node=self._node)
        return batch_pb2.Envelope(payload=batch.SerializeToString())

    def send(self, envelope: batch_pb2.Envelope, timeout_s: float = 20) -> verdict_pb2.Verdict:
        """Send it and wait for its verdict, through failures of the connection."""
        self._unanswered.append(batch_pb2.DbMutationBatch.FromString(envelope.payload).id)
        request = ingest_pb2.SendRequest(
            db_name="notes",
            node_state=position_pb2.NodeState(node=self._node),
            node_token=self._token,
            unanswered_batch_ids=self._unanswered[:-1],
            envelopes=[envelope],
        )
        answer = self._stub.Send(request, timeout=timeout_s, metadata=self._metadata, wait_for_ready=True)
        self._token = answer.node_token
        self._unanswered.clear()
        (verdict,) = answer.verdicts
        return verdict


@pytest.fixture(scope="module")
def sender(stack: Stack) -> Sender:
    return Sender(stack)


def is_applied(verdict: verdict_pb2.Verdict) -> bool:
    return verdict.status == verdict_pb2.VERDICT_STATUS_APPLIED


@pytest.mark.slow
def test_a_batch_gets_its_verdict(stack: Stack, sender: Sender) -> None:
    assert set(stack.addresses) == {*SERVICES, "conflict-resolver-2"}
    verdict = sender.send(sender.envelope("milk"))
    assert is_applied(verdict), verdict
    with connect(stack.database_url, application_name="test", autocommit=True) as conn:
        assert conn.execute("select body from public.note").fetchall() == [("milk",)]


@pytest.mark.slow
def test_a_killed_service_stays_dead_until_it_is_restarted(stack: Stack, sender: Sender) -> None:
    pid = stack.pid("ingest")
    assert pid is not None
    stack.kill("ingest")
    assert not psutil.pid_exists(pid)
    assert stack.pid("ingest") is None
    assert probe(stack.addresses["ingest"], 1.0) == "UNREACHABLE"
    with pytest.raises(FleetError, match="ingest ended"):
        stack.wait_ready("ingest")
    stack.restart("ingest")
    assert is_applied(sender.send(sender.envelope("after a restart")))
    assert [name for name, _ in stack.killed] == ["ingest"]


@pytest.mark.slow
def test_work_of_a_stopped_or_killed_resolver_is_taken_over(stack: Stack, sender: Sender) -> None:
    stack.stop_signal("conflict-resolver")
    try:
        assert is_applied(sender.send(sender.envelope("one is stopped")))
    finally:
        stack.continue_signal("conflict-resolver")
    stack.kill("conflict-resolver")
    assert is_applied(sender.send(sender.envelope("one is dead")))
    stack.restart("conflict-resolver")
    stack.kill("conflict-resolver-2")
    assert is_applied(sender.send(sender.envelope("the other is dead")))
    stack.restart("conflict-resolver-2")


def test_an_armed_service_dies_once_and_its_work_is_found(stack: Stack, sender: Sender) -> None:
    deaths = stack.arm("ingest", "before_answer")
    envelope = sender.envelope("decided, and the answer lost")
    with pytest.raises(grpc.RpcError) as caught:
        sender.send(envelope)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    stack.wait_died("ingest", deaths)
    stack.restart("ingest")
    with connect(stack.database_url, application_name="test", autocommit=True) as conn:
        count = "select count(*) from public.note where body = 'decided, and the answer lost'"
        assert conn.execute(count).fetchone() == (1,)


@pytest.mark.slow
def test_status_tells_heads_backlog_and_nodes(stack: Stack, sender: Sender) -> None:
    sent = sender.send(sender.envelope("seen in the status"))
    missing = str(ULID())
    waiting = sender.envelope("waits for a batch that never comes")
    waiting.prev = missing
    assert sender.send(waiting, timeout_s=2).status == verdict_pb2.VERDICT_STATUS_PENDING
    with connect(stack.database_url, application_name="test", autocommit=True) as conn:
        now_ms, (database,) = read_status(conn)
        (rows,) = conn.execute("select count(*) from public.note").fetchone() or (0,)
    assert (database.name, database.schema_name, database.head) == ("notes", "public", sent.position)
    assert (database.ready, database.parked) == (0, 1)
    assert database.tables == {"note": rows}
    assert database.oldest_waiting_ms is not None
    assert 0 <= database.oldest_waiting_ms < 60_000
    (node,) = database.nodes
    assert (node.id, node.name, node.principal, database.node_count) == (NODE.id, "a", "stack", 1)
    assert abs(now_ms - node.last_seen_ms) < 60_000
    assert node.behind_ms == database.head - node.acknowledged


def test_services_log_json_and_no_credentials(stack: Stack) -> None:
    for name in stack.addresses:
        text = stack.log(name)
        assert [json.loads(line) for line in text.splitlines()]
        assert stack.key not in text
        assert "postgresql://" not in text


@pytest.mark.slow
def test_a_stack_that_can_not_start_leaves_nothing_behind(databases: TestDatabases, tmp_path: Path) -> None:
    url = notes_url(databases)
    broken = Stack(url, folder=tmp_path, environment={"ANABRANCH_LOG_LEVEL": "loud"})
    with pytest.raises(FleetError, match="ANABRANCH_LOG_LEVEL"), broken:
        pytest.fail("it started")
    assert [broken.pid(name) for name in broken.addresses] == [None] * len(broken.addresses)
    databases.release(url)
