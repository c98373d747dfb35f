"""Calls wait for their own verdicts, and are woken by these."""

from __future__ import annotations

import asyncio
import time

import pytest

from anabranch.store.inbox.verdicts import DecidedBatch
from anabranch.store.session.listening import Heard
from anabranch.v1 import errors_pb2, verdict_pb2
from anabranch_ingest import waiting as waiting_module
from anabranch_ingest.waiting import Ticket, WatchedBatches

SHA = b"s"
DB = 1


def decided(verdict: bytes = b"v", *, sha: bytes = SHA, principal: str = "p") -> DecidedBatch:
    return DecidedBatch(sha, principal, verdict)


def test_what_is_named_is_looked_up_and_delivered_to_all() -> None:
    async def run() -> None:
        waiting, tickets = WatchedBatches(), [Ticket("p"), Ticket("p")]
        for ticket in tickets:
            waiting.watch(ticket, DB, {"a": SHA, "b": SHA})
        waiting.hear(Heard(DB, 1, ("b", "other")))
        waiting.hear(Heard(2, 1, ("a",)))
        assert await waiting.due(10) == [(DB, "b")]
        waiting.decide((DB, "b"), decided())
        for ticket in tickets:
            assert (ticket.found, set(ticket.missing)) == ({"b": b"v"}, {"a"})
        assert len(waiting) == 1

    asyncio.run(run())


def test_a_name_that_came_before_the_watch_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_module, "REMEMBERED_IDS", 10)

    async def run() -> None:
        waiting, ticket = WatchedBatches(), Ticket("p")
        waiting.hear(Heard(DB, 1, ("early",)))
        for number in range(10):
            waiting.hear(Heard(DB, 1, (f"x{number}",)))
        waiting.watch(ticket, DB, {"early": SHA, "never": SHA})
        assert await asyncio.wait_for(waiting.due(10), 1) == [(DB, "early")]
        for number in range(1000):
            waiting.hear(Heard(DB, 1, (f"y{number}",)))
        assert len(waiting._recent) + len(waiting._older) <= 30

    asyncio.run(run())


def test_polling_looks_up_what_was_watched_for_a_whole_interval() -> None:
    async def run() -> None:
        waiting, ticket = WatchedBatches(), Ticket("p")
        waiting.watch(ticket, DB, {"a": SHA})
        waiting.poll()
        waiting.watch(ticket, DB, {"b": SHA})
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(waiting.due(10), 0.01)
        waiting.poll()
        assert await waiting.due(10) == [(DB, "a")]
        waiting.poll()
        assert sorted(await waiting.due(10)) == [(DB, "a"), (DB, "b")]

    asyncio.run(run())


def test_a_new_listener_has_everything_looked_up() -> None:
    async def run() -> None:
        waiting, ticket = WatchedBatches(), Ticket("p")
        waiting.watch(ticket, DB, {str(n): SHA for n in range(25)})
        waiting.look_at_all()
        taken = [await waiting.due(10), await waiting.due(10), await waiting.due(10)]
        assert [len(part) for part in taken] == [10, 10, 5]
        assert len({key for part in taken for key in part}) == 25

    asyncio.run(run())


def test_a_closed_ticket_leaves_nothing_behind() -> None:
    async def run() -> None:
        waiting, gone, stays = WatchedBatches(), Ticket("p"), Ticket("p")
        waiting.watch(gone, DB, {"a": SHA, "b": SHA})
        waiting.watch(stays, DB, {"b": SHA})
        waiting.look_at_all()
        waiting.close(gone, DB)
        assert len(waiting) == 1
        assert await waiting.due(10) == [(DB, "b")]
        waiting.decide((DB, "b"), decided())
        assert not gone.found
        assert stays.found
        waiting.close(stays, DB)
        assert len(waiting) == 0

    asyncio.run(run())


@pytest.mark.parametrize("other", [decided(sha=b"other"), decided(principal="q")])
def test_a_verdict_on_other_content_or_of_another_is_told_as_a_reuse(other: DecidedBatch) -> None:
    """Two processes may append one id in the same moment; the resolver decides one of them."""
    waiting, ticket = WatchedBatches(), Ticket("p")
    waiting.watch(ticket, DB, {"a": SHA})
    waiting.decide((DB, "a"), other)
    verdict = verdict_pb2.Verdict.FromString(ticket.found["a"])
    assert verdict.reason == errors_pb2.REASON_ID_REUSED
    assert not ticket.missing


def test_a_reuse_under_an_id_that_is_watched_takes_no_place() -> None:
    waiting, ticket = WatchedBatches(), Ticket("p")
    waiting.watch(ticket, DB, {"a": SHA})
    ticket.refuse("a", b"reuse")
    assert (ticket.placeless, set(ticket.missing)) == ([b"reuse"], {"a"})
    waiting.decide((DB, "a"), decided())
    assert ticket.found == {"a": b"v"}
    ticket.refuse("b", b"reuse")
    assert ticket.found["b"] == b"reuse"


def test_a_ticket_is_waited_for_until_it_is_complete_given_up_or_late() -> None:
    async def run() -> None:
        waiting, ticket = WatchedBatches(), Ticket("p")
        await ticket.complete(0)
        waiting.watch(ticket, DB, {"a": SHA, "b": SHA})
        loop = asyncio.get_running_loop()
        loop.call_later(0.01, waiting.decide, (DB, "a"), decided())
        loop.call_later(0.02, waiting.decide, (DB, "b"), decided())
        started = time.monotonic()
        await ticket.complete(5)
        assert time.monotonic() - started < 2
        assert not ticket.missing
        waiting.watch(ticket, DB, {"c": SHA})
        await ticket.complete(0.01)
        assert set(ticket.missing) == {"c"}
        loop.call_later(0.01, ticket.give_up)
        await ticket.complete(5)
        assert time.monotonic() - started < 2

    asyncio.run(run())
