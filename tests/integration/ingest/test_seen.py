"""The positions that a node has seen are held against the history before a batch of it is taken in (promise 9)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from anabranch.store.session.engine import connect
from anabranch.store.session.own_locks import wait_for_claim
from anabranch.testkit.ingest_rig import Device, FailedCallError, IngestRig, batch_id, failed
from anabranch.testkit.verdict_writer import VerdictWriter
from anabranch.testkit.waiting import until
from anabranch.v1 import position_pb2, verdict_pb2

APPLIED = verdict_pb2.VERDICT_STATUS_APPLIED
Devices = Callable[..., Device]
Sql = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def sql(rig: IngestRig, db_name: str) -> Iterator[Sql]:
    """Runs SQL in which ``@`` is the number of the database."""
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        row = conn.execute("select id from anabranch.databases where name = %s", (db_name,)).fetchone()
        assert row is not None

        def run(statement: str, *parameters: object) -> list[tuple[Any, ...]]:
            cursor = conn.execute(statement.replace("@", str(row[0])).encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

        yield run


def refusal(device: Device, *payloads: bytes) -> str:
    with pytest.raises(FailedCallError) as caught:
        device.send(*payloads)
    return caught.value.reason


def epoch(sql: Sql) -> str:
    ((found,),) = sql("select epoch from anabranch.databases where id = @")
    return str(found)


def sessions_end(sql: Sql) -> None:
    """A restored server has ended every session; here only that is done, after its rows were changed. Returns when the
    process listens again."""
    ours = "from pg_stat_activity where datname = current_database() and application_name like 'anabranch-ingest%%'"
    ended = [pid for _, pid in sql(f"select pg_terminate_backend(pid, 10000), pid {ours} and pid > %s", 0)]
    assert ended
    deadline = time.monotonic() + 10
    while not sql(f"select 1 {ours} and application_name like '%%listener' and pid <> all(%s)", ended):
        assert time.monotonic() < deadline, "the process does not listen again"
        time.sleep(0.01)


def working_sessions_end(sql: Sql) -> None:
    """End every session but the one that listens: each is found broken by whoever uses it next."""
    ended = sql(
        "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
        " where datname = current_database() and application_name = 'anabranch-ingest' and pid > %s",
        0,
    )
    assert len(ended) > 1


@pytest.mark.slow
def test_an_answer_proves_what_its_verdicts_say(device: Device, resolver: VerdictWriter, sql: Sql) -> None:
    for _ in range(20):
        answer = device.send(device.payload())
        (verdict,) = answer.verdicts
        assert answer.state.settled.server_timestamp_ms >= verdict.position


def test_a_forged_position_is_refused_while_a_group_is_committed(
    device: Device, new_device: Devices, resolver: VerdictWriter, rig: IngestRig, sql: Sql
) -> None:
    """Nobody waits for the claim because of what a caller makes up: the resolver would wait behind it."""
    settled = device.send(device.payload()).state.settled
    forger = new_device()
    forger.seen = position_pb2.Position(
        epoch=settled.epoch, server_timestamp_ms=settled.server_timestamp_ms + 60_000, token=bytes(len(settled.token))
    )
    ((number,),) = sql("select id from anabranch.databases where id = @")
    with connect(rig.url, application_name="test") as holder, ThreadPoolExecutor(1) as pool:
        wait_for_claim(holder, number)
        answer = pool.submit(refusal, forger, forger.payload())
        until(answer.done, 5, "the call waits for the claim")
        assert answer.result() == "INVALID_POSITION"
        holder.rollback()


@pytest.mark.slow
def test_promise_9_a_broken_session_does_not_hide_a_rewind(
    device: Device, new_device: Devices, resolver: VerdictWriter, sql: Sql
) -> None:
    other = new_device()
    other.send(other.payload())
    device.seen = device.send(device.payload()).state.settled
    sql("delete from anabranch.groups where database_id = @ and position = %s", device.seen.server_timestamp_ms)
    sql("delete from anabranch.batches where database_id = @ and position = %s", device.seen.server_timestamp_ms)
    sessions_end(sql)
    # All are open again once a call without a position has gone through.
    other.send(other.payload())
    working_sessions_end(sql)
    assert refusal(device, device.payload()) == "HISTORY_REWOUND"
    # And the next call is judged in the new epoch: any token is taken once.
    assert other.send(other.payload(), token=b"0123456789abcdef").verdicts[0].status == APPLIED


@pytest.mark.slow
def test_promise_9_a_send_notices_a_rewind_by_a_verdict_alone_and_appends_nothing(
    device: Device, new_device: Devices, resolver: VerdictWriter, sql: Sql
) -> None:
    other = new_device()
    other.seen = other.send(other.payload()).state.settled
    device.seen = device.send(device.payload()).state.settled
    assert device.seen.server_timestamp_ms > other.seen.server_timestamp_ms
    before = epoch(sql)
    sql("delete from anabranch.groups where database_id = @ and position = %s", device.seen.server_timestamp_ms)
    sql("delete from anabranch.batches where database_id = @ and position = %s", device.seen.server_timestamp_ms)
    sessions_end(sql)
    lost = device.payload()
    assert refusal(device, lost) == "HISTORY_REWOUND"
    moved = epoch(sql)
    assert moved != before
    assert sql("select epoch, ended_position from anabranch.epochs where database_id = @") == [
        (before, other.seen.server_timestamp_ms)
    ]
    assert sql("select 1 from anabranch.inbox where database_id = @ and batch_id = %s", batch_id(lost)) == []
    # A node that lost nothing goes on in the new epoch, also with a token that the restore has forgotten.
    answer = other.send(other.payload(), token=b"0123456789abcdef")
    assert answer.verdicts[0].status == APPLIED
    assert answer.state.settled.epoch == moved
    # Reusing the time of what was lost: the chain tells them apart. It has no say a second time.
    assert answer.verdicts[0].position == device.seen.server_timestamp_ms
    assert refusal(device, lost) == "HISTORY_REWOUND"
    with grpc.insecure_channel(device.address) as channel, pytest.raises(grpc.RpcError) as caught:
        list(device.stream(channel, iter([device.stream_request(lost, first=True)])))
    assert failed(caught.value).reason == "HISTORY_REWOUND"
    assert epoch(sql) == moved


def test_what_is_damaged_proves_nothing(device: Device, resolver: VerdictWriter, sql: Sql) -> None:
    good = device.send(device.payload()).state.settled
    before = epoch(sql)
    for change in ({"token": bytes(32)}, {"token": b"short"}, {"epoch": "another"}, {"server_timestamp_ms": 2**60}):
        device.seen = position_pb2.Position()
        device.seen.CopyFrom(good)
        device.seen.MergeFrom(position_pb2.Position(**change))
        assert refusal(device, device.payload()) == "INVALID_POSITION"
    assert epoch(sql) == before
    device.seen = good
    assert device.send(device.payload()).verdicts[0].status == APPLIED


def test_in_another_postgres_cluster_a_contradiction_is_a_rewind(
    device: Device, resolver: VerdictWriter, sql: Sql
) -> None:
    """The rows were copied from a cluster into this one, and the secret of the seals was not kept."""
    device.seen = device.send(device.payload()).state.settled
    before = epoch(sql)
    sql("update anabranch.databases set system_identifier = 1, seal_key = %s where id = @", b"k" * 32)
    sessions_end(sql)
    assert refusal(device, device.payload()) == "HISTORY_REWOUND"
    assert epoch(sql) != before
    # It is said once: this cluster is the database's home now.
    assert refusal(device, device.payload()) == "INVALID_POSITION"


@pytest.mark.slow
def test_two_that_notice_at_once_begin_one_epoch(new_device: Devices, resolver: VerdictWriter, sql: Sql) -> None:
    devices = [new_device() for _ in range(3)]
    for device in devices:
        device.seen = device.send(device.payload()).state.settled
    sql("delete from anabranch.groups where database_id = @")
    sessions_end(sql)
    assert [refusal(device, device.payload()) for device in devices] == ["HISTORY_REWOUND"] * 3
    assert len(sql("select 1 from anabranch.epochs where database_id = @")) == 1
