"""Ingest keeps batches when things die around it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import Device, FailedCallError, IngestRig, batch_id
from anabranch.testkit.verdict_writer import VerdictWriter
from anabranch.v1 import verdict_pb2

APPLIED = verdict_pb2.VERDICT_STATUS_APPLIED
PENDING = verdict_pb2.VERDICT_STATUS_PENDING
Devices = Callable[..., Device]


def rows(url: str, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    with connect(url, application_name="test", autocommit=True) as conn:
        return conn.execute(statement, parameters).fetchall()


def where(url: str, payload: bytes) -> list[str]:
    """In which of the two tables a batch is, once for each time."""
    found = rows(
        url,
        "select 'inbox' from anabranch.inbox where batch_id = %s"
        " union all select 'batches' from anabranch.batches where batch_id = %s",
        batch_id(payload),
        batch_id(payload),
    )
    return [str(row[0]) for row in found]


@pytest.mark.slow
@pytest.mark.parametrize("point", ["before_append", "after_append", "before_answer"])
def test_promises_1_and_3_a_kill_at_any_point_loses_nothing_and_repeats_nothing(
    module_url: str, tmp_path: Path, device: Device, point: str
) -> None:
    """SIGKILL between taking a batch in and answering: the batch is in, or is not, and sent again it has one effect."""
    with IngestRig(module_url, tmp_path) as rig, VerdictWriter(module_url):
        device.address = rig.addresses[0]
        device.send(device.payload())
        payload, later = device.payload(), device.payload()
        deaths = rig.arm(point)
        with pytest.raises(FailedCallError) as caught:
            device.send(payload, later)
        assert caught.value.code.name == "UNAVAILABLE"
        rig.wait_died(deaths)
        assert where(module_url, payload) == ([] if point == "before_append" else where(module_url, later))
        rig.start()
        again = device.send(payload, later, unanswered=[batch_id(payload), batch_id(later)])
        assert [v.status for v in again.verdicts] == [APPLIED, APPLIED]
        assert where(module_url, payload) == ["batches"]
        assert device.send(payload).verdicts[0] == again.verdicts[0]


@pytest.mark.slow
def test_promise_1_what_was_appended_is_there_after_the_kill(module_url: str, tmp_path: Path, device: Device) -> None:
    """Nobody decides: the batch waits in the inbox while ingest is dead, with its bytes."""
    with IngestRig(module_url, tmp_path) as rig:
        device.address = rig.addresses[0]
        payload = device.payload()
        deaths = rig.arm("after_append")
        with pytest.raises(FailedCallError):
            device.send(payload)
        rig.wait_died(deaths)
        kept = rows(module_url, "select payload from anabranch.inbox where batch_id = %s", batch_id(payload))
        assert kept == [(payload,)]
    rows(module_url, "delete from anabranch.inbox returning 1")


@pytest.mark.slow
def test_two_processes_side_by_side(module_url: str, tmp_path: Path, device: Device) -> None:
    """The same batches through both at once, node by node: each has one verdict, and both processes tell it."""
    with IngestRig(module_url, tmp_path, count=2) as rig, VerdictWriter(module_url):
        makers = [Device(rig.addresses[0], device.key, device.db_name) for _ in range(4)]
        sets = [[maker.payload() for _ in range(30)] for maker in makers]
        answers: list[tuple[int, int, list[verdict_pb2.Verdict]]] = []

        def send(number: int, side: int) -> None:
            one = Device(rig.addresses[side], device.key, device.db_name)
            for start in range(0, 30, 3):
                part = sets[number][start : start + 3]
                answers.append((number, start, list(one.send(*part).verdicts)))

        threads = [threading.Thread(target=send, args=(n, side)) for n in range(4) for side in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(answers) == 80
        told: dict[tuple[int, int], list[verdict_pb2.Verdict]] = {}
        for number, start, verdicts in answers:
            assert {v.status for v in verdicts} == {APPLIED}
            assert told.setdefault((number, start), verdicts) == verdicts
        stored = rows(
            module_url,
            "select count(*), count(distinct batch_id) from anabranch.batches where batch_id = any(%s)",
            [batch_id(p) for one in sets for p in one],
        )
        assert stored == [(120, 120)]


@pytest.mark.slow
def test_one_node_through_two_processes_in_turn(module_url: str, tmp_path: Path, device: Device) -> None:
    """Tokens live in Postgres: it does not matter which process a call reaches."""
    with IngestRig(module_url, tmp_path, count=2) as rig, VerdictWriter(module_url):
        for number in range(10):
            device.address = rig.addresses[number % 2]
            assert device.send(device.payload()).verdicts[0].status == APPLIED


@pytest.mark.slow
def test_polling_finds_verdicts_that_nobody_told_of(module_url: str, tmp_path: Path, device: Device) -> None:
    environment = {"ANABRANCH_POLL_INTERVAL_MS": "200"}
    with (
        IngestRig(module_url, tmp_path, environment=environment) as rig,
        VerdictWriter(module_url, telling=False),
    ):
        device.address = rig.addresses[0]
        started = time.monotonic()
        assert device.send(device.payload()).verdicts[0].status == APPLIED
        assert time.monotonic() - started < 3


def test_a_cut_listener_comes_back_and_looks_at_what_it_missed(
    rig: IngestRig, device: Device, resolver: VerdictWriter
) -> None:
    """Polling is too slow here to help: the new session itself has everything looked up."""
    resolver.paused.set()
    payload = device.payload()
    outcome: list[int] = []
    thread = threading.Thread(target=lambda: outcome.append(device.send(payload).verdicts[0].status))
    thread.start()
    deadline = time.monotonic() + 5
    while where(rig.url, payload) != ["inbox"]:
        assert time.monotonic() < deadline
    with VerdictWriter(rig.url, telling=False):
        while where(rig.url, payload) != ["batches"]:
            assert time.monotonic() < deadline
    assert not outcome
    ended = rows(
        rig.url,
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'anabranch-ingest-listener' and datname = current_database()",
    )
    assert ended == [(True,)]
    thread.join(8)
    assert outcome == [APPLIED]


def test_sessions_that_break_come_back(rig: IngestRig, device: Device, resolver: VerdictWriter) -> None:
    device.send(device.payload())
    for _ in range(3):
        rows(
            rig.url,
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name like 'anabranch-ingest%%' and datname = current_database()",
        )
        payload = device.payload()
        assert device.send(payload).verdicts[0].status == APPLIED
        assert where(rig.url, payload) == ["batches"]


def test_one_callers_trouble_in_a_shared_commit_is_its_own(
    rig: IngestRig, new_device: Devices, resolver: VerdictWriter, db_name: str
) -> None:
    """A row that Postgres refuses stands among those of many callers: they get their verdicts, it alone fails."""
    poisoned = new_device()
    neighbours = [new_device() for _ in range(6)]
    _install_poison(rig.url)
    outcomes: dict[str, list[str]] = {"poisoned": [], "neighbours": []}
    barrier = threading.Barrier(7)

    def send(one: Device, kind: str) -> None:
        barrier.wait(10)
        for _ in range(5):
            try:
                envelope = one.request([one.payload()]).envelopes[0]
                envelope.basis = 666 if kind == "poisoned" else 1
                status = one.send(envelope).verdicts[0].status
                outcomes[kind].append(verdict_pb2.VerdictStatus.Name(status))
            except FailedCallError as error:
                outcomes[kind].append(error.reason)

    threads = [threading.Thread(target=send, args=(one, "neighbours")) for one in neighbours]
    threads.append(threading.Thread(target=send, args=(poisoned, "poisoned")))
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        _remove_poison(rig.url)
    assert outcomes["neighbours"] == ["VERDICT_STATUS_APPLIED"] * 30
    assert outcomes["poisoned"] == ["SERVER_FAULT"] * 5
    # Nothing of it stays behind, and it can go on.
    assert poisoned.send(poisoned.payload()).verdicts[0].status == APPLIED


def _install_poison(url: str) -> None:
    with connect(url, application_name="test", autocommit=True) as conn:
        conn.execute(
            "create or replace function public.refuse() returns trigger language plpgsql as $$begin"
            " if new.basis = 666 then raise exception 'poison' using errcode = '22000'; end if;"
            " return new; end$$"
        )
        conn.execute(
            "create trigger refuse before insert on anabranch.inbox for each row execute function public.refuse()"
        )


def _remove_poison(url: str) -> None:
    with connect(url, application_name="test", autocommit=True) as conn:
        conn.execute("drop trigger refuse on anabranch.inbox")


def test_a_database_that_was_removed_fails_only_its_own_calls(
    rig: IngestRig, new_device: Devices, resolver: VerdictWriter, db_name: str
) -> None:
    """It is still known here: Postgres refuses its rows in a commit shared with others."""
    gone = f"{db_name}z"
    rig.new_database(gone)
    orphan, neighbour = new_device(), new_device()
    orphan.db_name = gone
    orphan.send(orphan.payload())
    rows(rig.url, "delete from anabranch.databases where name = %s returning 1", gone)
    with pytest.raises(FailedCallError) as caught:
        orphan.send(orphan.payload())
    assert (caught.value.code.name, caught.value.reason) == ("NOT_FOUND", "UNKNOWN_DATABASE")
    assert neighbour.send(neighbour.payload()).verdicts[0].status == APPLIED


@pytest.mark.slow
def test_a_principal_with_too_much_waiting_is_told_to_come_later(
    module_url: str, tmp_path: Path, new_device: Devices
) -> None:
    environment = {"ANABRANCH_PRINCIPAL_MAX_WAITING_BATCHES": "20"}
    resolver = VerdictWriter(module_url)
    resolver.paused.set()
    with IngestRig(module_url, tmp_path, environment=environment) as rig, resolver:
        busy, other = new_device(address=rig.addresses[0]), new_device(address=rig.addresses[0])
        waiting = [busy.payload() for _ in range(20)]
        verdicts = busy.send(*waiting, timeout_s=1.0).verdicts
        assert {v.status for v in verdicts} == {PENDING}
        token = busy.token
        with pytest.raises(FailedCallError) as caught:
            busy.send(busy.payload())
        assert (caught.value.code.name, caught.value.reason) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        assert "20 batches of this principal (" in caught.value.details
        assert other.send(other.payload(), timeout_s=1.0).verdicts[0].status == PENDING
        resolver.paused.clear()
        deadline = time.monotonic() + 10
        while where(module_url, waiting[-1]) != ["batches"]:
            assert time.monotonic() < deadline
        assert busy.token == token
        assert busy.send(busy.payload()).verdicts[0].status == APPLIED


@pytest.mark.slow
def test_a_stopping_server_answers_who_waits(module_url: str, tmp_path: Path, device: Device) -> None:
    """SIGTERM: no call waits out its deadline, and none is cut off."""
    with IngestRig(module_url, tmp_path) as rig:
        device.address = rig.addresses[0]
        payload = device.payload()
        statuses: list[int] = []
        started = time.monotonic()
        thread = threading.Thread(target=lambda: statuses.append(device.send(payload, timeout_s=30).verdicts[0].status))
        thread.start()
        while where(module_url, payload) != ["inbox"]:
            assert time.monotonic() - started < 10
        rig.signal(signal.SIGTERM)
        thread.join(10)
        assert statuses == [PENDING]
        assert time.monotonic() - started < 10
    rows(module_url, "delete from anabranch.inbox returning 1")
