"""The queue before the inbox: in turns, bounded."""

from __future__ import annotations

import asyncio

import pytest

from anabranch.runtime.errors import CallError
from anabranch.store.inbox.append import Arrival
from anabranch.v1 import errors_pb2
from anabranch_ingest.queueing import FairQueue, Submission
from anabranch_ingest.waiting import Ticket


def submission(principal: str, batches: int = 1, size: int = 10) -> Submission:
    arrivals = [Arrival(1, f"b{n}", "n", principal, 0, "", bytes(size), b"", "") for n in range(batches)]
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return Submission(1, principal, None, frozenset(), arrivals, Ticket(principal), done)


def test_a_busy_principal_delays_itself_only() -> None:
    async def run() -> None:
        queue = FairQueue(1_000, 1_000_000)
        for _ in range(50):
            queue.put(submission("busy"))
        queue.put(submission("quiet"))
        queue.put(submission("other"))
        taken = await queue.take(4, 1_000_000)
        assert [s.principal for s in taken] == ["busy", "quiet", "other", "busy"]
        assert [s.principal for s in await queue.take(2, 1_000_000)] == ["busy", "busy"]

    asyncio.run(run())


def test_each_principals_own_come_in_order() -> None:
    async def run() -> None:
        queue = FairQueue(1_000, 1_000_000)
        put = [submission(f"p{n % 3}") for n in range(30)]
        for one in put:
            queue.put(one)
        taken: list[Submission] = []
        while len(taken) < 30:
            taken += await queue.take(7, 1_000_000)
        for number in range(3):
            own = [s for s in put if s.principal == f"p{number}"]
            assert [s for s in taken if s.principal == f"p{number}"] == own

    asyncio.run(run())


@pytest.mark.parametrize(("most", "most_bytes", "sizes"), [(10, 10**6, [2, 2, 1]), (100, 95, [2, 2, 1])])
def test_a_group_is_bounded_in_batches_and_bytes(most: int, most_bytes: int, sizes: list[int]) -> None:
    async def run() -> None:
        queue = FairQueue(1_000, 1_000_000)
        for _ in range(5):
            queue.put(submission("p", batches=4))
        assert [len(await queue.take(most, most_bytes)) for _ in range(3)] == sizes

    asyncio.run(run())


def test_one_that_is_larger_than_a_group_goes_alone() -> None:
    async def run() -> None:
        queue = FairQueue(1_000, 1_000_000)
        queue.put(submission("p", batches=50))
        queue.put(submission("p"))
        assert [s.batches for s in await queue.take(10, 10)] == [50]

    asyncio.run(run())


@pytest.mark.parametrize(("batches", "size"), [(11, 1), (1, 1_001)])
def test_a_full_queue_refuses(batches: int, size: int) -> None:
    async def run() -> None:
        queue = FairQueue(10, 1_000)
        queue.put(submission("p", batches=1, size=1))
        with pytest.raises(CallError) as caught:
            queue.put(submission("q", batches=batches, size=size))
        assert caught.value.reason == errors_pb2.REASON_OVERLOADED
        await queue.take(100, 10_000)
        # An empty one takes anything: what is larger than the limit could never go otherwise.
        queue.put(submission("q", batches=batches, size=size))

    asyncio.run(run())


def test_whose_caller_is_gone_is_dropped() -> None:
    async def run() -> None:
        queue = FairQueue(1_000, 1_000_000)
        gone, stays = submission("p"), submission("p")
        gone.abandoned = True
        queue.put(gone)
        queue.put(stays)
        assert await queue.take(10, 1_000) == [stays]

    asyncio.run(run())


def test_calls_without_batches_count_as_well() -> None:
    async def run() -> None:
        queue = FairQueue(3, 1_000)
        for number in range(3):
            queue.put(submission(f"p{number}", batches=0))
        with pytest.raises(CallError):
            queue.put(submission("p", batches=0))

    asyncio.run(run())


def test_one_principal_leaves_room_for_others() -> None:
    async def run() -> None:
        queue = FairQueue(100, 1_000)
        for _ in range(5):
            queue.put(submission("busy", batches=10, size=1))
        with pytest.raises(CallError) as caught:
            queue.put(submission("busy"))
        assert caught.value.reason == errors_pb2.REASON_OVERLOADED
        queue.put(submission("quiet", batches=50, size=1))
        await queue.take(10, 1_000)
        queue.put(submission("busy", batches=10, size=1))
        # By bytes as well; and what is larger than a share goes when nothing of its principal waits.
        queue = FairQueue(100, 1_000)
        queue.put(submission("busy", batches=1, size=600))
        with pytest.raises(CallError):
            queue.put(submission("busy", size=1))
        queue.put(submission("quiet", size=400))

    asyncio.run(run())
