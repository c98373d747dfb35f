"""Where credentials may go without TLS, and what becomes of calls whose channel is closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from anabranch.client import CallFailed, RemoteDb, TokenFailed
from anabranch.client.remote import is_loopback
from anabranch.runtime.errors import CallError, to_status
from anabranch.v1 import change_pb2, errors_pb2, ingest_pb2, resolver_pb2, snapshot_pb2

CALLS: dict[str, Callable[[RemoteDb], object]] = {
    "send": lambda remote: remote.send(ingest_pb2.SendRequest()),
    "send_stream": lambda remote: next(remote.send_stream(iter([]), 5.0)),
    "get": lambda remote: remote.get(change_pb2.GetRequest()),
    "get_ahead": lambda remote: remote.get_ahead(change_pb2.GetRequest()).answer(),
    "subscribe": lambda remote: next(remote.subscribe(change_pb2.SubscribeRequest())),
    "find_common": lambda remote: remote.find_common(change_pb2.FindCommonRequest()),
    "describe": lambda remote: remote.describe(snapshot_pb2.DescribeRequest()),
    "pull": lambda remote: next(remote.pull(snapshot_pb2.PullRequest())),
    "compare": lambda remote: next(remote.compare(iter([]))),
    "get_verdict": lambda remote: remote.get_verdict(resolver_pb2.GetVerdictRequest()),
    "explain": lambda remote: remote.explain(resolver_pb2.ExplainRequest()),
    "list_conflicts": lambda remote: remote.list_conflicts(resolver_pb2.ListConflictsRequest()),
}


class Closes(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """An application's interceptor, in which somebody closes the remote."""

    remote: RemoteDb

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        self.remote.close()
        return continuation(client_call_details, request)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        self.remote.close()
        return continuation(client_call_details, request)

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        self.remote.close()
        return continuation(client_call_details, request_iterator)


@pytest.mark.parametrize(
    ("address", "stays"),
    [
        ("localhost:7400", True),
        ("127.0.0.1:7400", True),
        ("127.8.8.8:7400", True),
        ("[::1]:7400", True),
        ("unix:/run/anabranch.sock", True),
        ("localhost.example.com:7400", False),
        ("127.example.com:7400", False),
        ("[::1:2]:7400", False),
        ("192.168.0.7:7400", False),
        ("gateway:7400", False),
    ],
)
def test_only_what_is_this_machine_is_loopback(address: str, stays: bool) -> None:
    assert is_loopback(address) is stays


def test_every_call_of_the_remote_is_tried_here() -> None:
    methods = {name for name, value in vars(RemoteDb).items() if callable(value) and not name.startswith("_")}
    assert methods - {"close", "token", "renewed", "judged"} == set(CALLS)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("intercepted", [False, True])
def test_a_channel_closed_just_before_a_call_is_a_failed_call(
    call: Callable[[RemoteDb], object], intercepted: bool
) -> None:
    def token() -> str:
        remote.close()
        return "token"

    if intercepted:
        closes = Closes()
        remote = closes.remote = RemoteDb("127.0.0.1:1", interceptors=[closes])
    else:
        remote = RemoteDb("127.0.0.1:1", token=token)
    with pytest.raises(CallFailed) as caught:
        call(remote)
    assert caught.value.code == "UNAVAILABLE"
    assert "closed" in caught.value.message
    assert caught.value.again


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("error", "code"), [(ValueError("no such key"), "UNAUTHENTICATED"), (ConnectionError("no network"), "UNAVAILABLE")]
)
def test_a_function_that_raises_is_a_failed_call_that_says_so(
    call: Callable[[RemoteDb], object], error: Exception, code: str
) -> None:
    def token() -> str:
        raise error

    with pytest.raises(TokenFailed, match=str(error)) as caught:
        call(RemoteDb("127.0.0.1:1", token=token))
    assert caught.value.__cause__ is error
    assert (caught.value.code, caught.value.again) == (code, True)


BAD = ["planted\nsecret", "plänted", "planted\0", b"planted", 7]


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_token_that_can_not_be_sent_is_refused_and_not_quoted(bad: Any) -> None:
    """gRPC's own error has all metadata in it, and would be in logs."""
    with pytest.raises(TokenFailed) as caught:
        RemoteDb("127.0.0.1:1", token=lambda: bad).get(change_pb2.GetRequest())
    assert "planted" not in str(caught.value)
    assert caught.value.__cause__ is None
    if isinstance(bad, str):
        with pytest.raises(ValueError, match="can't be sent"):
            RemoteDb("127.0.0.1:1", token=bad)


def test_a_line_end_around_a_token_is_left_out() -> None:
    assert RemoteDb("127.0.0.1:1", token="abc\n").token() == "abc"
    assert RemoteDb("127.0.0.1:1", token=lambda: " abc\r\n").token() == "abc"
    assert RemoteDb("127.0.0.1:1").token() is None


def expired(request: object, context: grpc.ServicerContext) -> Any:
    status = to_status(CallError(errors_pb2.REASON_CREDENTIALS_EXPIRED, "the credentials have expired"))
    context.set_trailing_metadata(tuple(status.trailing_metadata))
    context.abort(status.code, status.details)


@contextmanager
def serving(change_calls: dict[str, grpc.RpcMethodHandler[Any, Any]]) -> Iterator[str]:
    """The address of a server that has these calls of ChangeService."""
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        service = grpc.method_handlers_generic_handler("anabranch.v1.ChangeService", change_calls)
        server.add_generic_rpc_handlers((service,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


@pytest.mark.parametrize("streamed", [False, True], ids=["a call", "a stream"])
def test_a_call_goes_on_with_another_token_than_its_own_alone(streamed: bool) -> None:
    get = grpc.unary_unary_rpc_method_handler(
        expired, change_pb2.GetRequest.FromString, change_pb2.GetResponse.SerializeToString
    )
    subscribe = grpc.unary_stream_rpc_method_handler(
        expired, change_pb2.SubscribeRequest.FromString, change_pb2.SubscribeResponse.SerializeToString
    )
    given = "the first"
    with serving({"Get": get, "Subscribe": subscribe}) as address:
        remote = RemoteDb(address, token=lambda: given)
        with pytest.raises(CallFailed) as caught:
            CALLS["subscribe" if streamed else "get"](remote)
        assert caught.value.reason == "CREDENTIALS_EXPIRED"
        assert not remote.renewed(caught.value), "the app has no other one"
        given = "the next"
        assert remote.renewed(caught.value)
        assert given not in f"{caught.value!r} {caught.value}"
        remote.close()


def test_streams_that_wait_when_their_channel_is_closed_are_failed_calls() -> None:
    def subscribe(request: object, context: grpc.ServicerContext) -> Iterator[change_pb2.SubscribeResponse]:
        yield change_pb2.SubscribeResponse()
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait()

    handler = grpc.unary_stream_rpc_method_handler(
        subscribe,
        change_pb2.SubscribeRequest.FromString,
        change_pb2.SubscribeResponse.SerializeToString,
    )
    with serving({"Subscribe": handler}) as address:
        remote = RemoteDb(address)
        stream = remote.subscribe(change_pb2.SubscribeRequest())
        next(stream)
        remote.close()
        for _ in range(2):
            with pytest.raises(CallFailed) as caught:
                next(stream)
            assert caught.value.again
