"""The network between one node and the services, as a gRPC proxy that delays calls, repeats them, loses them or their
answers, lets later ones overtake, and is cut and mended on demand.

It parses no message but Send's, whose envelopes it records (``seen``: batch id to basis; ``nodes``: the senders), and
forwards bytes, so that a node gets exactly what a service sent. State: *up*, or *cut*: every call fails at once, and
open streams end.

Every call takes a number when it comes. One that ends after another with a higher number has ended is *reordered*.
"""

from __future__ import annotations

import queue
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from anabranch.v1 import batch_pb2, ingest_pb2

_THREADS = 64
_CALL_S = 30.0
_LONGEST_CALL_S = 600.0
_LONGEST_DELAY_S = 0.4
_LATEST_S = 3.0
_SURE_AFTER = 5
"""After so many chances at the latest, each fault happens once."""
_STREAMS_OUT = frozenset({"Subscribe", "Pull"})
_STREAMS_BOTH = frozenset({"SendStream"})
_SENDS = frozenset({"Send", "SendStream"})
_OURS = ("grpc-", "user-agent", "te", "content-type", ":")
_REPEATED_REQUESTS = 64
_DETAILS = "grpc-status-details-bin"
KINDS = frozenset(
    {
        "call delayed",
        "call repeated",
        "call lost",
        "call late",
        "answer lost",
        "call reordered",
        "stream broken",
        "network cut",
    }
)
"""The faults that it counts."""


def _metadata(context: grpc.ServicerContext) -> list[tuple[str, Any]]:
    given: Any = context.invocation_metadata()
    return [(k, v) for k, v in given if not k.startswith(_OURS)]


def _plain(data: bytes) -> bytes:
    return data


