"""How much of one principal may wait in the inbox, in batches and in bytes, and how fast it may send them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from anabranch.runtime.calls.limits import RateLimit
from anabranch.runtime.errors import CallError
from anabranch.store.inbox.append import NO_LOAD, Load
from anabranch.v1 import errors_pb2
from anabranch_ingest import quota
from anabranch_ingest.quota import Quota


class Inbox:
    """The batches that wait, by principal, in place of Postgres. ``counted``: for whom it was counted, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: dict[str, Load] = {}
        self.counted: list[str] = []
        monkeypatch.setattr(quota, "count_waiting", self._count)

    async def again(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(None)

    async def _count(self, session: None, keys: list[tuple[int, str]], most: int) -> dict[tuple[int, str], Load]:
        for _ in range(3):
            await asyncio.sleep(0)
        self.counted += [principal for _, principal in keys]
        return {key: self.waiting.get(key[1], NO_LOAD) for key in keys}

    def quota(self, batches: int, size: int) -> Quota:
        return Quota(self, Load(batches, size))  # type: ignore[arg-type]


@pytest.fixture
def inbox(monkeypatch: pytest.MonkeyPatch) -> Inbox:
    return Inbox(monkeypatch)


async def refused(call: Awaitable[None]) -> bool:
    try:
        await call
    except CallError as failure:
        return failure.reason == errors_pb2.REASON_OVERLOADED and bool(failure.metadata["retry_after_ms"])
    return False


def test_bytes_that_wait_count_beside_batches(inbox: Inbox) -> None:
    async def run() -> None:
        limit = inbox.quota(1_000, 100)
        await limit.take(1, "a", Load(1, 60))
        assert await refused(limit.take(1, "a", Load(1, 41)))
        await limit.take(1, "a", Load(1, 40))
        # Of another principal, and in another database, nothing waits.
        await limit.take(1, "b", Load(1, 100))
        await limit.take(2, "a", Load(1, 100))
        limit.settle(1, "a", Load(1, 60), Load(1, 60))
        inbox.waiting["a"] = Load(1, 60)
        assert await refused(limit.take(1, "a", Load(1, 1)))
        inbox.waiting["a"] = NO_LOAD
        await limit.take(1, "a", Load(1, 60))

    asyncio.run(run())


def test_what_was_not_appended_is_given_back(inbox: Inbox) -> None:
    async def run() -> None:
        limit = inbox.quota(10, 100)
        await limit.take(1, "a", Load(10, 100))
        limit.settle(1, "a", Load(10, 100), Load(4, 40))
        inbox.waiting["a"] = Load(4, 40)
        await limit.take(1, "a", Load(6, 60))
        assert inbox.counted == ["a"]
        assert await refused(limit.take(1, "a", Load(1, 0)))

    asyncio.run(run())


def test_one_call_of_any_size_is_taken_where_nothing_waits(inbox: Inbox) -> None:
    async def run() -> None:
        limit = inbox.quota(10, 100)
        await limit.take(1, "a", Load(1, 5_000))
        assert await refused(limit.take(1, "a", Load(1, 5_000)))
        limit.settle(1, "a", Load(1, 5_000), Load(1, 5_000))
        inbox.waiting["a"] = Load(1, 5_000)
        assert await refused(limit.take(1, "a", Load(1, 1)))

    asyncio.run(run())


def test_calls_beyond_the_limit_share_a_count_and_hold_up_nobody_elses(inbox: Inbox) -> None:
    async def run() -> None:
        inbox.waiting["busy"] = Load(1_000, 10)
        limit = inbox.quota(1_000, 1_000)
        busy = [asyncio.create_task(refused(limit.take(1, "busy", Load(1, 1)))) for _ in range(64)]
        await asyncio.sleep(0)
        calm = asyncio.create_task(refused(limit.take(1, "calm", Load(1, 1))))
        assert all(await asyncio.gather(*busy))
        assert not await calm
        assert inbox.counted.index("calm") <= 2
        assert inbox.counted.count("busy") <= 3

    asyncio.run(run())


def test_an_allowance_that_others_used_up_is_no_refusal(inbox: Inbox) -> None:
    async def run() -> None:
        limit = inbox.quota(40, 1_000)
        took = await asyncio.gather(*(refused(limit.take(1, "a", Load(1, 1))) for _ in range(50)))
        assert took.count(False) == 40

    asyncio.run(run())


def test_batches_come_at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rate = RateLimit(10.0, 100, "sends batches too fast")
    assert rate.wait_s("a", 60) == 0
    assert rate.wait_s("a", 60) == pytest.approx(2.0)
    assert rate.wait_s("b", 60) == 0
    now += 2.0
    assert rate.wait_s("a", 60) == 0
    now += 10.0
    # More than the burst are taken where it is full, and are missing afterwards.
    assert rate.wait_s("a", 150) == 0
    with pytest.raises(CallError, match="sends batches too fast") as caught:
        rate.take("a")
    assert caught.value.metadata["retry_after_ms"] == "5100"
