"""Many devices that follow one database: how long a change takes to reach all of them.

Subscribers are bare gRPC streams in processes of their own, a few dozen to a connection. Devices send batches of one
row, ten a call, at a steady rate. A batch's id holds the moment at which it was made: the lag of a change at a
subscriber is the time from there until the message that brings it was read. Every subscriber must get every change
exactly once, in order.

The service counts the pages that it makes: these are no more than the messages that one subscriber got where a change
is encoded once, and not once for each subscriber.

With teams each subscriber chooses the audience of one, and every change is for one team: the work that a change makes
follows those whom it concerns.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import ExitStack
from functools import lru_cache
from multiprocessing.connection import Connection
from typing import NamedTuple

import grpc
from ulid import ULID

from anabranch.bench import workload
from anabranch.bench.cpu import spent
from anabranch.bench.device import device
from anabranch.bench.report import Result, percentile
from anabranch.bench.sending import Sender
from anabranch.bench.stage import Stage, stage
from anabranch.bench.workload import DATABASE, OF_TEAM, Client
from anabranch.testkit.exposition import shown
from anabranch.v1 import batch_pb2, change_pb2, change_pb2_grpc, ingest_pb2_grpc, position_pb2

P99_MS = 400.0
_PROCESSES = 2
_STREAMS_A_CHANNEL = 50
_SENDERS = 10
_BATCHES_A_CALL = 10
_PATIENCE_S = 60.0


class Heard(NamedTuple):
    """The result of a process's subscribers: how many changes took so many milliseconds, and the messages of each."""

    lags_ms: Counter[int]
    messages: list[int]


@lru_cache(maxsize=65_536)
def _made_ms(batch_id: str) -> int:
    return int(ULID.from_str(batch_id).milliseconds)


async def _subscribe(
    stub: change_pb2_grpc.ChangeServiceAsyncStub,
    key: str,
    changes: int,
    heard: Heard,
    following: asyncio.Barrier,
    team: int | None,
) -> None:
    """Follow from the beginning until ``changes`` have come. The first message comes before any change."""
    state = position_pb2.NodeState(node=batch_pb2.Node(id=str(ULID()), name="bench"))
    if team is not None:
        state.held.CopyFrom(position_pb2.HeldAudiences(chosen=True, choice=[f"team:{team}"]))
    request = change_pb2.SubscribeRequest(db_name=DATABASE, node_state=state)
    call = stub.Subscribe(request, timeout=_PATIENCE_S, metadata=(("authorization", f"Bearer {key}"),))
    came, messages, last = 0, 0, 0
    await call.read()
    await following.wait()
    while came < changes:
        response = await call.read()
        assert isinstance(response, change_pb2.SubscribeResponse), f"a stream ended after {came} changes"
        now_ms = time.time_ns() // 1_000_000
        groups = response.page.groups
        messages += bool(groups)
        for group in groups:
            assert group.position > last, f"a group at {group.position} after {last}"
            last = group.position
            for batch in group.batches:
                heard.lags_ms[now_ms - _made_ms(batch.id)] += 1
                came += 1
    assert came == changes, f"a subscriber got {came} changes of {changes}"
    heard.messages.append(messages)
    call.cancel()


