"""Callers without credentials can take little of a service, whatever they send."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tests.integration.runtime.raw_http2 import refused_calls

from anabranch.runtime.calls import strangers, streams
from anabranch.runtime.health import probe
from anabranch.testkit import echo_service as behaviour
from anabranch.testkit import process_memory
from anabranch.testkit.echo import SUCCESS, Echo, bearer, echo_service, failure, get, outcome
from anabranch.testkit.exposition import shown
from anabranch.testkit.paired import paired
from anabranch.testkit.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("runtime-strangers"),
    pytest.mark.skipif(not process_memory.KNOWN, reason="this machine does not report a process's memory"),
]
GET = f"/{behaviour.NAME}/Get"
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
MESSAGE_BYTES = 4_000_000
CALLS = 24
MOST_BYTES = 250_000_000
"""Bytes by which the memory of a service may grow, whoever calls."""
MOST_TIMES = 2.5
FLOOD_S = 2.0
LEAST_TAKEN = 10
"""Large messages that have to be taken while something is measured beside them."""
REFUSED = ("UNAUTHENTICATED", "UNAUTHENTICATED")
TOO_LARGE = ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")
OVERLOADED = ("RESOURCE_EXHAUSTED", "OVERLOADED")


@pytest.fixture
def echo(url: str, tmp_path: Any) -> Iterator[Echo]:
    with echo_service(url, tmp_path) as running:
        running.wait_ready()
        yield running


@pytest.fixture
def spared(url: str, tmp_path: Any) -> Iterator[Echo]:
    """One more, which nobody attacks."""
    with echo_service(url, tmp_path / "spared") as running:
        running.wait_ready()
        yield running


def empty_messages(size: int = MESSAGE_BYTES) -> bytes:
    """A GetRequest whose node_state.disagreements are empty messages of two bytes each."""
    content = b"\x22\x00" * (size // 2)
    length, rest = b"", len(content)
    while rest > 0x7F:
        length += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return b"\x12" + length + bytes([rest]) + content


@contextmanager
def bounded_growth(echo: Echo, most: int = MOST_BYTES) -> Iterator[None]:
    """The service's memory grows by no more, even for a moment, while the block lasts."""
    pid = echo.child.pid
    assert pid is not None
    process_memory.forget_peak(pid)
    before = process_memory.has_bytes(pid)
    yield
    grown = process_memory.peak_bytes(pid) - before
    print(f"grew by {grown / 1e6:.0f} MB")
    assert grown < most, f"{grown / 1e6:.0f} MB"


@contextmanager
def healthy_neighbour(echo: Echo, spared: Echo) -> Iterator[None]:
    """A caller with credentials is served almost as by a service that nobody attacks while the block lasts."""
    with paired(echo.address, spared.address, echo.new_key("neighbour"), "shop", 0, MOST_TIMES):
        yield


def outcomes(channel: grpc.Channel, method: str, message: bytes, metadata: Any, calls: int) -> list[tuple[str, str]]:
    """Code and reason of calls that are made at once."""
    call = channel.unary_unary(method, lambda raw: raw, lambda raw: raw)
    under_way = [call.future(message, timeout=60, metadata=metadata) for _ in range(calls)]
    return [outcome(one.result) for one in under_way]


def test_messages_of_strangers_are_not_taken(echo: Echo, spared: Echo) -> None:
    message, unknown = empty_messages(), bearer("ak_0123456789abcdef_" + "0" * 64)
    with echo.channel() as channel, healthy_neighbour(echo, spared), bounded_growth(echo):
        for credentials in ((), unknown):
            until_s = time.monotonic() + FLOOD_S
            while time.monotonic() < until_s:
                assert outcomes(channel, GET, message, credentials, CALLS) == [REFUSED] * CALLS


def test_a_message_that_would_grow_is_refused_before_it_is_parsed(echo: Echo) -> None:
    message, own = empty_messages(), bearer(echo.new_key("alice"))
    with echo.channel() as channel, bounded_growth(echo):
        assert set(outcomes(channel, GET, message, own, CALLS)) == {TOO_LARGE}


def test_health_takes_no_large_names(echo: Echo, spared: Echo) -> None:
    message = health_pb2.HealthCheckRequest(service="x" * 3_000_000).SerializeToString()
    with echo.channel() as channel, healthy_neighbour(echo, spared), bounded_growth(echo):
        for method in (CHECK, WATCH):
            until_s, found = time.monotonic() + FLOOD_S, Counter[tuple[str, str]]()
            while time.monotonic() < until_s:
                found.update(outcomes(channel, method, message, (), 60))
            assert found.keys() <= {TOO_LARGE, OVERLOADED}
            assert found[TOO_LARGE] >= LEAST_TAKEN, "no flood"


