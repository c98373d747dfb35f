"""GetVerdict and Explain over a real socket, from a real process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from anabranch.clock import Clock
from anabranch.runtime.errors import error_info
from anabranch.store import api_keys
from anabranch.testkit.resolver_rig import Made, ResolverRig, RigNode
from anabranch.v1 import batch_pb2, errors_pb2, resolver_pb2, resolver_pb2_grpc, verdict_pb2

MILK = {"id": "x", "title": "milk", "done": False}
APPLIED, REJECTED, PENDING = (
    verdict_pb2.VERDICT_STATUS_APPLIED,
    verdict_pb2.VERDICT_STATUS_REJECTED,
    verdict_pb2.VERDICT_STATUS_PENDING,
)


class Service:
    """A running resolver and keys for it."""

    def __init__(self, rig: ResolverRig, port: int) -> None:
        self.rig = rig
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.stub = resolver_pb2_grpc.ConflictResolverServiceStub(self.channel)
        self._keys: dict[str, str] = {}

    def _metadata(self, subject: str) -> tuple[tuple[str, str], ...]:
        if subject not in self._keys:
            self._keys[subject] = api_keys.create(
                self.rig.conn, subject=subject, role="device", database="app", now_ms=Clock().now_ms()
            )
        return (("authorization", f"Bearer {self._keys[subject]}"),)

    def verdicts(self, subject: str, *batch_ids: str, database: str = "app") -> resolver_pb2.GetVerdictResponse:
        request = resolver_pb2.GetVerdictRequest(db_name=database, batch_ids=batch_ids)
        return self.stub.GetVerdict(request, metadata=self._metadata(subject), timeout=10)

    def explain(self, node: RigNode, made: Made, *, prev: str = "", subject: str = "") -> resolver_pb2.ExplainResponse:
        request = resolver_pb2.ExplainRequest(
            db_name="app", envelope=batch_pb2.Envelope(payload=made.payload, basis=made.basis, prev=prev)
        )
        request.node_state.node.id = node.id
        return self.stub.Explain(request, metadata=self._metadata(subject or node.principal), timeout=10)


@pytest.fixture
def service(rig: ResolverRig, migrated_url: str, tmp_path: Path) -> Iterator[Service]:
    """A resolver process on the rig's database."""
    log = tmp_path / "resolver.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "anabranch_conflict_resolver"],
            env={**os.environ, "ANABRANCH_POSTGRES_URL": migrated_url},
            stdout=out,
            stderr=out,
        )
    made = None
    try:
        end = time.monotonic() + 30
        while made is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            lines = [json.loads(line) for line in log.read_text().splitlines() if '"port"' in line]
            if lines:
                made = Service(rig, lines[0]["port"])
            time.sleep(0.05)
        yield made
    finally:
        if made is not None:
            made.channel.close()
        process.kill()
        process.wait(10)


