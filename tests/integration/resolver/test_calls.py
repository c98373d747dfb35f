"""GetVerdict and Explain over a real socket, from a real process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from tests.integration.resolver.calls import Service, decided

from anabranch.runtime.errors import error_info
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.testkit.resolver_rig import Made, ResolverRig
from anabranch.testkit.waiting import until
from anabranch.v1 import batch_pb2, errors_pb2, verdict_pb2
from anabranch.wire.envelopes import receive

# Each test starts a resolver of its own.
pytestmark = pytest.mark.slow

MILK = {"id": "x", "title": "milk", "done": False}
APPLIED, REJECTED, PENDING = (
    verdict_pb2.VERDICT_STATUS_APPLIED,
    verdict_pb2.VERDICT_STATUS_REJECTED,
    verdict_pb2.VERDICT_STATUS_PENDING,
)


def test_verdicts_are_told_to_who_sent_the_batch_and_to_nobody_else(service: Service, rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    sent = a.insert("todo", MILK)
    verdict = decided(service, "user-a", sent)
    assert (verdict.status, verdict.position) == (APPLIED, rig.head)
    # It never comes, and is of an earlier moment: a batch waits for no later one.
    lost = b.new_id()
    waits = a.send(a.make(("update", "todo", [{"id": "x", "title": "t"}])), prev=lost)
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


def test_explain_counts_what_was_written_by_sql_and_is_not_in_the_log_yet(service: Service, rig: ResolverRig) -> None:
    a = rig.node("a")
    made = a.make(("insert", "todo", [{"id": "x", "title": "mine"}]))
    with rig.session() as holder:
        # Nobody can commit a group.
        wait_for_claim(holder, rig.database.id)
        rig.sql("insert into app.todo values ('x', 'by sql', false), ('y', 'by sql', false)")
        answer = service.explain(a, made)
        assert answer.verdict.reason == errors_pb2.REASON_ROW_EXISTS
        assert answer.undrained == 2
        assert rig.sql("select count(*) from anabranch.captured") == [(2,)]
        assert service.explain(a, a.make(("delete", "todo", [{"id": "y"}]))).verdict.reason == (
            errors_pb2.REASON_CONCURRENT_UPDATE
        )


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


def _spoiled(made: Made, spoil: Callable[[batch_pb2.DbMutationBatch], object]) -> Made:
    batch = batch_pb2.DbMutationBatch.FromString(made.payload)
    spoil(batch)
    return Made(made.id, batch.SerializeToString(), made.basis, made.before)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda b: setattr(b, "id", "no ulid"), "INVALID_ID"),
        (lambda b: setattr(b, "id", "0" * 26), "EXPIRED"),
        (lambda b: setattr(b.node, "id", "x"), "INVALID_ID"),
        (lambda b: setattr(b, "db_name", "other"), "WRONG_DATABASE"),
        (lambda b: b.ClearField("mutations"), "EMPTY"),
        (lambda b: b.mutations[0].rows.add(), "MALFORMED"),
        (lambda b: b.mutations[0].ClearField("type"), "MALFORMED"),
        (lambda b: b.mutations.extend([b.mutations[0]] * 10_000), "LIMIT_EXCEEDED"),
        (lambda b: setattr(b.mutations[0], "table", "t" * 64), "LIMIT_EXCEEDED"),
    ],
)
def test_explain_refuses_what_ingest_would(
    service: Service, rig: ResolverRig, spoil: Callable[[batch_pb2.DbMutationBatch], object], reason: str
) -> None:
    """By the very check that ingest makes, so that the two can't differ."""
    a = rig.node("a")
    made = _spoiled(a.make(("insert", "todo", [MILK])), spoil)
    verdict = service.explain(a, made).verdict
    assert (verdict.status, errors_pb2.Reason.Name(verdict.reason)) == (REJECTED, f"REASON_{reason}")
    refusal = receive(made.payload, made.basis, "", "app", "01").refusal
    assert refusal is not None
    assert refusal == (verdict.reason, verdict.message)


def test_explain_of_what_is_no_batch(service: Service, rig: ResolverRig) -> None:
    a = rig.node("a")
    verdict = service.explain(a, Made("", b"\xff no batch", 0, "")).verdict
    assert (verdict.status, verdict.reason) == (REJECTED, errors_pb2.REASON_MALFORMED)
    later = a.make(("insert", "todo", [MILK]))
    verdict = service.explain(a, later, prev=a.new_id()).verdict
    assert (verdict.status, verdict.reason) == (REJECTED, errors_pb2.REASON_INVALID_ID)


def test_explain_of_a_batch_that_waits_already(service: Service, rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    missing = a.new_id()
    made = a.make(("update", "todo", [{"id": "x", "title": "t"}]))
    a.send(made, prev=missing)
    answer = service.explain(a, made)
    assert (answer.verdict.status, answer.verdict.batch_id) == (PENDING, made.id)
    assert answer.waits_for in (missing, "its turn"), "whether the resolver has looked at it yet"
    until(lambda: service.explain(a, made).waits_for == missing, 20)
    other = b.make(("insert", "todo", [MILK]), batch_id=made.id)
    for node, bytes_ in ((b, other), (b, made), (a, _spoiled(made, lambda x: setattr(x, "schema_version", 9)))):
        assert service.explain(node, bytes_).verdict.reason == errors_pb2.REASON_ID_REUSED
