"""A device's access to the server: channels, credentials, deadlines, and failures as one kind of error."""

from __future__ import annotations

import contextlib
import ipaddress
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry import propagate, trace

from anabranch import limits
from anabranch.client.call_ahead import CallAhead
from anabranch.client.channel import SharedChannel
from anabranch.client.errors import AppOutdated, CallFailed, WrongPrincipal
from anabranch.client.token import Token, given, sendable
from anabranch.v1 import change_pb2, ingest_pb2, resolver_pb2, snapshot_pb2
from anabranch.v1.change_pb2_grpc import ChangeServiceStub as _Changes
from anabranch.v1.ingest_pb2_grpc import IngestServiceStub as _Ingest
from anabranch.v1.resolver_pb2_grpc import ConflictResolverServiceStub as _Resolver
from anabranch.v1.snapshot_pb2_grpc import SnapshotServiceStub as _Snapshot

T = TypeVar("T")
Method: TypeAlias = Callable[[grpc.Channel], Callable[..., T]]
"""A service's method on a channel."""

CALL_TIMEOUT_S = 30.0
PAGE_TIMEOUT_S = 120.0
SEND_TIMEOUT_S = 45.0
STREAM_TIMEOUT_S = 3600.0
_LEAST_S = 10.0
"""For a call that is made again with another token, however late that is found."""
SLOWEST_BYTES_PER_S = 16_384
"""The rate that even a poor network carries: with a shorter deadline the same call would fail for ever."""

EXPIRED = "CREDENTIALS_EXPIRED"
_DETAILS = "grpc-status-details-bin"
_NEEDED = "needed_version"
_OPTIONS = (
    # Backoff is the sync loop's: a channel that waits on its own would not notice a network that is back.
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Without pings a server, or a network, that is silently gone would be noticed only at a call's deadline.
    ("grpc.keepalive_time_ms", limits.DEVICE_PING_AFTER_MS),
    ("grpc.keepalive_timeout_ms", limits.PING_ANSWER_MS),
    # How long a ping's answer is waited for where TCP itself still answers; a minute by default.
    ("grpc.http2.ping_timeout_ms", limits.PING_ANSWER_MS),
    # Else pings become rarer on an idle connection.
    ("grpc.http2.max_pings_without_data", 0),
)
_AGAIN = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
_tracer = trace.get_tracer("anabranch.client")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS beyond the system's own roots. All three are PEM; a certificate needs its key."""

    root_certificates: bytes | None = None
    certificate_chain: bytes | None = None
    private_key: bytes | None = None


