"""GetVerdict, Explain and ListConflicts over a real socket, from a real process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from anabranch.clock import Clock
from anabranch.runtime.errors import error_info
from anabranch.store import api_keys, conflicts
from anabranch.store.channels import CLAIM_LOCK_CLASS
from anabranch.testkit.resolver_rig import Made, ResolverRig, RigNode
from anabranch.v1 import batch_pb2, errors_pb2, resolver_pb2, resolver_pb2_grpc, value_pb2, verdict_pb2
from anabranch.wire.envelopes import receive

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

    def conflicts(self, **filters: Any) -> resolver_pb2.ListConflictsResponse:
        request = resolver_pb2.ListConflictsRequest(**{"db_name": "app", **filters})
        return self.stub.ListConflicts(request, metadata=self._metadata("user-a"), timeout=10)

    def all_conflicts(self, **filters: Any) -> list[resolver_pb2.Conflict]:
        """All pages, values put together."""
        found: list[resolver_pb2.Conflict] = []
        parts: list[bytes] = []
        token = b""
        for _ in range(1_000):
            page = self.conflicts(page_token=token, **filters)
            for conflict in page.conflicts:
                parts.append(conflict.losing_value)
                if not conflict.losing_value_incomplete:
                    conflict.losing_value = b"".join(parts)
                    parts.clear()
                    found.append(conflict)
            token = page.next_page_token
            if not token:
                assert not parts
                return found
        raise AssertionError("pages without end")


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
        holder.execute("select pg_advisory_xact_lock(%s, %s)", [CLAIM_LOCK_CLASS, rig.database.id])
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
    end = time.monotonic() + 20
    while service.explain(a, made).waits_for != missing:
        assert time.monotonic() < end
        time.sleep(0.02)
    other = b.make(("insert", "todo", [MILK]), batch_id=made.id)
    for node, bytes_ in ((b, other), (b, made), (a, _spoiled(made, lambda x: setattr(x, "schema_version", 9)))):
        assert service.explain(node, bytes_).verdict.reason == errors_pb2.REASON_ID_REUSED


def text(value: str) -> bytes:
    return value_pb2.Value(string_value=value).SerializeToString()


def lose(service: Service, a: RigNode, b: RigNode, key: str, value: str) -> int:
    """A value of ``a`` for a title loses to one of ``b``, which had not seen it; the position."""
    a.see()
    b.see()
    decided(service, a.principal, a.update("todo", {"id": key, "title": value}))
    return decided(service, b.principal, b.update("todo", {"id": key, "title": f"over {value}"})).position


def test_conflicts_are_listed_page_by_page_and_by_every_filter(service: Service, rig: ResolverRig) -> None:
    a, b, c = rig.node("a"), rig.node("b"), rig.node("c")
    decided(service, "user-a", a.insert("todo", MILK, {"id": "y", "title": "eggs", "done": False}))
    at = [lose(service, a, b, "x" if n % 2 else "y", f"v{n}") for n in range(5)]
    at.append(lose(service, c, b, "x", "v5"))
    found = service.all_conflicts()
    assert [x.position for x in found] == at[::-1]
    first = found[-1]
    assert (first.table, first.key[0].string_value, first.column, first.losing_value) == (
        "todo", "y", "title", text("v0"),
    )  # fmt: skip
    assert (first.losing_node.id, first.losing_node.name, first.winning_node.id) == (a.id, "a", b.id)
    assert rig.outcome(first.winning_batch_id) == ["OVERWROTE"]
    assert rig.outcome(first.losing_batch_id) == ["APPLIED"]
    for size in (1, 2, 3):
        assert service.all_conflicts(page_size=size) == found
        assert len(service.conflicts(page_size=size).conflicts) == size

    def values(**filters: Any) -> list[bytes]:
        return [x.losing_value for x in service.all_conflicts(page_size=2, **filters)]

    x = value_pb2.Value(string_value="x")
    assert values(table="todo", key=[x]) == [text("v5"), text("v3"), text("v1")]
    assert values(node_id=c.id) == [text("v5")]
    assert values(node_id=a.id, table="todo", key=[x]) == [text("v3"), text("v1")]
    assert values(from_ms=at[1], until_ms=at[4]) == [text("v3"), text("v2"), text("v1")]
    assert values(table="todo", key=[value_pb2.Value(string_value="none")]) == []


def test_no_page_of_conflicts_looks_at_everything(
    make_rig: Any, migrated_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter that finds little makes pages short, not slow: each looks at so many entries, and the next goes on."""
    rig = make_rig()
    a, b, c = rig.node("a"), rig.node("b"), rig.node("c")
    a.insert("todo", MILK)
    rig.group()
    for node in [c, *[a] * 7]:
        b.see()
        node.see()
        node.update("todo", {"id": "x", "title": f"of {node.name}"})
        rig.group()
        b.update("todo", {"id": "x", "title": "b"})
        rig.group()
    monkeypatch.setattr(conflicts, "MOST_LOOKED_AT", 3)
    tables = [table.id for table in rig.database.tables.values()]
    for key in (None, "x"):
        wanted = conflicts.Wanted(rig.database.id, tables, key, node_id=c.id)
        place, pages = None, []
        while True:
            listed = conflicts.page(rig.conn, wanted, place, items=10, max_bytes=1_000)
            pages.append(len(listed.lost))
            place = listed.after
            if place is None:
                break
        assert pages == [0, 0, 1]


