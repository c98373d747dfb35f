"""Everything around a call: credentials, errors, limits, an orderly end."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from anabranch import clock, faults
from anabranch.runtime import metrics
from anabranch.runtime.errors import CODES, reason_name
from anabranch.store.session.engine import connect
from anabranch.testkit import echo_service as behaviour
from anabranch.testkit.echo import (
    SUCCESS,
    Echo,
    bearer,
    echo_service,
    ending,
    failing,
    failure,
    get,
    now_ms,
    outcome,
    subscribe,
)
from anabranch.testkit.exposition import page, shown
from anabranch.testkit.waiting import until

# Their processes are shared by its tests.
pytestmark = [pytest.mark.xdist_group("runtime-calls"), pytest.mark.usefixtures("shop")]


@pytest.fixture(scope="module")
def echo(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Echo]:
    with echo_service(url, tmp_path_factory.mktemp("echo")) as running:
        running.wait_ready()
        yield running


@pytest.fixture(scope="module")
def channel(echo: Echo) -> Iterator[grpc.Channel]:
    with echo.channel() as made:
        yield made


@pytest.fixture(scope="module")
def key(echo: Echo) -> str:
    return echo.new_key("alice", database="shop")


@pytest.mark.slow
def test_the_principal_is_the_keys_subject(channel: grpc.Channel, key: str, echo: Echo) -> None:
    assert get(channel, key).next_page_token == b"alice"
    # The name stays when the key is replaced.
    assert get(channel, echo.new_key("alice")).next_page_token == b"alice"


@pytest.mark.parametrize(
    "credentials",
    [None, "", "nonsense", "ak_", "ak_0123456789abcdef_" + "0" * 64, "a.b.c"],
    ids=["none", "empty", "nonsense", "no-key", "unknown-key", "no-token"],
)
def test_without_valid_credentials_a_call_is_unauthenticated(channel: grpc.Channel, credentials: str | None) -> None:
    assert failing(lambda: get(channel, credentials)) == ("UNAUTHENTICATED", "UNAUTHENTICATED")


def test_a_known_id_with_another_secret_is_unauthenticated(channel: grpc.Channel, key: str) -> None:
    get(channel, key)
    other = key[:-1] + ("0" if key[-1] != "0" else "1")
    assert failing(lambda: get(channel, other)) == ("UNAUTHENTICATED", "UNAUTHENTICATED")


def test_the_secret_is_kept_nowhere(echo: Echo, key: str) -> None:
    with connect(echo.database_url, application_name="test", autocommit=True) as conn:
        rows = conn.execute("select k::text, secret_hash from anabranch.api_keys k").fetchall()
    secret = key.rpartition("_")[2]
    assert rows
    assert all(secret not in text and bytes.fromhex(secret) != stored for text, stored in rows)


def test_an_expired_key_is_told_from_an_unknown_one(channel: grpc.Channel, echo: Echo) -> None:
    expired = echo.new_key("alice", expires_ms=now_ms() - 1)
    assert failing(lambda: get(channel, expired)) == ("UNAUTHENTICATED", "CREDENTIALS_EXPIRED")


def test_a_key_opens_its_own_database_only(channel: grpc.Channel, key: str) -> None:
    denied = ("PERMISSION_DENIED", "PERMISSION_DENIED")
    assert failing(lambda: get(channel, key, db_name="another")) == denied
    assert failing(lambda: get(channel, key, db_name="no such database")) == denied
    assert failing(lambda: get(channel, key, db_name="")) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


def test_admin_calls_need_the_role(channel: grpc.Channel, key: str, echo: Echo) -> None:
    denied = ("PERMISSION_DENIED", "PERMISSION_DENIED")
    assert failing(lambda: get(channel, key, behaviour.NEEDS_ADMIN)) == denied
    assert get(channel, echo.new_key("root", role="admin"), behaviour.NEEDS_ADMIN).next_page_token == b"root"


def test_a_revoked_key_is_refused_within_seconds(channel: grpc.Channel, echo: Echo) -> None:
    key = echo.new_key("bob")
    get(channel, key)
    echo.revoke(key)
    started = time.monotonic()
    until(lambda: outcome(lambda: get(channel, key)) == ("UNAUTHENTICATED", "CREDENTIALS_EXPIRED"), 10)
    assert time.monotonic() - started < 3


@pytest.mark.parametrize("after", [0, behaviour.PAUSES], ids=["busy", "silent"])
def test_an_open_stream_ends_with_its_key(channel: grpc.Channel, echo: Echo, after: int) -> None:
    doomed, other = echo.new_key("bob"), echo.new_key("bob")
    stream, untouched = subscribe(channel, doomed, after), subscribe(channel, other)
    echo.revoke(doomed)
    started = time.monotonic()
    assert ending(stream) == ("UNAUTHENTICATED", "CREDENTIALS_EXPIRED")
    assert time.monotonic() - started < 3
    next(untouched)
    untouched.cancel()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_an_open_stream_ends_when_its_key_expires(channel: grpc.Channel, echo: Echo) -> None:
    expires_ms = now_ms() + 1_500
    stream = subscribe(channel, echo.new_key("bob", expires_ms=expires_ms))
    assert ending(stream) == ("UNAUTHENTICATED", "CREDENTIALS_EXPIRED")
    assert 0 <= now_ms() - expires_ms < 2_500


def test_a_slow_reader_is_ended_with_its_key(channel: grpc.Channel, echo: Echo) -> None:
    """Also where the server waits for the reader rather than for its own next message."""
    doomed = echo.new_key("slow")
    stream = subscribe(channel, doomed, behaviour.FLOODS)
    ended = echo.child.program.log.read_text().count("streams ended with their credentials")
    echo.revoke(doomed)
    until(lambda: echo.child.program.log.read_text().count("streams ended with their credentials") > ended, 10)
    assert ending(stream) == ("UNAUTHENTICATED", "CREDENTIALS_EXPIRED")


def test_a_stream_that_is_ended_as_it_begins_says_why(channel: grpc.Channel, key: str) -> None:
    """Its caller would wait for ever: what is sent at that moment must not keep the status from following it."""
    ended = failing(lambda: list(subscribe(channel, key, behaviour.ENDS, timeout_s=5)))
    assert ended == ("RESOURCE_EXHAUSTED", "OVERLOADED")


VANISHES = """
import os, sys, grpc
from anabranch.testkit.echo import bearer
from anabranch.v1 import change_pb2, change_pb2_grpc
address, key, after = sys.argv[1:]
stub = change_pb2_grpc.ChangeServiceStub(grpc.insecure_channel(address))
stream = stub.Subscribe(change_pb2.SubscribeRequest(db_name="shop", after=int(after)), metadata=bearer(key))
next(stream)
print("here", flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [0, behaviour.PAUSES, behaviour.FLOODS], ids=["busy", "silent", "flood"])
def test_a_client_that_vanishes_leaves_nothing_and_is_no_fault(url: str, tmp_path: Path, after: int) -> None:
    with echo_service(url, tmp_path) as echo:
        echo.wait_ready()
        command = [sys.executable, "-c", VANISHES, echo.address, echo.new_key("alice"), str(after)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.stdout == "here\n"
        until(lambda: shown(echo.metrics_address, "anabranch_open_streams") == 0, 10)
        assert "call failed" not in echo.child.log_tail()
        assert "exception" not in echo.child.log_tail()


def test_a_listed_failure_has_its_reason_and_metadata(channel: grpc.Channel, key: str) -> None:
    assert failing(lambda: get(channel, key, behaviour.ABORTS)) == ("OUT_OF_RANGE", "BEHIND_FLOOR")


def test_an_unforeseen_error_tells_nothing_but_where_to_look(channel: grpc.Channel, key: str, echo: Echo) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        get(channel, key, behaviour.RAISES)
    assert failure(caught.value) == ("INTERNAL", "SERVER_FAULT")
    told = str(caught.value.details()) + str(caught.value.trailing_metadata())
    assert behaviour.SECRET not in told
    assert "RuntimeError" not in told
    trace_id = str(caught.value.details()).rpartition(" ")[2]
    until(lambda: trace_id in echo.child.log_tail(), 10)
    lines = [json.loads(line) for line in echo.child.log_tail().splitlines()[1:]]
    logged = next(line for line in lines if line.get("fault_trace_id") == trace_id)
    assert logged["service"] == "echo"
    assert logged["exception"][0]["exc_type"] == "RuntimeError"
    assert logged["exception"][0]["frames"][-1]["name"] == "_behave", "the place in the code is told"
    assert behaviour.SECRET not in echo.child.log_tail(), "the value is not, in the log either"
    # Variables hold rows and credentials: they stay out of logs.
    assert "locals" not in logged["exception"][0]["frames"][0]


def test_a_message_that_is_too_large_is_told_so(channel: grpc.Channel, key: str) -> None:
    too_large = b"x" * (4 * 1024 * 1024 + 1)
    refused = ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")
    assert failing(lambda: get(channel, key, page_token=too_large)) == refused
    assert get(channel, key, page_token=too_large[:-1000]).next_page_token == b"alice"
    # Credentials come first: who has none learns no limit.
    assert failing(lambda: get(channel, None, page_token=too_large)) == ("UNAUTHENTICATED", "UNAUTHENTICATED")


@pytest.mark.parametrize("method", ["Get", "Subscribe"])
def test_bytes_that_are_no_message_are_an_invalid_request(channel: grpc.Channel, key: str, method: str) -> None:
    path = f"/{behaviour.NAME}/{method}"
    metadata = bearer(key)
    if method == "Get":
        call = channel.unary_unary(path, lambda raw: raw, lambda raw: raw)
        assert failing(lambda: call(b"\xff\xff", timeout=5, metadata=metadata)) == (
            "INVALID_ARGUMENT",
            "INVALID_REQUEST",
        )
    else:
        open_stream = channel.unary_stream(path, lambda raw: raw, lambda raw: raw)
        assert ending(open_stream(b"\xff\xff", timeout=5, metadata=metadata)) == ("INVALID_ARGUMENT", "INVALID_REQUEST")


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel, key: str) -> None:
    call = channel.unary_unary(f"/{behaviour.NAME}/Nothing", lambda raw: raw, lambda raw: raw)
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", timeout=5, metadata=bearer(key))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_reflection_is_open_on_loopback(channel: grpc.Channel) -> None:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    answer = next(stub.ServerReflectionInfo(iter([request]), timeout=5))
    assert behaviour.NAME in {service.name for service in answer.list_services_response.service}


