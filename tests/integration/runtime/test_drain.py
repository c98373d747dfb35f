"""How calls and streams fare whose server is told to end, or is exchanged for another."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from anabranch.testkit import echo_service as behaviour
from anabranch.testkit.echo import bearer, echo_service, ending, failing, get, subscribe
from anabranch.testkit.exposition import shown
from anabranch.testkit.gate import Gate
from anabranch.testkit.waiting import until
from anabranch.v1 import change_pb2, change_pb2_grpc

CALLERS = 20
EXCHANGES = 3
CALL_S = 60.0
PATIENCE_S = 60.0


@pytest.fixture
def url(migrated_url: str) -> str:
    """A database of each test's own: processes are ended in it."""
    return migrated_url


class Callers:
    """They send the next call as soon as they have an answer. ``outcomes``: of all calls, how often each."""

    def __init__(self, address: str, key: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self._address = address
        self._key = key
        self._stop = threading.Event()

    async def _call(self) -> None:
        async with grpc.aio.insecure_channel(self._address) as channel:
            stub = change_pb2_grpc.ChangeServiceStub(channel)
            while not self._stop.is_set():
                request = change_pb2.GetRequest(db_name="shop")
                try:
                    await stub.Get(request, timeout=CALL_S, metadata=bearer(self._key))
                except grpc.RpcError as error:
                    self.outcomes[f"{error.code().name}: {error.details()}"] += 1
                    await asyncio.sleep(0.05)
                else:
                    self.outcomes["OK"] += 1

    async def _call_all(self) -> None:
        await asyncio.gather(*[self._call() for _ in range(CALLERS)])

    def run(self) -> None:
        """Call until ``stop``."""
        asyncio.run(self._call_all())

    def stop(self) -> None:
        """Have everybody end after the call that is under way."""
        self._stop.set()

    def see_more(self) -> None:
        """Wait until each may have had some answers more."""
        goal, deadline = self.outcomes["OK"] + 3 * CALLERS, time.monotonic() + PATIENCE_S
        while self.outcomes["OK"] < goal:
            assert time.monotonic() < deadline, self.outcomes
            time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_who_always_has_a_call_under_way_is_led_to_another_server_without_a_failure(url: str, tmp_path: Path) -> None:
    with (
        echo_service(url, tmp_path / "a") as one,
        echo_service(url, tmp_path / "b") as other,
        Gate(one.address) as gate,
        ThreadPoolExecutor(1) as pool,
    ):
        one.wait_ready(PATIENCE_S)
        callers = Callers(gate.address, one.new_key("caller"))
        calling = pool.submit(callers.run)
        try:
            for _ in range(EXCHANGES):
                callers.see_more()
                other.wait_ready(PATIENCE_S)
                gate.target = other.address
                one.child.stop(PATIENCE_S)
                one.child.start()
                one, other = other, one
            callers.see_more()
        finally:
            callers.stop()
        calling.result(PATIENCE_S)
        assert set(callers.outcomes) == {"OK"}, callers.outcomes


@pytest.mark.slow
def test_sigterm_lets_calls_finish_and_sends_streams_away(url: str, tmp_path: Path) -> None:
    with echo_service(url, tmp_path) as echo, echo.channel() as channel, ThreadPoolExecutor(1) as pool:
        echo.wait_ready()
        key = echo.new_key("alice")
        stream = subscribe(channel, key)
        slow = pool.submit(get, channel, key, behaviour.IS_SLOW, max_bytes=1_500)
        until(lambda: shown(echo.metrics_address, "anabranch_open_streams") == 1, 10)
        until(lambda: behaviour.UNDER_WAY in echo.child.log_tail(), 10, beside=slow)
        before = echo.child.deaths
        started = time.monotonic()
        echo.child.send(signal.SIGTERM)
        assert ending(stream) == ("UNAVAILABLE", "UNAVAILABLE")
        assert time.monotonic() - started < 1, "an endless stream is told at once"
        assert slow.result(5).next_page_token == b"alice"
        echo.child.wait_died(before, 5)
        assert '"event": "stopped"' in echo.child.log_tail()


@pytest.mark.slow
def test_what_outlasts_the_drain_is_cut_off_with_a_reason(url: str, tmp_path: Path) -> None:
    with (
        echo_service(url, tmp_path, {"ANABRANCH_DRAIN_MS": "800"}) as echo,
        echo.channel() as channel,
        ThreadPoolExecutor(1) as pool,
    ):
        echo.wait_ready()
        key = echo.new_key("alice")
        get(channel, key)
        slow = pool.submit(get, channel, key, behaviour.IS_SLOW, max_bytes=60_000)
        until(lambda: behaviour.UNDER_WAY in echo.child.log_tail(), 10, beside=slow)
        before, started = echo.child.deaths, time.monotonic()
        echo.child.send(signal.SIGTERM)
        assert failing(lambda: slow.result(10)) == ("UNAVAILABLE", "UNAVAILABLE")
        echo.child.wait_died(before, 5)
        assert time.monotonic() - started < 4


def test_a_second_signal_ends_it_at_once(url: str, tmp_path: Path) -> None:
    with echo_service(url, tmp_path) as echo, echo.channel() as channel, ThreadPoolExecutor(1) as pool:
        echo.wait_ready()
        key = echo.new_key("alice")
        slow = pool.submit(get, channel, key, behaviour.IS_SLOW, max_bytes=60_000)
        until(lambda: behaviour.UNDER_WAY in echo.child.log_tail(), 10, beside=slow)
        before = echo.child.deaths
        echo.child.send(signal.SIGTERM)
        until(lambda: "draining" in echo.child.log_tail(), 10)
        started = time.monotonic()
        echo.child.send(signal.SIGTERM)
        echo.child.wait_died(before, 5)
        assert time.monotonic() - started < 1
        with pytest.raises(grpc.RpcError):
            slow.result(10)
