"""Turns of dry runs: one at a time, in order, and a principal's own are few."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from anabranch.runtime.errors import CallError
from anabranch.v1 import errors_pb2
from anabranch_conflict_resolver import explain_turns
from anabranch_conflict_resolver.explain_turns import MOST_OF_PRINCIPAL, Turns

WAIT_S = 10.0


class Work:
    """Work that runs until it may end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()
        self.began = threading.Event()
        self.ended = False

    def __call__(self) -> str:
        self.began.set()
        assert self.may_end.wait(WAIT_S)
        self.ended = True
        return "done"


def test_a_principals_own_are_few_and_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_turns, "REST_S", 0.0)

    async def story() -> None:
        turns, first = Turns(), Work()
        under_way: list[asyncio.Future[Any]] = [asyncio.ensure_future(turns.run("greedy", first))]
        await asyncio.to_thread(first.began.wait, WAIT_S)
        order: list[str] = []
        for principal in ["greedy"] * (MOST_OF_PRINCIPAL - 1) + ["modest"]:
            under_way.append(asyncio.ensure_future(turns.run(principal, partial(order.append, principal))))
            await asyncio.sleep(0)
        with pytest.raises(CallError) as refused:
            await turns.run("greedy", first)
        assert refused.value.reason == errors_pb2.REASON_OVERLOADED
        first.may_end.set()
        await asyncio.wait_for(asyncio.gather(*under_way), WAIT_S)
        assert order == ["greedy"] * (MOST_OF_PRINCIPAL - 1) + ["modest"]
        assert await turns.run("greedy", lambda: 7) == 7
        turns.close()

    asyncio.run(story())


def test_a_turn_ends_with_its_work_and_not_with_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_turns, "WAIT_S", 0.05)
    monkeypatch.setattr(explain_turns, "REST_S", 0.0)

    async def story() -> None:
        turns, first = Turns(), Work()
        caller = asyncio.ensure_future(turns.run("gone", first))
        await asyncio.to_thread(first.began.wait, WAIT_S)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        with pytest.raises(CallError) as refused:
            await turns.run("other", lambda: 7)
        assert refused.value.reason == errors_pb2.REASON_OVERLOADED
        assert not first.ended
        first.may_end.set()
        monkeypatch.setattr(explain_turns, "WAIT_S", WAIT_S)
        assert await turns.run("other", lambda: 7) == 7
        assert first.ended
        turns.close()

    asyncio.run(story())