def test_the_conflicts_of_a_row_are_found_by_their_index(rig: ResolverRig) -> None:
    [table] = [table.id for table in rig.database.tables.values()]
    with rig.conn.transaction():
        rig.sql(
            "insert into anabranch.conflicts select %s, 1 + n, 'b', 0, %s, case when n = 7 then 'x' else 'y' || n end,"
            " 'title', '', 'l', 'n', 'w', 'm' from generate_series(1, 50000) n",
            [rig.database.id, table],
        )
        rig.sql("analyze anabranch.conflicts")
        plans: list[str] = []
        steps = conflicts._page(conflicts.Wanted(rig.database.id, [table], "x"), None, 10, 1_000)
        for statement in (next(steps), steps.send([])):
            sql = f"explain (analyze, timing off) {statement.sql}".encode()
            plans.append("\n".join(row[0] for row in rig.conn.execute(sql, statement.parameters).fetchall()))
    for plan in plans:
        assert "conflicts_row" in plan, plan
        assert "Rows Removed by Filter" not in plan, plan


def test_a_losing_value_larger_than_a_message_comes_in_parts(service: Service, rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    decided(service, "user-a", a.insert("todo", MILK))
    large = "".join(f"{n:08x}" for n in range(1_000_000))
    lose(service, a, b, "x", "small")
    lose(service, a, b, "x", large)
    lose(service, a, b, "x", "after")
    assert [x.losing_value for x in service.all_conflicts()] == [text("after"), text(large), text("small")]


@pytest.mark.parametrize(
    ("filters", "reason"),
    [
        ({"db_name": "other"}, "PERMISSION_DENIED"),
        ({"table": "nowhere"}, "UNKNOWN_TABLE"),
        ({"key": [value_pb2.Value(string_value="x")]}, "INVALID_REQUEST"),
        ({"table": "todo", "key": [value_pb2.Value(int64_value=1)]}, "INVALID_REQUEST"),
        ({"table": "todo", "key": [value_pb2.Value()]}, "INVALID_REQUEST"),
        ({"table": "todo", "key": [value_pb2.Value(string_value="x")] * 2}, "INVALID_REQUEST"),
        ({"page_size": -1}, "INVALID_REQUEST"),
        ({"node_id": "x" * 27}, "INVALID_REQUEST"),
        ({"page_token": b"0123456789abcdef0123456789abcdef"}, "INVALID_TOKEN"),
    ],
)
def test_a_wrong_question_about_conflicts_gets_one_reason(
    service: Service, filters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        service.conflicts(**filters)
    info = error_info(caught.value)
    assert info is not None
    assert info.reason == reason


def test_a_page_token_holds_for_its_own_filters_only(service: Service, rig: ResolverRig) -> None:
    a, b = rig.node("a"), rig.node("b")
    decided(service, "user-a", a.insert("todo", MILK))
    for n in range(3):
        lose(service, a, b, "x", f"v{n}")
    token = service.conflicts(page_size=1).next_page_token
    assert service.conflicts(page_size=2, page_token=token).conflicts
    with pytest.raises(grpc.RpcError) as caught:
        service.conflicts(table="todo", page_token=token)
    info = error_info(caught.value)
    assert info is not None
    assert info.reason == "INVALID_TOKEN"