class Proxy(grpc.GenericRpcHandler):
    """One node's network. ``upstreams``: service name (as in ``/anabranch.v1.NAME/…``) to host:port. ``address`` is
    where the node finds it. ``rough``: the share of calls that get a fault, 0 to 1."""

    def __init__(self, upstreams: Mapping[str, str], seed: int, rough: float = 0.25) -> None:
        self.counts: Counter[str] = Counter()
        self.seen: dict[str, int] = {}
        self.nodes: set[str] = set()
        self.rough = rough
        self._chance = random.Random(seed)
        self._chances: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._cut = threading.Event()
        self._number = 0
        self._last_ended = 0
        self._channels = {
            name: grpc.insecure_channel(
                address,
                options=[
                    ("grpc.max_receive_message_length", -1),
                    ("grpc.initial_reconnect_backoff_ms", 100),
                    ("grpc.max_reconnect_backoff_ms", 500),
                ],
            )
            for name, address in upstreams.items()
        }
        self._server = grpc.server(
            ThreadPoolExecutor(_THREADS, "proxy"), handlers=[self], options=[("grpc.max_receive_message_length", -1)]
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def close(self) -> None:
        """End every call and the server."""
        self._cut.set()
        self._server.stop(0.5).wait()
        for channel in self._channels.values():
            channel.close()

    def cut(self) -> None:
        """Block all calls from now on."""
        self._cut.set()
        self._count("network cut")

    def mend(self) -> None:
        """Let calls through again."""
        self._cut.clear()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Called by gRPC."""
        method = handler_call_details.method
        name = method.rpartition("/")[2]
        if name in _STREAMS_BOTH:
            return grpc.stream_stream_rpc_method_handler(lambda requests, ctx: self._both(method, requests, ctx))
        if name in _STREAMS_OUT:
            return grpc.unary_stream_rpc_method_handler(lambda request, ctx: self._out(method, request, ctx))
        return grpc.unary_unary_rpc_method_handler(lambda request, ctx: self._unary(method, request, ctx))

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def _draws(self, what: str, share: float) -> bool:
        with self._lock:
            # On a busy machine few calls come that far: without this, a fault might never happen.
            self._chances[what] += 1
            due = not self.counts[what] and self._chances[what] >= _SURE_AFTER
            if not due and self._chance.random() >= self.rough * share:
                return False
            self.counts[what] += 1
            return True

    def _begin(self, context: grpc.ServicerContext) -> int:
        with self._lock:
            self._number += 1
            number = self._number
            wait_s = self._chance.uniform(0, _LONGEST_DELAY_S) if self._chance.random() < self.rough else 0.0
            self.counts["call delayed"] += bool(wait_s)
        if self._cut.wait(wait_s) if wait_s else self._cut.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "the network is cut")
        return number

    def _end(self, number: int) -> None:
        with self._lock:
            if number < self._last_ended:
                self.counts["call reordered"] += 1
            self._last_ended = max(self._last_ended, number)

    def _note(self, method: str, request: bytes, begun: bytearray) -> None:
        """Record a request's envelopes. ``begun``: the earlier parts of a batch that comes in parts, in one call."""
        if method.rpartition("/")[2] not in _SENDS:
            return
        sent = ingest_pb2.SendRequest.FromString(request)
        if sent.node_state.node.id:
            # Only the first request of a stream names the node.
            with self._lock:
                self.nodes.add(sent.node_state.node.id)
        for envelope in sent.envelopes:
            begun += envelope.payload
            if envelope.payload_incomplete:
                continue
            batch_id = batch_pb2.DbMutationBatch.FromString(bytes(begun)).id
            begun.clear()
            with self._lock:
                self.seen[batch_id] = envelope.basis

    def _call(self, method: str, kind: str, request: Any, context: grpc.ServicerContext) -> Any:
        left = context.time_remaining()
        timeout_s = min(_LONGEST_CALL_S, left) if left else _LONGEST_CALL_S
        return self._multi(method, kind)(request, timeout=timeout_s, metadata=_metadata(context))

    def _multi(self, method: str, kind: str) -> Any:
        channel = self._channels[method.split("/")[1].rpartition(".")[2]]
        return getattr(channel, kind)(method, request_serializer=_plain, response_deserializer=_plain)

    def _fail(self, error: Any, context: grpc.ServicerContext) -> None:
        # A client-side RpcError is a call; the service's own metadata in it is forwarded unchanged.
        said: Any = error.trailing_metadata() or ()
        if any(k == _DETAILS and b"BEHIND_FLOOR" in v for k, v in said):
            self._count("node told that it is behind the floor")
        context.set_trailing_metadata(tuple((k, v) for k, v in said if k == _DETAILS or not k.startswith(_OURS)))
        context.abort(error.code(), error.details() or "")

    def _unary(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        number = self._begin(context)
        self._note(method, request, bytearray())
        if self._draws("call lost", 0.3):
            context.abort(grpc.StatusCode.UNAVAILABLE, "the call was lost")
        if method.rpartition("/")[2] in _SENDS and self._draws("call late", 0.5):
            # It arrives when its node has already given it up, sent it again, and sent more.
            self._later(method, "unary_unary", [request], context)
            context.abort(grpc.StatusCode.UNAVAILABLE, "the call was lost")
        try:
            response: bytes = self._call(method, "unary_unary", request, context)
            if self._draws("call repeated", 0.5):
                # The network delivers a call twice; it does not choose which answer arrives.
                response = self._call(method, "unary_unary", request, context)
        except grpc.RpcError as error:
            self._fail(error, context)
        finally:
            self._end(number)
        if self._cut.is_set() or self._draws("answer lost", 0.3):
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer was lost")
        return response

    def _out(self, method: str, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self._begin(context)
        call = self._call(method, "unary_stream", request, context)
        yield from self._responses(call, context)

    def _both(self, method: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        number = self._begin(context)
        kept: list[bytes] = []
        begun = bytearray()

        def noted() -> Iterator[bytes]:
            for request in requests:
                self._note(method, request, begun)
                if len(kept) < _REPEATED_REQUESTS:
                    kept.append(request)
                yield request

        call = self._call(method, "stream_stream", noted(), context)
        for response in self._responses(call, context):
            if self._draws("stream held back", 0.02):
                # As by a proxy that buffers: nothing comes any more, and nothing ends.
                left = threading.Event()
                if context.add_callback(left.set):
                    left.wait(_CALL_S)
                break
            yield response
        self._end(number)
        if kept and self._draws("call repeated", 0.5):
            self._later(method, "stream_stream", kept, context)

    def _later(self, method: str, kind: str, requests: Sequence[bytes], context: grpc.ServicerContext) -> None:
        """Make a call after a while, and discard its answers."""
        metadata = _metadata(context)
        multi = self._multi(method, kind)
        with self._lock:
            wait_s, number = self._chance.uniform(0, _LATEST_S), self._number

        def make() -> None:
            try:
                if kind == "unary_unary":
                    multi(requests[0], timeout=_CALL_S, metadata=metadata)
                else:
                    for _ in multi(iter(requests), timeout=_CALL_S, metadata=metadata):
                        continue
            except grpc.RpcError as error:
                # A call with an old token may be refused.
                code: Any = error
                self._count(f"late call refused, {code.code().name}")
            except ValueError:
                return  # the run is over, and the channel closed
            with self._lock:
                self.counts["call reordered"] += self._number > number

        timer = threading.Timer(wait_s, make)
        timer.daemon = True
        timer.start()

    def _responses(self, call: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        """A stream's responses, read in another thread, so that a cut ends it also while no response comes."""
        heard: queue.Queue[Any] = queue.Queue(256)
        done = threading.Event()

        def hear() -> None:
            last: Any = None
            try:
                for response in call:
                    _put(heard, response, done)
            except grpc.RpcError as error:
                last = error
            _put(heard, last, done)

        threading.Thread(target=hear, daemon=True).start()
        try:
            while True:
                if self._cut.is_set():
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the network is cut")
                try:
                    response = heard.get(timeout=0.05)
                except queue.Empty:
                    if not context.is_active():
                        return
                    continue
                if response is None:
                    return
                if isinstance(response, grpc.RpcError):
                    self._fail(response, context)
                yield response
                if self._draws("stream broken", 0.05):
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the stream broke")
        finally:
            done.set()
            call.cancel()


def _put(heard: queue.Queue[Any], what: Any, done: threading.Event) -> None:
    while not done.is_set():
        try:
            heard.put(what, timeout=0.1)
        except queue.Full:
            continue
        return
