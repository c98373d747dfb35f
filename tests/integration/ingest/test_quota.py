"""A principal's limit on batches that wait holds however many calls come at once, and what was not appended is free."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from anabranch.store.session.engine import connect
from anabranch.testkit.ingest_rig import Device, FailedCallError, IngestRig
from anabranch.testkit.verdict_writer import VerdictWriter
from anabranch.v1 import verdict_pb2

LIMIT = 500
EACH = 100
CALLS = 50
SHORT_S = 1.0
Devices = Callable[..., Device]


@pytest.fixture(scope="module")
def rig(module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestRig]:
    """Two processes whose limit is small."""
    environment = {
        "ANABRANCH_PRINCIPAL_MAX_WAITING_BATCHES": str(LIMIT),
        "ANABRANCH_LIMIT_CALLS_PER_S": "100000",
        "ANABRANCH_LIMIT_CALLS_BURST": "100000",
    }
    folder = tmp_path_factory.mktemp("ingest")
    with IngestRig(module_url, folder, count=2, environment=environment) as one:
        yield one


def waiting(rig: IngestRig, db_name: str) -> int:
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        row = conn.execute(
            "select count(*) from anabranch.inbox i join anabranch.databases d on d.id = i.database_id"
            " where d.name = %s",
            (db_name,),
        ).fetchone()
        assert row is not None
        return int(row[0])


def send_all_at_once(devices: list[Device]) -> list[str]:
    """The result of each device's call: "" or the reason of its failure."""

    def send(device: Device) -> str:
        payloads = [device.payload() for _ in range(EACH)]
        try:
            device.send(*payloads, timeout_s=4.0)
        except FailedCallError as failure:
            return failure.reason
        return ""

    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(send, devices))


@pytest.mark.slow
def test_the_limit_holds_when_many_calls_come_at_once(rig: IngestRig, new_device: Devices, db_name: str) -> None:
    devices = [new_device("crowd") for _ in range(CALLS)]
    outcomes = send_all_at_once(devices)
    assert waiting(rig, db_name) == outcomes.count("") * EACH <= LIMIT
    assert outcomes.count("OVERLOADED") == CALLS - outcomes.count("")
    # A count takes what is under way off although it may have seen it: a call may be told to come again too early, and
    # then gets in.
    while waiting(rig, db_name) < LIMIT:
        devices[0].send(*[devices[0].payload() for _ in range(EACH)], timeout_s=SHORT_S)
    with pytest.raises(FailedCallError) as caught:
        devices[0].send(devices[0].payload(), timeout_s=SHORT_S)
    assert caught.value.reason == "OVERLOADED"
    with VerdictWriter(rig.url):
        # Verdicts on what waits make room.
        while waiting(rig, db_name):
            assert send_all_at_once(devices[:1]) in (["OVERLOADED"], [""])
        assert devices[0].send(devices[0].payload()).verdicts[0].status == verdict_pb2.VERDICT_STATUS_APPLIED


@pytest.mark.slow
def test_several_processes_let_in_no_more_than_the_limit_each(
    rig: IngestRig, new_device: Devices, db_name: str
) -> None:
    devices = [new_device("spread", address=rig.addresses[n % 2]) for n in range(CALLS)]
    outcomes = send_all_at_once(devices)
    assert LIMIT <= waiting(rig, db_name) == outcomes.count("") * EACH <= 2 * LIMIT


@pytest.mark.slow
def test_batches_that_wait_already_take_nothing_of_the_limit(rig: IngestRig, device: Device, db_name: str) -> None:
    payloads = [device.payload() for _ in range(EACH)]
    for _ in range(2 * LIMIT // EACH):
        device.send(*payloads, timeout_s=SHORT_S / 5)
    device.send(*[device.payload() for _ in range(LIMIT - EACH)], timeout_s=SHORT_S)
    assert waiting(rig, db_name) == LIMIT


@pytest.mark.slow
def test_what_a_refused_call_took_is_given_back(rig: IngestRig, device: Device, db_name: str) -> None:
    device.send(device.payload(), timeout_s=SHORT_S)
    for _ in range(2 * LIMIT // EACH):
        with pytest.raises(FailedCallError) as caught:
            device.send(*[device.payload() for _ in range(EACH)], token=bytes(16), timeout_s=SHORT_S)
        assert caught.value.reason == "NODE_FORKED"
    device.send(*[device.payload() for _ in range(LIMIT - 1)], timeout_s=SHORT_S)
    assert waiting(rig, db_name) == LIMIT