async def _follow(pipe: Connection, address: str, key: str, subscribers: int, changes: int, teams: int) -> Heard:
    channels = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(-(-subscribers // _STREAMS_A_CHANNEL))
    ]
    heard = Heard(Counter(), [])
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        stubs = [change_pb2_grpc.ChangeServiceStub(channel) for channel in channels]
        async with asyncio.TaskGroup() as group:
            following = asyncio.Barrier(subscribers + 1)
            for number in range(subscribers):
                team = number % teams if teams else None
                concerned = changes if team is None else _changes_of(team, changes, teams)
                stub = stubs[number % len(stubs)]
                group.create_task(_subscribe(stub, key, concerned, heard, following, team))
            await following.wait()
            pipe.send("following")
    finally:
        for channel in channels:
            await channel.close()
    return heard


def _changes_of(team: int, changes: int, teams: int) -> int:
    """How many of ``changes`` are for a team: all of a call are for one, call by call."""
    calls = changes // _BATCHES_A_CALL
    return _BATCHES_A_CALL * len(range(team, calls, teams))


def _follow_all(
    pipe: Connection, addresses: dict[str, str], key: str, subscribers: int, changes: int, teams: int
) -> None:
    """Run the subscribers of one process; send what they received."""
    pipe.send(asyncio.run(_follow(pipe, addresses["snapshot"], key, subscribers, changes, teams)))


async def _send(on: Stage, changes: int, per_s: float) -> None:
    """Send ``changes`` at a steady rate, however long answers take, as long as a device is free that has its answer."""
    calls = changes // _BATCHES_A_CALL
    idle: asyncio.Queue[Sender] = asyncio.Queue()
    async with grpc.aio.insecure_channel(on.stack.addresses["ingest"]) as channel, asyncio.TaskGroup() as group:
        stub = ingest_pb2_grpc.IngestServiceStub(channel)
        for _ in range(_SENDERS):
            node_id = workload.new_node(time.time_ns() // 1_000_000)
            idle.put_nowait(Sender(Client(node_id, ()), stub, on.stack.key, _BATCHES_A_CALL))

        async def call(sender: Sender, number: int) -> None:
            ids = workload.ids_from(time.time_ns() // 1_000_000, number)
            batches = [
                workload.insert_batch(next(ids), sender.client.node_id, workload.rows_of(ids, 1, number))
                for _ in range(_BATCHES_A_CALL)
            ]
            await sender.send(batches, "")
            idle.put_nowait(sender)

        due = time.perf_counter()
        for number in range(calls):
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due += _BATCHES_A_CALL / per_s
            group.create_task(call(await idle.get(), number))


def fanout_audiences() -> Result:
    """``fanout`` with the subscribers in a hundred audiences."""
    return fanout(teams=100)


def _await(pipe: Connection) -> object:
    if not pipe.poll(_PATIENCE_S):
        raise TimeoutError(f"subscribers say nothing within {_PATIENCE_S:g} s")
    return pipe.recv()


def fanout(subscribers: int = 1_000, per_s: float = 200.0, seconds: float = 10.0, teams: int = 0) -> Result:
    """``subscribers`` streams, ``per_s`` changes a second for ``seconds``. The baseline is the lag that is allowed.
    ``teams``: each stream sees the rows of one of so many; 0: each sees all."""
    changes = int(per_s * seconds) // _BATCHES_A_CALL * _BATCHES_A_CALL
    lags_ms: Counter[int] = Counter()
    messages: list[int] = []
    with stage(audience=OF_TEAM if teams else None) as on, ExitStack() as block:
        each = subscribers // _PROCESSES
        pipes = [
            block.enter_context(device(on, _follow_all, each, changes, teams, patience_s=_PATIENCE_S))
            for _ in range(_PROCESSES)
        ]
        started = time.perf_counter()
        for pipe in pipes:
            _await(pipe)
        following_s = time.perf_counter() - started
        with spent() as cost:
            asyncio.run(_send(on, changes, per_s))
            for pipe in pipes:
                heard = _await(pipe)
                assert isinstance(heard, Heard)
                lags_ms += heard.lags_ms
                messages += heard.messages
        pages = shown(on.stack.metrics_addresses["snapshot"], "anabranch_log_pages_total", database=DATABASE)
    lags = sorted(lags_ms.elements())
    return Result(
        bench="fanout_audiences" if teams else "fanout",
        value=percentile(lags, 0.99),
        baseline=P99_MS,
        unit="ms",
        target=1.0,
        direction="at most",
        conditions={"a change is encoded once for all whom it concerns": pages <= 2 * changes / _BATCHES_A_CALL},
        details={
            "subscribers": len(messages),
            "changes": changes,
            "deliveries": len(lags),
            "p50_ms": percentile(lags, 0.5),
            "all_following_after_s": round(following_s, 2),
            "pages_made": pages,
            "messages_a_subscriber": sum(messages) / len(messages),
            **cost.details(changes),
            **cost.details(sum(messages), "message"),
        },
    )