def test_a_flood_of_large_names_keeps_no_probe_away(echo: Echo) -> None:
    message = health_pb2.HealthCheckRequest(service="x" * 3_000_000).SerializeToString()
    over = threading.Event()

    def flood() -> None:
        with echo.channel() as channel:
            while not over.is_set():
                outcomes(channel, CHECK, message, (), 60)

    def taken() -> float:
        """Large names that the service has taken so far."""
        return shown(echo.metrics_address, "anabranch_failures_total", reason="MESSAGE_TOO_LARGE")

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        until(lambda: taken() > 0, 20)
        # A kubelet's: each on a connection of its own.
        before = taken()
        probes = [probe(echo.address, 20) for _ in range(10)]
        during = taken() - before
    finally:
        over.set()
        flooding.join()
    print(f"{during:.0f} large names were taken meanwhile")
    assert probes == ["SERVING"] * 10
    assert during >= LEAST_TAKEN, "no flood"


def test_many_probes_at_once_are_all_served(echo: Echo) -> None:
    with echo.channel() as channel:
        assert outcomes(channel, CHECK, b"", (), 150) == [SUCCESS] * 150


def test_watchers_of_health_are_few_and_the_oldest_goes_first(echo: Echo) -> None:
    most = streams.MOST_OF_STRANGERS
    with echo.channel() as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watched = [stub.Watch(health_pb2.HealthCheckRequest(), timeout=60) for _ in range(most)]
        for one in watched:
            assert next(one).status == health_pb2.HealthCheckResponse.SERVING
        newest = stub.Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert next(newest).status == health_pb2.HealthCheckResponse.SERVING
        until(lambda: any(one.done() for one in watched), 20)
        [ended] = [one for one in watched if one.done()]
        assert failure(ended) == OVERLOADED
        # A probe is served, and takes the place of another old one.
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=10).status == health_pb2.HealthCheckResponse.SERVING
        for one in (*watched, newest):
            one.cancel()


def test_messages_that_do_not_come_keep_no_probe_away(echo: Echo) -> None:
    never: queue.Queue[None] = queue.Queue()
    with echo.channel() as channel:
        open_call = channel.stream_unary(CHECK, lambda raw: raw, lambda raw: raw)
        held = [open_call.future(iter(never.get, None), timeout=60) for _ in range(strangers.MOST_READ + 8)]
        try:
            with pytest.raises(grpc.RpcError) as ended:
                held[0].result()
            assert failure(ended.value) == OVERLOADED
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        finally:
            for one in held:
                one.cancel()
                never.put(None)


def test_connections_are_few(url: str, tmp_path: Any) -> None:
    """Beyond the limit a connection is closed, and one that ends makes room."""
    with echo_service(url, tmp_path, {"ANABRANCH_LIMIT_CONNECTIONS": "3"}) as echo:
        echo.wait_ready()
        key = echo.new_key("alice")
        # gRPC shares connections between channels that are alike.
        channels = [
            grpc.insecure_channel(echo.address, options=[("grpc.use_local_subchannel_pool", 1)]) for _ in range(4)
        ]
        try:
            until(lambda: _served(channels[0], key), 10)
            assert _served(channels[1], key)
            assert _served(channels[2], key)
            assert not _served(channels[3], key)
            channels[0].close()
            until(lambda: _served(channels[3], key), 20)
        finally:
            for channel in channels:
                channel.close()


def _served(channel: grpc.Channel, key: str) -> bool:
    try:
        get(channel, key)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return True


@pytest.mark.parametrize("key_id", [b"0123\0" + b"5" * 11, b"\xff" * 16, b"x" * 5_000], ids=["nul", "bytes", "long"])
def test_a_key_that_is_none_fails_nobody_elses_look_up_and_fills_no_log(echo: Echo, key_id: bytes) -> None:
    log = echo.child.program.log
    size = log.stat().st_size
    bad = [(b"authorization", b"Bearer ak_" + key_id + b"_" + b"0" * 64)]
    over, served = threading.Event(), []

    def call_with_new_keys() -> None:
        with echo.channel() as channel:
            while not over.is_set():
                served.append(get(channel, echo.new_key("bob")).next_page_token)

    refused = 0

    def refuse_until(calls: int) -> bool:
        nonlocal refused
        refused += refused_calls(echo.address, GET, bad, 1_000)
        return len(served) >= calls

    caller = threading.Thread(target=call_with_new_keys)
    caller.start()
    try:
        until(lambda: bool(served), 20)
        more = len(served) + 2
        until(lambda: refuse_until(more), 20, "nobody else was served meanwhile")
    finally:
        over.set()
        caller.join()
    assert refused >= 1
    assert set(served) == {b"bob"}
    assert log.stat().st_size - size < 100_000
    assert "call failed" not in log.read_text()
