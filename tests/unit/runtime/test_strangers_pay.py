"""Messages of strangers that are too large are paid for in time, by the connections that they come on."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from anabranch.runtime.calls import strangers
from anabranch.runtime.calls.strangers import MAX_BYTES, MOST_READ, REST_S_PER_BYTE, Strangers
from anabranch.runtime.calls.streams import OpenStream
from anabranch.runtime.errors import CallError

LARGE = 3_000_000
FLOOD = 12


class Call:
    """A call as gRPC gives it, whose message has come; ``taken_s`` is when it was asked for."""

    def __init__(self, peer: str, size: int) -> None:
        self._peer = peer
        self._size = size
        self.taken_s = 0.0

    def peer(self) -> str:
        return self._peer

    async def read(self) -> bytes:
        self.taken_s = time.monotonic()
        for _ in range(5):
            await asyncio.sleep(0)
        return b"x" * self._size


class Never(Call):
    """A call whose message does not come."""

    def __init__(self) -> None:
        super().__init__("never", 0)

    async def read(self) -> bytes:
        await asyncio.get_running_loop().create_future()
        return b""


async def _nothing(request: bytes, context: Any) -> None:
    return None


def served(calls: list[Call]) -> None:
    """Serve calls that come at once, in this order."""

    async def run() -> None:
        serve = Strangers().serving(_nothing, None, False)

        async def one(call: Call) -> None:
            task = asyncio.current_task()
            assert task is not None
            try:
                await serve(None, call, OpenStream("Check", None, task))
            except CallError:
                assert call._size > MAX_BYTES

        await asyncio.gather(*map(one, calls))

    asyncio.run(run())


def test_none_is_taken_for_a_while_after_one_that_is_too_large() -> None:
    flood = [Call("flood", LARGE) for _ in range(FLOOD)]
    served(flood)
    moments = sorted(call.taken_s for call in flood)
    rest_s = LARGE * REST_S_PER_BYTE
    # So many come at once, and each of them is paid for before the next ones.
    rounds = [moments[at : at + MOST_READ] for at in range(0, FLOOD, MOST_READ)]
    for before, after in itertools.pairwise(rounds):
        assert after[0] - before[0] >= MOST_READ * rest_s


def test_a_probe_goes_before_a_flood_that_has_come_later() -> None:
    probe = Call("probe", 0)
    flood = [Call("flood", LARGE) for _ in range(MOST_READ + FLOOD)]
    served([*flood[:MOST_READ], probe, *flood[MOST_READ:]])
    assert sum(call.taken_s < probe.taken_s for call in flood) <= MOST_READ


def test_messages_of_the_right_size_cost_no_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(strangers, "REST_S_PER_BYTE", 60.0)
    began = time.monotonic()
    served([Call("probes", MAX_BYTES) for _ in range(100)])
    assert time.monotonic() - began < 30


def test_nobody_gives_way_to_a_call_that_has_ended(monkeypatch: Any) -> None:
    monkeypatch.setattr(strangers, "FAIR_S", 60.0)

    async def run() -> None:
        service = Strangers()
        serve = service.serving(_nothing, None, False)
        begun: list[OpenStream] = []

        async def one(call: Call) -> None:
            task = asyncio.current_task()
            assert task is not None
            begun.append(OpenStream("Check", None, task))
            await serve(None, call, begun[-1])

        tasks = [asyncio.create_task(one(Never())) for _ in range(MOST_READ)]
        tasks.append(asyncio.create_task(one(Call("probes", 0))))
        await asyncio.sleep(0)
        assert len(service._taking) == MOST_READ
        # Cancelled, and not yet gone, when one of those whose messages don't come turns out to be late.
        tasks[-1].cancel()
        service._late(service._taking[0])
        assert [stream.failure for stream in begun] == [None] * (MOST_READ + 1)
        assert len(service._taking) == MOST_READ
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(error) for error in ended} == {asyncio.CancelledError}

    asyncio.run(run())


def test_the_turn_of_a_call_that_ends_in_that_moment_is_the_next_ones(monkeypatch: Any) -> None:
    monkeypatch.setattr(strangers, "FAIR_S", 60.0)

    async def run() -> None:
        serve = Strangers().serving(_nothing, None, False)
        tasks: list[asyncio.Task[None]] = []

        def begin(call: Any) -> None:
            async def one() -> None:
                task = asyncio.current_task()
                assert task is not None
                await serve(None, call, OpenStream("Check", None, task))

            tasks.append(asyncio.create_task(one()))

        class Ends(Call):
            """Its message comes, and in this moment the newest of the calls that wait is ended."""

            async def read(self) -> bytes:
                await asyncio.sleep(0.01)
                asyncio.get_running_loop().call_soon(tasks[-1].cancel)
                return b""

        for _ in range(MOST_READ):
            begin(Ends("readers", 0) if not tasks else Never())
        for _ in range(2):
            begin(Call("probes", 0))
        await asyncio.wait_for(tasks[-2], 5)
        with pytest.raises(asyncio.CancelledError):
            await tasks[-1]
        for task in tasks:
            task.cancel()

    asyncio.run(run())
