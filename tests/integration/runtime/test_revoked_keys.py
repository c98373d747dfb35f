"""A revoked key ends at once, in every process: its streams, and its calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from anabranch.store.session.engine import connect
from anabranch.testkit import echo_service as behaviour
from anabranch.testkit.echo import bearer, ending, outcome, revoke_key, running_echo, subscribe
from anabranch.testkit.stack import Stack
from anabranch.testkit.waiting import until
from anabranch.v1 import (
    change_pb2,
    change_pb2_grpc,
    ingest_pb2,
    ingest_pb2_grpc,
    resolver_pb2,
    resolver_pb2_grpc,
    retention_pb2,
    retention_pb2_grpc,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("revoked-keys"), pytest.mark.usefixtures("shop")]
ENDED = ("UNAUTHENTICATED", "CREDENTIALS_EXPIRED")
CALLS: dict[str, Callable[[grpc.Channel, str], object]] = {
    "ingest": lambda channel, key: ingest_pb2_grpc.IngestServiceStub(channel).Send(
        ingest_pb2.SendRequest(db_name="shop"), timeout=5, metadata=bearer(key)
    ),
    "snapshot": lambda channel, key: change_pb2_grpc.ChangeServiceStub(channel).Get(
        change_pb2.GetRequest(db_name="shop"), timeout=5, metadata=bearer(key)
    ),
    "conflict-resolver": lambda channel, key: resolver_pb2_grpc.ConflictResolverServiceStub(channel).GetVerdict(
        resolver_pb2.GetVerdictRequest(db_name="shop"), timeout=5, metadata=bearer(key)
    ),
    "retention-janitor": lambda channel, key: retention_pb2_grpc.RetentionJanitorServiceStub(channel).GetStatus(
        retention_pb2.GetStatusRequest(db_name="shop"), timeout=5, metadata=bearer(key)
    ),
}
"""A call to each service. It need not succeed, only its credentials have to be judged."""
DEAF = "too many notifications of revoked keys"
SESSION = "pg_stat_activity where application_name = 'anabranch-echo-keys' and datname = current_database()"


@pytest.fixture(scope="module")
def stack(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with Stack(url, folder=tmp_path_factory.mktemp("stack"), resolvers=2) as running:
        yield running


def rows(url: str, query: str) -> list[tuple[Any, ...]]:
    with connect(url, application_name="test", autocommit=True) as conn:
        return conn.execute(query.encode()).fetchall()


def seconds_until_refused(
    channel: grpc.Channel, service: str, key: str, known: threading.Barrier, revoked: threading.Event
) -> float:
    """How long calls of a service that begin after the revocation are still judged good. ``known``: all services have
    judged one before it."""
    call = CALLS[service]
    assert outcome(lambda: call(channel, key)) != ENDED, service
    known.wait(30)
    assert revoked.wait(20)
    began = time.monotonic()
    while time.monotonic() - began < 10:
        if outcome(lambda: call(channel, key)) == ENDED:
            return time.monotonic() - began
        time.sleep(0.01)
    raise AssertionError(f"{service} still takes the key")


def by_sql(url: str, key: str) -> None:
    """Nothing tells of it: it is found by looking."""
    with connect(url, application_name="test", autocommit=True) as conn:
        conn.execute("update anabranch.api_keys set revoked_ms = 1 where id = %s", [key.split("_")[1]])


def by_removal(url: str, key: str) -> None:
    with connect(url, application_name="test", autocommit=True) as conn:
        conn.execute("delete from anabranch.api_keys where id = %s", [key.split("_")[1]])


@pytest.mark.parametrize(("revoke", "within_s"), [(revoke_key, 0.5), (by_sql, 1.0)])
def test_every_process_refuses_a_revoked_key_within_a_second(
    stack: Stack, url: str, revoke: Callable[[str, str], None], within_s: float
) -> None:
    longest = 0.0
    services = {name: name.removesuffix("-2") for name in stack.addresses}
    assert set(services.values()) == set(CALLS)
    for number in range(4):
        # Rounds begin at different moments of the services' own looks.
        time.sleep(0.19 * number)
        key, revoked = stack.new_key("doomed", role="admin"), threading.Event()
        with futures.ThreadPoolExecutor(10) as pool:
            channels = {name: grpc.insecure_channel(address) for name, address in stack.addresses.items()}
            known = threading.Barrier(len(services) + 1)
            waits = [
                pool.submit(seconds_until_refused, channels[name], service, key, known, revoked)
                for name, service in services.items()
            ]
            stub = change_pb2_grpc.ChangeServiceStub(channels["snapshot"])
            stream = stub.Subscribe(change_pb2.SubscribeRequest(db_name="shop"), timeout=60, metadata=bearer(key))
            next(stream)
            known.wait(30)
            revoke(url, key)
            revoked.set()
            began = time.monotonic()
            assert ending(stream) == ENDED
            longest = max(longest, time.monotonic() - began, *(wait.result(30) for wait in waits))
            for channel in channels.values():
                channel.close()
    print(f"the last process refused the key {longest:.3f} s after its revocation")
    assert longest < within_s


@pytest.mark.parametrize(("revoke", "within_s"), [(revoke_key, 0.5), (by_sql, 1.0)])
def test_a_revocation_needs_no_session_of_the_pool(
    url: str, tmp_path: Path, revoke: Callable[[str, str], None], within_s: float
) -> None:
    """All of them may be in use by statements that take long."""
    with running_echo(url, tmp_path, {"ANABRANCH_POOL_MAX_CONNECTIONS": "2"}) as (echo, channel):
        key, other = echo.new_key("doomed"), echo.new_key("other")
        streams = [subscribe(channel, key, after) for after in (0, behaviour.PAUSES)]
        stub = change_pb2_grpc.ChangeServiceStub(channel)
        request = change_pb2.GetRequest(db_name="shop", after=behaviour.HOLDS_POSTGRES, max_bytes=4_000)
        held = [stub.Get.future(request, timeout=20, metadata=bearer(other)) for _ in range(2)]
        until(lambda: rows(url, "select count(*) from pg_stat_activity where query = 'select pg_sleep(4.0)'") == [(2,)])
        revoke(url, key)
        revoked = time.monotonic()
        for stream in streams:
            assert ending(stream) == ENDED
        assert time.monotonic() - revoked < within_s
        for call in held:
            call.result()


def test_a_key_whose_row_is_gone_ends_too(url: str, tmp_path: Path) -> None:
    with running_echo(url, tmp_path) as (echo, channel):
        key = echo.new_key("doomed")
        stream = subscribe(channel, key)
        by_removal(url, key)
        removed = time.monotonic()
        assert ending(stream) == ENDED
        assert time.monotonic() - removed < 1


def test_the_session_that_hears_of_revocations_comes_back(url: str, tmp_path: Path) -> None:
    with running_echo(url, tmp_path) as (echo, channel):
        assert rows(url, f"select 1 from {SESSION}") == [], "nobody has shown a key yet"
        subscribe(channel, echo.new_key("other"))
        until(lambda: rows(url, f"select 1 from {SESSION}") == [(1,)])
        for _ in range(2):
            assert rows(url, f"select pg_terminate_backend(pid) from {SESSION}") == [(True,)]
            key = echo.new_key("doomed")
            stream = subscribe(channel, key)
            echo.revoke(key)
            revoked = time.monotonic()
            assert ending(stream) == ENDED
            assert time.monotonic() - revoked < 1
            until(lambda: rows(url, f"select 1 from {SESSION}") == [(1,)])


def test_a_flood_of_notifications_by_anybody_delays_no_revocation(url: str, tmp_path: Path) -> None:
    over, sent = threading.Event(), 0

    def flood() -> None:
        nonlocal sent
        with connect(url, application_name="test", autocommit=True) as conn:
            while not over.is_set():
                conn.execute("select pg_notify('anabranch_keys', n::text) from generate_series(1, 1000) n")
                sent += 1000

    with running_echo(url, tmp_path) as (echo, channel):
        key = echo.new_key("doomed")
        stream = subscribe(channel, key)
        flooding = threading.Thread(target=flood)
        flooding.start()
        try:
            until(lambda: DEAF in echo.child.program.log.read_text(), 20, "no flood is noticed")
            before = sent
            echo.revoke(key)
            revoked = time.monotonic()
            assert ending(stream) == ENDED
            took_s, during = time.monotonic() - revoked, sent - before
        finally:
            over.set()
            flooding.join()
    print(f"{sent} notifications; the revocation among {during} of them took {took_s:.3f} s")
    assert during >= 1_000, "no flood"
    assert took_s < 1