def test_a_traceparent_is_handed_on_when_tracing_is_off(channel: grpc.Channel, key: str) -> None:
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert get(channel, key, 0, ("traceparent", traceparent)).state.settled.epoch == traceparent
    assert get(channel, key).state.settled.epoch == ""


@pytest.mark.slow
def test_pings_every_fraction_of_a_second_are_no_abuse(echo: Echo, key: str) -> None:
    """Case L08, faster: a server with gRPC's defaults sends GOAWAY at the third ping without data."""
    options = [
        ("grpc.keepalive_time_ms", 100),
        ("grpc.keepalive_timeout_ms", 2_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_time_between_pings_ms", 100),
    ]
    with grpc.insecure_channel(echo.address, options=options) as pinging:
        stream = subscribe(pinging, key, behaviour.PAUSES)
        ended = threading.Event()
        stream.add_callback(ended.set)  # type: ignore[attr-defined]
        assert not ended.wait(2.5), "the stream ended"
        assert get(pinging, key).next_page_token == b"alice"
        stream.cancel()  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_principal_that_calls_too_often_delays_only_itself(url: str, tmp_path: Path) -> None:
    limits = {"ANABRANCH_LIMIT_CALLS_PER_S": "2", "ANABRANCH_LIMIT_CALLS_BURST": "5"}
    with echo_service(url, tmp_path, limits) as echo, echo.channel() as channel:
        echo.wait_ready()
        busy, quiet = echo.new_key("busy"), echo.new_key("quiet")
        outcomes = [outcome(lambda: get(channel, busy)) for _ in range(12)]
        assert outcomes[:5] == [SUCCESS] * 5
        assert set(outcomes) == {SUCCESS, ("RESOURCE_EXHAUSTED", "OVERLOADED")}
        assert get(channel, quiet).next_page_token == b"quiet"
        # Another key of the same principal has no bucket of its own.
        assert failing(lambda: [get(channel, echo.new_key("busy")) for _ in range(5)]) == (
            "RESOURCE_EXHAUSTED",
            "OVERLOADED",
        )
        time.sleep(1.1)
        assert get(channel, busy).next_page_token == b"busy"


def test_open_streams_of_a_principal_are_limited(url: str, tmp_path: Path) -> None:
    with echo_service(url, tmp_path, {"ANABRANCH_LIMIT_OPEN_STREAMS": "2"}) as echo, echo.channel() as channel:
        echo.wait_ready()
        busy, quiet = echo.new_key("busy"), echo.new_key("quiet")
        first, _second = subscribe(channel, busy), subscribe(channel, busy)
        assert failing(lambda: subscribe(channel, busy)) == ("RESOURCE_EXHAUSTED", "OVERLOADED")
        subscribe(channel, quiet)
        first.cancel()  # type: ignore[attr-defined]
        until(lambda: outcome(lambda: subscribe(channel, busy)) == SUCCESS, 10)


@pytest.mark.slow
def test_an_armed_fault_point_kills_the_process_once(url: str, tmp_path: Path) -> None:
    faults_file, clock_file = tmp_path / "faults", tmp_path / "clock"
    environment = {"ANABRANCH_FAULT_FILE": str(faults_file), "ANABRANCH_CLOCK_FILE": str(clock_file)}
    with echo_service(url, tmp_path, environment) as echo, echo.channel() as channel:
        echo.wait_ready()
        key = echo.new_key("alice")
        assert get(channel, key, behaviour.DIES).next_page_token == b"alice", "nothing is armed"
        faults.arm(faults_file, "before_answer")
        with pytest.raises(grpc.RpcError):
            get(channel, key, behaviour.DIES)
        echo.child.wait_died(0, 5)
        assert echo.child.deaths == 1
        assert faults.armed(faults_file) == []
        echo.child.start()
        echo.wait_ready()
        assert get(channel, key, behaviour.DIES).next_page_token == b"alice", "once"
        clock.set_offset(clock_file, 86_400_000)
        assert abs(get(channel, key).state.server_time_ms - now_ms() - 86_400_000) < 5_000
        clock.set_offset(clock_file, 0)
        assert abs(get(channel, key).state.server_time_ms - now_ms()) < 5_000


def test_metrics_are_those_of_the_table(echo: Echo, channel: grpc.Channel, key: str) -> None:
    get(channel, key)
    with pytest.raises(grpc.RpcError):
        get(channel, None)
    text = page(echo.metrics_address)
    declared = {metrics.prometheus_name(metric): metric for metric in metrics.METRICS}
    kinds = {line.split(" ")[2]: line.split(" ")[3] for line in text.splitlines() if line.startswith("# TYPE")}
    own = {name: kind for name, kind in kinds.items() if name.startswith("anabranch")}
    assert {"anabranch_calls_total", "anabranch_call_duration_seconds", "anabranch_ready"} <= set(own)
    assert {name: declared[name].kind for name in own} == own
    assert 'anabranch_calls_total{code="OK",method="/anabranch.v1.ChangeService/Get"}' in text
    assert "anabranch_ready 1.0" in text
    assert reason_name(next(iter(CODES))) in text
    assert key not in text
    assert "alice" not in text
