"""Turns go to principals one after the other, and none is lost when whoever waits for it goes away."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from anabranch.runtime.calls import fair_turns
from anabranch.runtime.calls.fair_turns import FairTurns


def test_a_principal_that_asks_often_is_served_in_turn_with_one_that_asks_once() -> None:
    async def run() -> list[str]:
        turns, served = FairTurns(1), []
        await turns.take("first")

        async def one(subject: str) -> None:
            async with turns.turn(subject):
                served.append(subject)

        tasks = [asyncio.create_task(one("busy")) for _ in range(5)]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(one("other")), asyncio.create_task(one("third"))]
        await asyncio.sleep(0)
        assert (turns.waiting, turns.waiting_of("busy")) == (7, 5)
        turns.give_back("first")
        await asyncio.gather(*tasks)
        assert turns.waiting == 0
        return served

    assert asyncio.run(run()) == ["busy", "other", "third", "busy", "busy", "busy", "busy"]


def test_one_principal_leaves_a_turn_to_others() -> None:
    async def run() -> None:
        turns = FairTurns(3, of_one=2)
        for _ in range(2):
            await turns.take("busy")
        third = asyncio.create_task(turns.take("busy"))
        await asyncio.sleep(0)
        assert not third.done()
        await asyncio.wait_for(turns.take("other"), 1)
        turns.give_back("other")
        await asyncio.sleep(0)
        assert not third.done()
        turns.give_back("busy")
        await asyncio.wait_for(third, 1)

    asyncio.run(run())


def test_a_turn_is_not_lost_with_one_that_waited_for_it() -> None:
    async def run() -> None:
        turns = FairTurns(1)
        await turns.take("a")
        gone, handed, last = (asyncio.create_task(turns.take(subject)) for subject in "bcd")
        await asyncio.sleep(0)
        # One goes while it waits; the next in the moment in which the turn is handed to it.
        gone.cancel()
        turns.give_back("a")
        handed.cancel()
        await asyncio.wait_for(last, 1)
        assert gone.cancelled() or gone.done()
        assert handed.cancelled()
        turns.give_back("d")
        assert turns.is_free("e")
        assert turns.waiting == 0

    asyncio.run(run())


def test_a_principal_has_all_turns_alone_and_few_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        now = 100.0
        monkeypatch.setattr(fair_turns, "time", SimpleNamespace(monotonic=lambda: now))
        turns = FairTurns(4, beside=1)
        for _ in range(3):
            await asyncio.wait_for(turns.take("busy"), 1)
        # Work that nobody asked for is no other principal's.
        async with turns.turn(""):
            pass
        await asyncio.wait_for(turns.take("busy"), 1)
        waiting = [asyncio.create_task(turns.take("busy")) for _ in range(3)]
        other = asyncio.create_task(turns.take("other"))
        await asyncio.sleep(0)
        turns.give_back("busy")
        await asyncio.wait_for(other, 1)
        # From now on one at a time, though turns are free.
        for _ in range(3):
            turns.give_back("busy")
        await asyncio.sleep(0)
        assert [one.done() for one in waiting] == [True, False, False]
        turns.give_back("busy")
        await asyncio.sleep(0)
        assert [one.done() for one in waiting] == [True, True, False]
        turns.give_back("other")
        await asyncio.sleep(0)
        assert not waiting[2].done()
        # The other has gone: who comes then finds it out, and goes behind those that wait.
        now += fair_turns.ALONE_S
        await asyncio.wait_for(turns.take("busy"), 1)
        assert waiting[2].done()
        assert (turns.held, turns.waiting) == (3, 0)

    asyncio.run(run())


def test_what_nobody_asked_for_is_not_held_to_few_turns() -> None:
    """It is that of several: the tails of all databases take turns so."""

    async def run() -> None:
        turns = FairTurns(4, beside=1)
        await turns.take("principal")
        for _ in range(3):
            await asyncio.wait_for(turns.take(""), 1)
        assert turns.held == 4

    asyncio.run(run())


def test_what_nobody_asked_for_leaves_turns_to_principals_where_one_has_not_all() -> None:
    async def run() -> None:
        turns = FairTurns(4, of_one=3, beside=1)
        for _ in range(3):
            await turns.take("")
        assert not turns.is_free("")
        assert turns.is_free("principal")

    asyncio.run(run())


def test_a_principal_that_becomes_alone_gets_the_free_turns_though_nothing_else_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_turns, "ALONE_S", 0.05)

    async def run() -> None:
        told = 0

        def tell() -> None:
            nonlocal told
            told += 1

        turns = FairTurns(4, told=tell, beside=1)
        await turns.take("other")
        turns.give_back("other")
        began = time.monotonic()
        taken = [asyncio.create_task(turns.take("busy")) for _ in range(4)]
        await asyncio.sleep(0)
        assert (turns.held, turns.waiting, told) == (1, 3, 6)
        await asyncio.wait_for(asyncio.gather(*taken), 5)
        assert time.monotonic() - began >= fair_turns.ALONE_S - 0.01
        assert (turns.held, turns.waiting, told) == (4, 0, 7)

    asyncio.run(run())


def test_a_principal_is_not_alone_while_another_waits_and_is_when_that_one_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        now = 100.0
        monkeypatch.setattr(fair_turns, "time", SimpleNamespace(monotonic=lambda: now))
        turns = FairTurns(4, beside=1)
        await turns.take("busy")
        await turns.take("other")
        busy, other = asyncio.create_task(turns.take("busy")), asyncio.create_task(turns.take("other"))
        await asyncio.sleep(0)
        now += fair_turns.ALONE_S
        # Work that nobody asked for has them looked at again.
        async with turns.turn(""):
            pass
        await asyncio.sleep(0)
        assert (busy.done(), other.done()) == (False, False)
        other.cancel()
        await asyncio.wait_for(busy, 1)
        assert (turns.held, turns.waiting) == (3, 0)

    asyncio.run(run())


def test_a_neighbours_turns_wait_for_one_turn_of_a_busy_principal_each() -> None:
    async def run(beside: int | None) -> int:
        """How many steps of the busy one go before the last of three turns of its neighbour."""
        turns, steps = FairTurns(4, beside=beside), 0
        over = False

        async def busy() -> None:
            nonlocal steps
            while not over:
                async with turns.turn("busy"):
                    for _ in range(5):
                        steps += 1
                        await asyncio.sleep(0)

        async def neighbour() -> None:
            for _ in range(3):
                async with turns.turn("neighbour"):
                    for _ in range(5):
                        await asyncio.sleep(0)

        tasks = [asyncio.create_task(busy()) for _ in range(100)]
        await neighbour()
        before = steps
        await neighbour()
        meanwhile = steps - before
        over = True
        await asyncio.gather(*tasks)
        return meanwhile

    apart, together = asyncio.run(run(1)), asyncio.run(run(None))
    print(f"{apart} steps, {together} where it holds all turns")
    assert apart <= 30
    assert together > 2 * apart
