"""Takes down all that a device receives: every response as the bytes that came, before anything reads them, and the
words and metadata with which calls end.

    remote = TappedRemote(tap, token=token, ingest=…, snapshot=…)
    db = SyncedDb(file, remote, …)
    …
    leaks = all_leaks(history, tap.calls())

A call is taken down as soon as it begins, with the token that it carries: a stream's responses belong to the claims
with which it was opened.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from anabranch.client import RemoteDb
from anabranch.testkit.attack.calls import RPCS
from anabranch.testkit.attack.leaks import Caller
from anabranch.testkit.attack.marks import marks_in
from anabranch.testkit.attack.received import Received, Response

KINDS = {rpc.path: GetMessageClass(rpc.method.output_type) for rpc in RPCS}
"""By a method's path: the type of its responses."""


@dataclass(slots=True)
class Call:
    """One call. ``caller`` is None where it carried no token that names one."""

    path: str
    caller: Caller | None
    received: list[Received] = field(default_factory=list)


class Wiretap:
    """All calls so far, of any number of devices and threads. ``claimed`` gives the audiences of a token's claims, as
    the rules of the database under attack say; ``nodes`` the node ids of a principal."""

    def __init__(
        self,
        claimed: Callable[[Mapping[str, Any]], Collection[str]],
        nodes: Callable[[str], Collection[str]] = lambda _: (),
    ) -> None:
        self._claimed = claimed
        self._nodes = nodes
        self._calls: list[Call] = []
        self._lock = threading.Lock()

    def begin(self, path: str, metadata: Sequence[tuple[str, str | bytes]] | None) -> Call:
        """Take down a call that begins."""
        claims = _claims(dict(metadata or ()).get("authorization", ""))
        subject = claims.get("sub")
        call = Call(path, Caller(subject, frozenset(self._claimed(claims))) if isinstance(subject, str) else None)
        with self._lock:
            self._calls.append(call)
        return call

    def note(self, call: Call, received: Received) -> None:
        """Take down what came in a call."""
        with self._lock:
            call.received.append(received)

    def note_end(self, call: Call, ended: Any) -> None:
        """Take down the words and the metadata with which a call has ended."""
        told: list[object] = [ended.details()]
        for metadata in (ended.initial_metadata, ended.trailing_metadata):
            told += [part for pair in metadata() or () for part in pair]
        data = b"\0".join(one if isinstance(one, bytes) else str(one or "").encode() for one in told)
        if marks := marks_in(data):
            self.note(call, Received(call.path, marks=marks))

    def calls(self) -> list[tuple[Caller, Collection[Received]]]:
        """The calls so far with what came in each, as ``all_leaks`` takes them."""
        with self._lock:
            told = [(call.caller or Caller(""), list(call.received)) for call in self._calls]
        return [
            (Caller(caller.principal, caller.claimed, frozenset(self._nodes(caller.principal))), received)
            for caller, received in told
        ]


def _claims(authorization: str | bytes) -> Mapping[str, Any]:
    """The claims of a token; none for an API key."""
    text = authorization.decode() if isinstance(authorization, bytes) else authorization
    parts = text.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return {}
    claims: Mapping[str, Any] = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    return claims


class TappedChannel(grpc.Channel):
    """A channel whose calls are taken down."""

    def __init__(self, channel: grpc.Channel, tap: Wiretap) -> None:
        self._channel = channel
        self._tap = tap

    def unary_unary(self, method: str, *args: Any, **options: Any) -> Any:
        """Return the method, as all four do."""
        return _Tapped(self._tap, self._channel.unary_unary, method, args, options)

    def unary_stream(self, method: str, *args: Any, **options: Any) -> Any:
        """As ``unary_unary``."""
        return _Tapped(self._tap, self._channel.unary_stream, method, args, options)

    def stream_unary(self, method: str, *args: Any, **options: Any) -> Any:
        """As ``unary_unary``."""
        return _Tapped(self._tap, self._channel.stream_unary, method, args, options)

    def stream_stream(self, method: str, *args: Any, **options: Any) -> Any:
        """As ``unary_unary``."""
        return _Tapped(self._tap, self._channel.stream_stream, method, args, options)

    def subscribe(self, callback: Callable[[grpc.ChannelConnectivity], None], try_to_connect: bool = False) -> None:
        """Call ``callback`` with every state of the connection."""
        self._channel.subscribe(callback, try_to_connect)

    def unsubscribe(self, callback: Callable[[grpc.ChannelConnectivity], None]) -> None:
        """Stop calling ``callback``."""
        self._channel.unsubscribe(callback)

    def close(self) -> None:
        """End all calls of the channel."""
        self._channel.close()

    def __enter__(self) -> TappedChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Stream:
    """A call's responses, with a word at their end; all other attributes are those of the call."""

    def __init__(self, call: Any, ended: Callable[[], None]) -> None:
        self._call = call
        self._ended = ended

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._call)
        except (StopIteration, grpc.RpcError):
            # Not by a callback of the call: that runs in the thread which everything that is to be read comes from.
            self._ended()
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


class _Tapped:
    """A method of which each call reads its responses by a reader of its own."""

    def __init__(
        self, tap: Wiretap, make: Callable[..., Any], path: str, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        self._tap = tap
        self._make = make
        self._path = path
        names = ("request_serializer", "response_deserializer", "_registered_method")
        self._options: dict[str, Any] = {**dict(zip(names, args, strict=False)), **options}

    def _begin(self, options: Mapping[str, Any]) -> tuple[Any, Call]:
        call = self._tap.begin(self._path, options.get("metadata"))
        response = Response(self._path, KINDS[self._path])
        load = self._options.get("response_deserializer") or (lambda data: data)

        def read(data: bytes) -> Any:
            self._tap.note(call, response.read(data))
            return load(data)

        return self._make(self._path, **{**self._options, "response_deserializer": read}), call

    def __call__(self, request: Any, *args: Any, **options: Any) -> Any:
        method, call = self._begin(options)
        try:
            answer = method(request, *args, **options)
        except grpc.RpcError as error:
            self._tap.note_end(call, error)
            raise
        return _Stream(answer, lambda: self._tap.note_end(call, answer)) if hasattr(answer, "__next__") else answer

    def with_call(self, request: Any, *args: Any, **options: Any) -> Any:
        """Call; return the answer and the call."""
        method, call = self._begin(options)
        try:
            answer, ended = method.with_call(request, *args, **options)
        except grpc.RpcError as error:
            self._tap.note_end(call, error)
            raise
        self._tap.note_end(call, ended)
        return answer, ended

    def future(self, request: Any, *args: Any, **options: Any) -> Any:
        """Begin a call, and return its future."""
        method, call = self._begin(options)
        begun = method.future(request, *args, **options)
        begun.add_done_callback(lambda ended: self._tap.note_end(call, ended))
        return begun


class TappedRemote(RemoteDb):
    """RemoteDb, all of whose calls are taken down by ``tap``; the rest as RemoteDb takes it."""

    def __init__(self, tap: Wiretap, **options: Any) -> None:
        super().__init__(**options)
        self._tap = tap

    def _open(self, address: str) -> grpc.Channel:
        return TappedChannel(super()._open(address), self._tap)