def is_loopback(address: str) -> bool:
    """Whether "host:port" stays on this machine, judged by the whole text and not by its beginning."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class RemoteDb:
    """The services' addresses: ``address`` ("host:port") for all, or one for each; ``changes`` is ``snapshot`` unless
    given. ``token`` is an API key or JWT, or a function that gives one. The function is called for every call, from any
    thread, also from several at once, so it should keep what it gives until that is about to end. Where the server
    finds a token expired, the function is called once more, and what was under way goes on with another token.

    TLS is used, except to loopback without ``tls``; elsewhere plaintext needs ``allow_plaintext``. ``interceptors`` are
    gRPC client interceptors.

    Raises:
        ValueError: an address is missing, or the token can't be sent.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        ingest: str | None = None,
        snapshot: str | None = None,
        changes: str | None = None,
        resolver: str | None = None,
        token: Token = None,
        tls: Tls | None = None,
        allow_plaintext: bool = False,
        interceptors: Sequence[Any] = (),
    ) -> None:
        snapshot = snapshot or address
        addresses = {
            "ingest": ingest or address,
            "snapshot": snapshot,
            "changes": changes or snapshot,
            "resolver": resolver or address,
        }
        lacking = [name for name, value in addresses.items() if not value]
        if lacking:
            raise ValueError(f"no address for {', '.join(lacking)}: give one for all, or one for each service")
        self._addresses: dict[str, str] = {name: value for name, value in addresses.items() if value}
        self._token: Token = sendable(token) if isinstance(token, str) else token
        self._judging = threading.local()
        self._tls = tls
        self._allow_plaintext = allow_plaintext
        self._interceptors = list(interceptors)
        self._channels: dict[str, tuple[grpc.Channel, SharedChannel]] = {}
        self._lock = threading.Lock()

    def token(self) -> str | None:
        """The credentials for the next call. Raises TokenFailed, and what a judge raises (``judged``)."""
        token = given(self._token)
        judge: Callable[[str | None], None] | None = getattr(self._judging, "judge", None)
        if judge is not None:
            judge(token)
        return token

    @contextlib.contextmanager
    def judged(self, judge: Callable[[str | None], None]) -> Iterator[None]:
        """Have every token that this thread gets inside the block judged, before a call is made with it."""
        before = getattr(self._judging, "judge", None)
        self._judging.judge = judge
        try:
            yield
        finally:
            self._judging.judge = before

    def renewed(self, error: CallFailed) -> bool:
        """Whether a call failed because its token had expired, and the app has another one by now. Raises
        TokenFailed."""
        return error.reason == EXPIRED and self._another(error._token) is not None

    def _another(self, expired: str | None) -> str | None:
        token = self.token() if callable(self._token) else None
        return None if token == expired else token

    def _channel(self, service: str) -> tuple[grpc.Channel, SharedChannel]:
        """The service's channel with the interceptors, and the bare one."""
        address = self._addresses[service]
        with self._lock:
            channels = self._channels.get(address)
            if channels is None:
                shared = SharedChannel(self._open(address))
                channels = self._channels[address] = (grpc.intercept_channel(shared, *self._interceptors), shared)
            return channels

    def _open(self, address: str) -> grpc.Channel:
        if self._tls is None and (self._allow_plaintext or is_loopback(address)):
            return grpc.insecure_channel(address, options=_OPTIONS)
        tls = self._tls or Tls()
        credentials = grpc.ssl_channel_credentials(tls.root_certificates, tls.private_key, tls.certificate_chain)
        return grpc.secure_channel(address, credentials, options=_OPTIONS)

    def close(self) -> None:
        """Close the channels; a later call opens new ones."""
        with self._lock:
            for _, shared in self._channels.values():
                shared.close()
            self._channels.clear()

    def _metadata(self, token: str | None) -> list[tuple[str, str]]:
        headers: dict[str, str] = {}
        propagate.inject(headers)
        if token:
            headers["authorization"] = f"Bearer {token}"
        return list(headers.items())

    def _begin(
        self, name: str, service: str, method: Method[T], request: Any, timeout_s: float
    ) -> tuple[T, SharedChannel, str | None]:
        """Return the call's answer, or the begun stream; its channel, and its token."""
        with _tracer.start_as_current_span(f"anabranch.client.{name}"):
            channel, shared = self._channel(service)
            token = self.token()
            try:
                with failures(shared, token):
                    return method(channel)(request, timeout=timeout_s, metadata=self._metadata(token)), shared, token
            except CallFailed as error:
                another = self._another(token) if error.reason == EXPIRED else None
                if another is None:
                    raise
            # Any call may be made twice: what it asks for is done once.
            with failures(shared, another):
                return method(channel)(request, timeout=timeout_s, metadata=self._metadata(another)), shared, another

    def _call(self, name: str, service: str, method: Method[T], request: Any, timeout_s: float) -> T:
        return self._begin(name, service, method, request, timeout_s)[0]

    def _stream(self, name: str, service: str, method: Method[Any], request: Any, timeout_s: float) -> Stream[Any]:
        return Stream(*self._begin(name, service, method, request, timeout_s))

    def send(self, request: ingest_pb2.SendRequest, timeout_s: float = SEND_TIMEOUT_S) -> ingest_pb2.SendResponse:
        """Raises CallFailed and WrongPrincipal, as all that follow."""
        return self._call("send", "ingest", lambda c: _Ingest(c).Send, request, timeout_s)

    def send_stream(
        self, requests: Iterator[ingest_pb2.SendStreamRequest], timeout_s: float
    ) -> Stream[ingest_pb2.SendStreamResponse]:
        """The responses as they come."""
        return self._stream("send_stream", "ingest", lambda c: _Ingest(c).SendStream, requests, timeout_s)

    def get(self, request: change_pb2.GetRequest) -> change_pb2.GetResponse:
        """One page."""
        return self._call("get", "changes", lambda c: _Changes(c).Get, request, PAGE_TIMEOUT_S)

    def get_ahead(self, request: change_pb2.GetRequest) -> CallAhead[change_pb2.GetResponse]:
        """One page, asked for and not waited for. Raises nothing: a failure is the answer."""
        deadline_s = time.monotonic() + PAGE_TIMEOUT_S
        try:
            channel, shared = self._channel("changes")
            token = self.token()
            with failures(shared, token):
                get: Any = _Changes(channel).Get
                call = get.future(request, timeout=PAGE_TIMEOUT_S, metadata=self._metadata(token))
        except CallFailed as error:
            return CallAhead.failed(error)

        def answer() -> change_pb2.GetResponse:
            response: change_pb2.GetResponse
            try:
                with failures(shared, token):
                    response = _result(call)
                    return response
            except CallFailed as error:
                another = self._another(token) if error.reason == EXPIRED else None
                if another is None:
                    raise
            left_s = max(_LEAST_S, deadline_s - time.monotonic())
            with failures(shared, another):
                response = get(request, timeout=left_s, metadata=self._metadata(another))
                return response

        return CallAhead(answer, call.cancel)

    def subscribe(self, request: change_pb2.SubscribeRequest) -> Stream[change_pb2.SubscribeResponse]:
        """Pages and heartbeats as they come, for an hour at most."""
        return self._stream("subscribe", "changes", lambda c: _Changes(c).Subscribe, request, STREAM_TIMEOUT_S)

    def find_common(self, request: change_pb2.FindCommonRequest) -> change_pb2.FindCommonResponse:
        """The last of some positions that the server has."""
        return self._call("find_common", "changes", lambda c: _Changes(c).FindCommon, request, CALL_TIMEOUT_S)

    def describe(
        self, request: snapshot_pb2.DescribeRequest, timeout_s: float = CALL_TIMEOUT_S
    ) -> snapshot_pb2.DescribeResponse:
        """The database's tables."""
        return self._call("describe", "snapshot", lambda c: _Snapshot(c).Describe, request, timeout_s)

    def pull(self, request: snapshot_pb2.PullRequest) -> Stream[snapshot_pb2.PullResponse]:
        """The chunks as they come, for an hour at most."""
        return self._stream("pull", "snapshot", lambda c: _Snapshot(c).Pull, request, STREAM_TIMEOUT_S)

    def compare(
        self, requests: Iterator[snapshot_pb2.CompareRequest], timeout_s: float = STREAM_TIMEOUT_S
    ) -> Stream[snapshot_pb2.CompareResponse]:
        """The answers as they come, for an hour at most."""
        return self._stream("compare", "snapshot", lambda c: _Snapshot(c).Compare, requests, timeout_s)

    def get_verdict(self, request: resolver_pb2.GetVerdictRequest) -> resolver_pb2.GetVerdictResponse:
        """Verdicts that are known."""
        return self._call("get_verdict", "resolver", lambda c: _Resolver(c).GetVerdict, request, CALL_TIMEOUT_S)

    def explain(self, request: resolver_pb2.ExplainRequest) -> resolver_pb2.ExplainResponse:
        """The verdict that a batch would get."""
        return self._call("explain", "resolver", lambda c: _Resolver(c).Explain, request, CALL_TIMEOUT_S)

    def list_conflicts(self, request: resolver_pb2.ListConflictsRequest) -> resolver_pb2.ListConflictsResponse:
        """One page of conflicts."""
        return self._call("list_conflicts", "resolver", lambda c: _Resolver(c).ListConflicts, request, CALL_TIMEOUT_S)


