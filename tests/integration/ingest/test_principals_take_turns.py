"""One principal's many calls and a single call of another: the append, and the limits of bytes and of the rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from anabranch.store.session.engine import connect
from anabranch.testkit.exposition import shown
from anabranch.testkit.ingest_rig import Device, FailedCallError, IngestRig
from anabranch.testkit.waiting import until
from anabranch.v1 import batch_pb2

EACH = 100
CALLS = 64
SHORT_S, LONG_S = 0.5, 10.0
BYTES = 2_000_000
LARGE = 500_000
Devices = Callable[..., Device]


@pytest.fixture(scope="module")
def rig(module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IngestRig]:
    """A process that takes few bytes and few batches a second of a principal."""
    environment = {
        "ANABRANCH_PRINCIPAL_MAX_WAITING_BYTES": str(BYTES),
        "ANABRANCH_PRINCIPAL_BATCHES_PER_S": "50",
        "ANABRANCH_PRINCIPAL_BATCHES_BURST": str(CALLS * EACH),
        "ANABRANCH_APPEND_MAX_BATCHES": "200",
    }
    with IngestRig(module_url, tmp_path_factory.mktemp("ingest"), environment=environment) as one:
        yield one


def arrivals(rig: IngestRig, db_name: str) -> list[str]:
    """The principals of the batches in the inbox, as they arrived."""
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        rows = conn.execute(
            "select i.principal from anabranch.inbox i join anabranch.databases d on d.id = i.database_id"
            " where d.name = %s order by i.xmin::text::bigint, i.arrival",
            (db_name,),
        )
        return [principal for (principal,) in rows]


def received(rig: IngestRig, db_name: str) -> float:
    """How many batches of the database have come, as its metric says."""
    return shown(rig.metrics_addresses[0], "anabranch_batches_received_total", database=db_name)


def sends(device: Device, batches: int = 1, size: int = 0, timeout_s: float = SHORT_S) -> str:
    """The result of a call: "" or the reason of its failure. ``size``: of a value in each batch."""

    def grow(batch: batch_pb2.DbMutationBatch) -> None:
        batch.mutations[0].rows[0].values[1].string_value = "x" * size

    try:
        device.send(*[device.payload(change=grow) for _ in range(batches)], timeout_s=timeout_s)
    except FailedCallError as failure:
        return failure.reason
    return ""


@pytest.mark.slow
def test_a_call_among_sixty_four_of_another_is_appended_among_the_first(
    rig: IngestRig, new_device: Devices, db_name: str
) -> None:
    """The inbox is locked until all of them wait: appends of 200 batches then take one call of each principal."""
    busy = [new_device("busy") for _ in range(CALLS)]
    calm = new_device("calm")
    blocked = "select count(*) from pg_locks where relation = 'anabranch.inbox'::regclass and not granted"
    with (
        connect(rig.url, application_name="test") as holder,
        connect(rig.url, application_name="test", autocommit=True) as looker,
        ThreadPoolExecutor(CALLS + 1) as pool,
    ):
        holder.execute("lock table anabranch.inbox in share mode")
        calls = [pool.submit(sends, device, EACH, 0, LONG_S) for device in busy]
        until(lambda: looker.execute(blocked).fetchone() == (1,), 10.0, lambda: "no append waits")
        calls.append(pool.submit(sends, calm, 1, 0, LONG_S))
        until(lambda: received(rig, db_name) > CALLS * EACH, 10.0, lambda: f"{received(rig, db_name)} came")
        holder.rollback()
        assert [call.result() for call in calls] == [""] * (CALLS + 1)
    order = arrivals(rig, db_name)
    assert len(order) == CALLS * EACH + 1
    assert order.index("calm") < len(order) / 2


@pytest.mark.slow
def test_bytes_that_wait_are_bounded_and_nothing_is_lost(rig: IngestRig, new_device: Devices, db_name: str) -> None:
    large, other = new_device("large"), new_device("small")
    outcomes = [sends(large, size=LARGE) for _ in range(8)]
    assert outcomes.count("") * LARGE <= BYTES
    assert set(outcomes) == {"", "OVERLOADED"}
    assert sends(other, size=LARGE) == ""
    with connect(rig.url, application_name="test", autocommit=True) as conn:
        conn.execute("delete from anabranch.inbox where principal = 'large'")
    assert sends(large, size=LARGE) == ""


@pytest.mark.slow
def test_batches_come_at_the_principals_rate(rig: IngestRig, new_device: Devices) -> None:
    fast, other = new_device("fast"), new_device("slow")
    outcomes = [sends(fast, 1_000) for _ in range(CALLS * EACH // 1_000 + 2)]
    assert "OVERLOADED" in outcomes
    assert sends(other) == ""