def decided(service: Service, subject: str, batch_id: str) -> verdict_pb2.Verdict:
    """The verdict, once there is one."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for verdict in service.verdicts(subject, batch_id).verdicts:
            if verdict.status != PENDING:
                return verdict
        time.sleep(0.02)
    raise AssertionError("no verdict in time")


def test_verdicts_are_told_to_who_sent_the_batch_and_to_nobody_else(service: Service, rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    sent = a.insert("todo", MILK)
    verdict = decided(service, "user-a", sent)
    assert (verdict.status, verdict.position) == (APPLIED, rig.head)
    waits = a.send(a.make(("update", "todo", [{"id": "x", "title": "t"}])), prev=b.new_id()[:-1] + "0")
    unknown = a.new_id()
    answer = service.verdicts("user-a", waits, unknown, sent, sent)
    assert [(v.batch_id, v.status) for v in answer.verdicts] == [(waits, PENDING), (sent, APPLIED)]
    assert answer.state.settled.server_timestamp_ms == rig.head
    assert len(answer.state.settled.token) == 32
    assert answer.state.server_time_ms > 0
    assert not service.verdicts("user-b", sent, waits).verdicts


@pytest.mark.parametrize(
    ("ids", "database", "reason"),
    [
        (["x"], "app", errors_pb2.REASON_INVALID_REQUEST),
        (["0" * 25 + "\0"], "app", errors_pb2.REASON_INVALID_REQUEST),
        ([f"{i:026}" for i in range(1001)], "app", errors_pb2.REASON_INVALID_REQUEST),
        ([], "other", errors_pb2.REASON_PERMISSION_DENIED),
    ],
)
def test_a_wrong_question_gets_one_reason(
    service: Service, ids: list[str], database: str, reason: errors_pb2.Reason.ValueType
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        service.verdicts("user-a", *ids, database=database)
    info = error_info(caught.value)
    assert info is not None
    assert f"REASON_{info.reason}" == errors_pb2.Reason.Name(reason)


def test_explain_tells_what_would_happen_and_changes_nothing(service: Service, rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    decided(service, "user-a", a.insert("todo", MILK))
    b.see()
    decided(service, "user-a", a.update("todo", {"id": "x", "title": "from a"}))
    before: Any = rig.sql("select (select count(*) from anabranch.log), (select count(*) from anabranch.inbox)")
    answer = service.explain(b, b.make(("update", "todo", [{"id": "x", "title": "from b"}])))
    assert answer.verdict.status == APPLIED
    assert [verdict_pb2.Outcome.Name(m.outcome) for m in answer.verdict.mutations] == ["OUTCOME_OVERWROTE"]
    [effect] = answer.effects
    assert list(effect.columns) == ["id", "title"]
    [loser] = answer.losers
    assert (loser.column, loser.value.string_value, loser.key[0].string_value) == ("title", "from a", "x")
    assert rig.sql("select (select count(*) from anabranch.log), (select count(*) from anabranch.inbox)") == before
    assert rig.rows("todo", "title") == [("from a",)]
    # The rows that it looked at are free again.
    b.see()
    assert decided(service, "user-b", b.delete("todo", {"id": "x"})).status == APPLIED


def test_explain_of_what_would_be_rejected_or_wait(service: Service, rig: ResolverRig) -> None:
    a = rig.node("a")
    missing = a.make(("insert", "todo", [MILK]))
    update = a.make(("update", "todo", [{"id": "x", "title": "t"}]))
    assert service.explain(a, update).verdict.reason == errors_pb2.REASON_ROW_NOT_FOUND
    waits = service.explain(a, update, prev=missing.id)
    assert (waits.verdict.status, waits.waits_for) == (PENDING, missing.id)
    unknown = a.make(("insert", "nowhere", [{"id": "1"}]))
    assert service.explain(a, unknown).verdict.reason == errors_pb2.REASON_UNKNOWN_TABLE
    with rig.session() as other:
        other.execute("insert into app.todo values ('held', 'sql', true)")
        held = service.explain(a, a.make(("insert", "todo", [{"id": "held"}])))
        assert held.verdict.status == PENDING
        assert held.waits_for
        other.rollback()


def test_explain_of_a_known_batch_is_its_verdict_for_its_sender_only(service: Service, rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    made = a.make(("insert", "todo", [MILK]))
    a.send(made)
    verdict = decided(service, "user-a", made.id)
    assert service.explain(a, made).verdict == verdict
    other = b.make(("insert", "todo", [{"id": "y"}]), batch_id=made.id)
    assert hashlib.sha256(other.payload).digest() != hashlib.sha256(made.payload).digest()
    assert service.explain(b, other).verdict.reason == errors_pb2.REASON_ID_REUSED
    assert service.explain(b, made).verdict.reason == errors_pb2.REASON_ID_REUSED
    with pytest.raises(grpc.RpcError) as caught:
        service.explain(a, made, subject="user-b")
    info = error_info(caught.value)
    assert info is not None
    assert info.reason == "WRONG_PRINCIPAL"