def _result(call: Any) -> Any:
    """The answer of a call that was begun. Raises grpc.RpcError, and CallFailed where it was cancelled here."""
    try:
        return call.result()
    except grpc.FutureCancelledError as error:
        raise CallFailed(grpc.StatusCode.CANCELLED.name, "", "the call is not wanted any more", again=True) from error


def applying(traceparent: str) -> contextlib.AbstractContextManager[object]:
    """A span around the work on a page, a child of the server's span; none where the page was not traced."""
    if not traceparent:
        return contextlib.nullcontext()
    context = propagate.extract({"traceparent": traceparent})
    return _tracer.start_as_current_span("anabranch.client.reading.apply", context=context)


M = TypeVar("M", bound=Message)


class Stream(Iterator[M]):
    """A stream of responses whose failures are CallFailed, and that can be cancelled. ``token``: its credentials."""

    def __init__(self, call: Any, channel: SharedChannel, token: str | None) -> None:
        self._responses = call
        self._channel = channel
        self.token = token

    def __next__(self) -> M:
        with failures(self._channel, self.token):
            response: M = next(self._responses)
            return response

    def cancel(self) -> None:
        """End the call; a thread that waits for a response gets CallFailed with the code CANCELLED."""
        self._responses.cancel()


class failures:  # noqa: N801 - a context manager, read as a phrase
    """Turns a grpc.RpcError into CallFailed, or WrongPrincipal or AppOutdated where that is its reason; and a
    ValueError, once the channel is closed. ``token``: the call's."""

    def __init__(self, channel: SharedChannel, token: str | None) -> None:
        self._channel = channel
        self._token = token

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, grpc.RpcError):
            call: Any = error
            code = call.code()
            metadata = dict(call.trailing_metadata() or ())
            reason = error_reason(metadata.get(_DETAILS, b""))
            if reason == WrongPrincipal.REASON:
                raise WrongPrincipal(call.details()) from error
            if reason == AppOutdated.REASON:
                needed = error_metadata(metadata.get(_DETAILS, b"")).get(_NEEDED, "")
                raise AppOutdated(call.details(), int(needed) if needed.isdecimal() else 0) from error
            failed = CallFailed(code.name, reason, call.details() or "", code in _AGAIN)
            failed._token = self._token
            raise failed from error
        if isinstance(error, ValueError) and self._channel.closed:
            message = "the connection was closed while the call was begun; a new call opens another"
            raise CallFailed(grpc.StatusCode.UNAVAILABLE.name, "", message, again=True) from error


def error_reason(status: bytes) -> str:
    """The reason in the ErrorInfo of a serialized google.rpc.Status, "" where it has no reason of this project."""
    try:
        return b"".join(_fields(_error_info(status), 1)).decode()
    except (DecodeError, UnicodeDecodeError):
        return ""


def error_metadata(status: bytes) -> dict[str, str]:
    """The metadata in that ErrorInfo."""
    try:
        pairs = [(_fields(pair, 1), _fields(pair, 2)) for pair in _fields(_error_info(status), 3)]
        return {b"".join(name).decode(): b"".join(value).decode() for name, value in pairs}
    except (DecodeError, UnicodeDecodeError):
        return {}


def _error_info(status: bytes) -> bytes:
    """The ErrorInfo of this project in a google.rpc.Status; empty where there is none. Both are read by field numbers,
    so that a device needs no further package for two messages."""
    for detail in _fields(status, 3):
        for info in _fields(detail, 2):
            if b"anabranch" in _fields(info, 2):
                return info
    return b""


def _fields(data: bytes, number: int) -> list[bytes]:
    fields: Any = UnknownFieldSet(Empty.FromString(data))
    return [f.data for f in fields if f.field_number == number and isinstance(f.data, bytes)]
